"""Running a model to look at it: what it is called with, what it answers, and its trace.

Axes: b batch · t tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.interp.recording.record import Wanted, record
from qkv.interp.traces.trace import Trace
from qkv.models import Encoder, ViT

HEADLESS = (Encoder, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.MultiheadAttention)
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # one tensor, arguments in order, or arguments by name


def at(model: nn.Module, inputs: Inputs, *, activations: Wanted = ()) -> Trace:
    """The attention of one run of a model, as a `Trace`.

    The model runs as it is, in eval mode and without gradients; its outputs keep every bit.

    inputs: what the model is called with: a tensor, a tuple of arguments, or a mapping of arguments by name.
    activations: names of modules whose outputs are kept too, or a function that says of each name whether it is.

    >>> import qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> at(model, torch.tensor([[1, 2, 3]]))
    Trace(2 layers, 8 heads)
    """
    trace, _ = run_traced(model, inputs, activations=activations)
    return trace


def run_traced(
    model: nn.Module, inputs: Inputs, *, activations: Wanted = (), values: bool = False
) -> tuple[Trace, Any]:
    """A trace, and what the model returned."""
    with observing(model), record(model, activations, values=values) as trace:
        output = call(model, inputs)
    if not trace.layers:
        raise ValueError(
            f"this {type(model).__name__} ran without any attention that PyTorch shows, so there is nothing to look "
            "at: it has none, or computes it in a kernel of its own. Models with attention can be looked at as they "
            "are; of others, what their modules return can be recorded: qkv.interp.record(model, activations=[…])"
        )
    return trace, output


@contextmanager
def observing(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients, as it was afterwards."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in trained:
            module.training = True


def call(model: nn.Module, inputs: Inputs) -> Any:
    """The model called with its inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def read_tokens(inputs: Inputs) -> Tensor | None:
    """The tokens (b, t) that the model's answers belong to: the target's, where there are source and target."""
    if isinstance(inputs, Mapping):
        given = [inputs.get(name) for name in ("decoder_input_ids", "target", "input_ids", "tokens")]
    else:
        given = list(reversed(inputs[:2])) if isinstance(inputs, tuple) else [inputs]
    for tokens in given:
        if isinstance(tokens, Tensor) and tokens.ndim == 2 and tokens.dtype in (torch.int64, torch.int32):
            return tokens
    return None


def replaced_tokens(inputs: Inputs, tokens: Tensor) -> Inputs:
    """The same inputs with other tokens in the place of those that `read_tokens` gives."""
    old = read_tokens(inputs)
    if isinstance(inputs, Mapping):
        return {name: tokens if value is old else value for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(tokens if value is old else value for value in inputs)
    return tokens


def scores_of(model: nn.Module, output: Any) -> Tensor:
    """The logits among what a model returned: (b, t, vocab), or (b, classes).

    A ValueError for a model whose output is known to be something else.
    """
    logits = output.get("logits") if isinstance(output, Mapping) else output
    headless = isinstance(model, HEADLESS) or (isinstance(model, ViT) and not model.config.num_classes)
    if isinstance(logits, tuple) and logits and isinstance(logits[0], Tensor):
        logits = logits[0]
    if headless or not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or not logits.is_floating_point():
        raise ValueError(
            f"this {type(model).__name__} answers with vectors, not with logits: it has no head that qkv knows. Its "
            "attention can be looked at and compared; effects need a model with a head, or a measure of yours"
        )
    return logits


def logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """The model's logits, (b, t, vocab) or (b, classes)."""
    with observing(model):
        return scores_of(model, call(model, inputs))
