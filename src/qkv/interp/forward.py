"""Run a model for an analysis: trace(), one recorded forward pass, its logits, losses and KL divergences.

Axes: b batch · t tokens · v vocabulary or classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv._files import json_safe
from qkv.interp.recording.recorder import ModuleFilter, record
from qkv.interp.traces import Trace
from qkv.models import Encoder, ViT
from qkv.models.generation import LanguageModel, Translator

HEADLESS = (Encoder, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.MultiheadAttention)
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # one tensor, positional arguments, or keyword arguments
Measure = Callable[[Any], float | Tensor]  # of what the model returns; higher is worse, like a loss


@dataclasses.dataclass(frozen=True, eq=False)
class AnalysisResult:
    """Base of what an analysis returns: a frozen dataclass that converts to JSON."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name: tensors as nested lists, NaN and infinity as null."""
        return {field.name: to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


def to_json(value: Any) -> Any:
    """A value as JSON data.

    >>> to_json((1.0, float("nan"), {"a": (2,)}))
    [1.0, None, {'a': [2]}]
    """
    if isinstance(value, AnalysisResult):
        return value.to_json()
    if isinstance(value, Tensor):
        return to_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return json_safe(value)


def trace(model: nn.Module, inputs: Inputs, *, activations: ModuleFilter = ()) -> Trace:
    """Run a model once and return the attention of the run.

    The model runs in eval mode and without gradients; recording does not change a bit of its output.

    inputs: what the model is called with: a tensor, a tuple of arguments, or a mapping of keyword arguments.
    activations: names of modules whose outputs are recorded too, or a function from name to bool.

    >>> import qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> trace(model, torch.tensor([[1, 2, 3]]))
    Trace(2 layers, 8 heads)
    """
    return trace_with_output(model, inputs, activations=activations)[0]


def trace_with_output(
    model: nn.Module, inputs: Inputs, *, activations: ModuleFilter = (), values: bool = False
) -> tuple[Trace, Any]:
    """The trace of a run, and what the model returned."""
    if not isinstance(model, nn.Module):
        hint = f"; load it first: qkv.load({model!r})" if isinstance(model, str) else ""
        raise ValueError(f"model must be a torch module, got a {type(model).__name__}{hint}")
    with eval_mode(model), record(model, activations, values=values) as recorded:
        output = call_model(model, inputs)
    if not recorded.layers:
        raise ValueError(
            f"this {type(model).__name__} ran without any attention that PyTorch shows: it has none, or computes it in "
            "a kernel of its own. Outputs of its modules can be recorded: qkv.interp.record(model, activations=[…])"
        )
    return recorded, output


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the previous mode of every module is restored."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model with its inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def call_eval(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model in eval mode without gradients."""
    with eval_mode(model):
        return call_model(model, inputs)


def find_tokens(inputs: Inputs) -> Tensor | None:
    """The tokens (b, t) that the model's outputs belong to: of a source and a target, the target's."""
    if isinstance(inputs, Mapping):
        candidates = [inputs.get(name) for name in ("decoder_input_ids", "target", "input_ids", "tokens")]
    else:
        candidates = list(reversed(inputs[:2])) if isinstance(inputs, tuple) else [inputs]
    for tokens in candidates:
        if isinstance(tokens, Tensor) and tokens.ndim == 2 and tokens.dtype in (torch.int64, torch.int32):
            return tokens
    return None


def map_inputs(inputs: Inputs, function: Callable[[Any], Any]) -> Inputs:
    """The inputs with a function applied to each argument."""
    if isinstance(inputs, Mapping):
        return {name: function(value) for name, value in inputs.items()}
    return tuple(function(value) for value in inputs) if isinstance(inputs, tuple) else function(inputs)


def get_logits(model: nn.Module, output: Any) -> Tensor:
    """The logits in what a model returned: (b, t, v), or (b, v) for one answer per input.

    A ValueError for a model whose output is known to be something else.
    """
    logits = output.get("logits") if isinstance(output, Mapping) else output
    headless = isinstance(model, HEADLESS) or (isinstance(model, ViT) and not model.config.num_classes)
    if isinstance(logits, tuple) and logits and isinstance(logits[0], Tensor):
        logits = logits[0]
    if headless or not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or not logits.is_floating_point():
        raise ValueError(
            f"this {type(model).__name__} returns vectors, not logits: it has no head that qkv knows. Its attention "
            "can be traced and compared; measuring effects needs a model with a head, or your own measure="
        )
    return logits


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardPass:
    """One recorded run of a model, and the right answers where they are known.

    targets: (b, t) the right next tokens, −100 where unknown; or (b,) the right classes; None if unknown.
    positions: the positions that count in means; None means all.
    """

    model: nn.Module
    trace: Trace
    output: Any
    targets: Tensor | None
    positions: tuple[int, ...] | None = None

    @property
    def logits(self) -> Tensor:
        return get_logits(self.model, self.output)

    def losses(self, logits: Tensor) -> Float[Tensor, "*b"] | None:
        """The cross-entropy of each answer, NaN where its target is unknown; None without targets."""
        if self.targets is None:
            return None
        if logits.shape[:-1] != self.targets.shape:
            raise ValueError(
                f"targets must be {tuple(logits.shape[:-1])}, one for each answer of the model; got "
                f"{tuple(self.targets.shape)}"
            )
        known = self.targets >= 0
        log_probabilities = logits.double().log_softmax(-1)
        picked = log_probabilities.gather(-1, self.targets.clamp(min=0)[..., None]).squeeze(-1)
        return (-picked).masked_fill(~known, float("nan"))

    def mean(self, values: Float[Tensor, "*b"]) -> float:
        """The mean over the positions that count."""
        if values.ndim == 2 and self.positions is not None:
            values = values[:, check_positions(self.positions, values.shape[1])]
        return float(values.nanmean())


def run_forward(
    model: nn.Module, inputs: Inputs, targets: Tensor | None = None, positions: Sequence[int] | None = None
) -> ForwardPass:
    """Run a model once, recorded. A causal language model's targets are its own inputs, one token ahead."""
    recorded, output = trace_with_output(model, inputs)
    tokens = find_tokens(inputs)
    if targets is None and tokens is not None and _predicts_next_token(model, recorded, output, tokens):
        targets = torch.cat((tokens[:, 1:], torch.full_like(tokens[:, :1], -100)), dim=1).long()
    return ForwardPass(model, recorded, output, targets, None if positions is None else tuple(positions))


def _predicts_next_token(model: nn.Module, recorded: Trace, output: Any, tokens: Tensor) -> bool:
    """Whether a model predicts the next token: it is a language model of ours or never attends to later tokens."""
    if tokens.shape[1] < 2:
        return False
    if not isinstance(model, LanguageModel | Translator) and not attends_causally(recorded, tokens.shape[1]):
        return False
    try:
        logits = get_logits(model, output)
    except ValueError:
        return False
    return logits.ndim == 3 and logits.shape[:2] == tokens.shape and logits.shape[-1] > int(tokens.max())


def attends_causally(recorded: Trace, length: int) -> bool:
    """Whether every self-attention over `length` tokens is causal, and there is one."""
    own = [layer for layer in recorded.layers if not layer.cross and layer.queries == layer.keys == length]
    return bool(own) and all(layer.is_causal() for layer in own)


def kl_divergence(before: Float[Tensor, "*b v"], after: Float[Tensor, "*b v"]) -> Float[Tensor, "*b"]:
    """KL(before ‖ after) of the answers given as logits, in nats."""
    p, q = (x.double().log_softmax(-1) for x in (before, after))
    gap = torch.where(p.isneginf(), 0.0, p - q)
    return (p.exp() * gap).sum(-1).clamp(min=0)


def check_positions(positions: Sequence[int], count: int) -> list[int]:
    """The positions counted from the front; a ValueError for one that is out of range."""
    for position in positions:
        if not -count <= position < count:
            raise ValueError(f"there are {count} positions, 0 to {count - 1}; got {position}")
    return [position % count for position in positions]
