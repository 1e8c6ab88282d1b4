"""What every model is: a config, parameters, and a folder it can be saved to."""

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from qkv.models import folder


class Model(nn.Module):
    """A whole architecture, built from its frozen config.

    Each subclass names its config class; that is how a saved folder finds its way back to a model.
    """

    config_class: ClassVar[type]
    known: ClassVar[dict[str, type["Model"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Model.known[cls.__name__] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise ValueError(
                f"{type(self).__name__} is built from a {self.config_class.__name__}; got {type(config).__name__}"
            )
        self.config = config
        self.files: dict[str, bytes] = {}  # what travels with the model from folder to folder, such as tokenizer.json

    @property
    def num_parameters(self) -> int:
        """How many parameters the model has; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, target: str | Path) -> None:
        """Write config.json, model.safetensors and `files` into a folder, whole or not at all."""
        folder.save(self, target)


def small_normal(model: nn.Module, *, deviation: float = 0.02, layers: int = 0) -> None:
    """Draw weights from N(0, deviation²), biases 0; what adds to the residual stream is smaller by √(2·layers)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            residual = layers and name.endswith("to_out")
            nn.init.normal_(module.weight, std=deviation / (2 * layers) ** 0.5 if residual else deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
