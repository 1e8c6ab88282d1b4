"""Model: the base class of all models, with config, parameters and saving; weight initialization, image checks."""

import os
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from qkv.models import folder
from qkv.nn.multi_head_attention import MultiHeadAttention
from qkv.nn.quantized import Int8Linear, quantize_linears

MAX_LAYERS = 10_000
M = TypeVar("M", bound=nn.Module)


class Model(nn.Module):
    """A model built from its frozen config.

    Each subclass names its `config_class`; loading finds the subclass by its name in `Model.registry`.
    """

    config_class: ClassVar[type]
    registry: ClassVar[dict[str, type["Model"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Model.registry[cls.__name__] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise ValueError(
                f"{type(self).__name__} must be built from a {self.config_class.__name__}, got {type(config).__name__}"
            )
        self.config = config
        self.extra_files: dict[str, bytes] = {}  # saved with the model, such as tokenizer.json

    @property
    def num_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def quantize(self: M, kind: str = "int8") -> M:
        """Round the weights of all linear layers to int8, in place, with a scale for every 64 weights.

        Generation on a CPU then reads a quarter of the memory. A quantized model cannot be saved or trained.
        """
        if kind != "int8":
            raise ValueError(f"quantize must be 'int8', got {kind!r}")
        quantize_linears(self)
        return self

    def save(self, target: str | Path) -> None:
        """Write config.json, model.safetensors and `extra_files` to a folder, atomically. `qkv.load` reads it."""
        if any(isinstance(module, Int8Linear) for module in self.modules()):
            raise ValueError("a quantized model cannot be saved; save it first, and quantize it after loading")
        folder.save(self, target)


def build(config: object) -> Model:
    """Build the model of a config.

    >>> from qkv.models import PRESETS
    >>> model = build(PRESETS["nyu-hw4-vit"])
    >>> type(model).__name__, model.num_parameters
    ('ViT', 3217764)
    """
    for cls in Model.registry.values():
        if type(config) is cls.config_class:
            return cls(config)
    raise ValueError(f"config must be a model config such as GPTConfig(…), got {type(config).__name__}")


def check_fits(config: object) -> None:
    """Raise a ValueError if the model of a config has too many layers, or does not fit into this machine's memory.

    >>> from qkv.models import GPTConfig
    >>> check_fits(GPTConfig(vocab_size=65, layers=10**9))
    Traceback (most recent call last):
    ValueError: layers must be at most 10,000, got 1000000000
    """
    for name, value in vars(config).items():
        if name.endswith("layers") and isinstance(value, int) and value > MAX_LAYERS:
            raise ValueError(f"{name} must be at most {MAX_LAYERS:,}, got {value}")
    cls = next((cls for cls in Model.registry.values() if type(config) is cls.config_class), None)
    if cls is None:
        return
    empty = folder.build_empty(cls, config, "the config")
    needed = sum(parameter.numel() * parameter.element_size() for parameter in empty.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
    if needed > memory:
        raise ValueError(
            f"the model would have {empty.num_parameters:,} parameters, which take {needed / 1e9:,.0f} GB; this "
            f"machine has {memory / 1e9:,.0f} GB of memory: choose smaller sizes"
        )


def init_weights(model: nn.Module, *, std: float = 0.02, layers: int = 0) -> None:
    """Initialize weights from N(0, std²) and biases to 0, as GPT-2 does.

    Args:
        layers: number of blocks; the output projections of residual branches are smaller by √(2·layers).
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            residual = layers and name.endswith("to_out")
            nn.init.normal_(module.weight, std=std / (2 * layers) ** 0.5 if residual else std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def init_attention_like_pytorch(model: nn.Module) -> None:
    """Give attention layers the initial weights of `torch.nn.MultiheadAttention`.

    Queries, keys and values have one matrix there, (3·dim, dim), from a uniform distribution (Xavier); all biases
    are 0. The other layers keep the initial weights of PyTorch, with which they were made.
    """
    for layer in model.modules():
        if not isinstance(layer, MultiHeadAttention):
            continue
        projections = [part for part in (layer.to_q, layer.to_k, layer.to_v) if part is not None]
        bound = (6 / (layer.dim + sum(part.out_features for part in projections))) ** 0.5
        for part in projections:
            nn.init.uniform_(part.weight, -bound, bound)
        for part in (*projections, layer.to_out):
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def check_images(images: Tensor, channels: int, image_size: int, dtype: torch.dtype) -> None:
    """Raise a ValueError unless images are (b, channels, image_size, image_size) of the model's dtype."""
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, image_size, image_size):
        raise ValueError(
            f"images must have shape (batch, {channels}, {image_size}, {image_size}), got {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise ValueError(f"images must be floating, got {images.dtype}; divide bytes by 255 and normalize them first")
    if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
        raise ValueError(f"images must have the model's dtype {dtype}, got {images.dtype}")
