"""`--adapter FILE`: a Python file whose functions call the target, for code that cannot be called by guessing.

    def build(target): ...                 what is checked, made from the named target; without it, the target itself
    def call(target, q, k, v, mask): ...   or call(target, x, …), call(target, tokens, …): returns the output
    def mask(allowed): ...                 from True = may attend to what the target takes
    def start_cache(target, batch): ...    an empty KV cache
    def step(target, x, cache): ...        one piece through the cache: returns its output and the cache

docs/check-adapter.md describes what each function gets and returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.building import build as build_target
from qkv.check.calling.forms import find_dims, find_vocab_size
from qkv.check.calling.functions import FunctionCall, function_implementation
from qkv.check.calling.guard import call_target, seeded
from qkv.check.calling.layouts import HEADS_SECOND
from qkv.check.calling.loading import load_file, missing_device
from qkv.check.calling.outputs import to_torch
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, cast_module, randomize_weights
from qkv.check.report import describe_error

INPUTS = ("q", "x", "tokens")
WORDS = ("q", "k", "v", "x", "tokens", "mask", "causal", "token_mask")
FUNCTIONS = ("build", "call", "mask", "start_cache", "step")
CONSTANTS = ("ARRAYS", "DTYPE", "DIM", "VOCAB_SIZE", "LENGTH", "LENGTH_MULTIPLE", "MAX_LENGTH", "RANDOM_WEIGHTS")


@dataclass(frozen=True)
class Adapter:
    """The functions and constants of an adapter file.

    Args:
        words: the names of the inputs of `call`, besides the target.
    """

    path: Path
    module: Any
    words: tuple[str, ...]

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self.module, name, default)

    @property
    def arrays(self) -> bool:
        """Whether inputs are arrays of numpy."""
        return self.get("ARRAYS", "torch") == "numpy"

    def give(self, value: Any) -> Any:
        """A value as the adapter takes it."""
        return value.detach().numpy() if self.arrays and isinstance(value, Tensor) else value

    def shape_mask(self, mask: Tensor | None) -> Any:
        convert = self.get("mask")
        return self.give(mask) if mask is None or convert is None else call_target(convert, self.give(mask))


def load_adapter(path: Path) -> Adapter:
    """Read an adapter file, and say what is missing or unknown in it."""
    module = load_file(path)
    call = getattr(module, "call", None)
    if not inspect.isfunction(call):
        raise ValueError(f"the adapter {path} needs a function call(target, …), such as call(target, q, k, v)")
    words = tuple(inspect.signature(call).parameters)[1:]
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise ValueError(
            f"call of the adapter {path} takes {unknown[0]!r}, which is not known; after the target it may take "
            f"{', '.join(WORDS)}"
        )
    inputs = [word for word in INPUTS if word in words]
    if len(inputs) != 1 or ("q" in words and not {"k", "v"} <= set(words)):
        raise ValueError(f"call of the adapter {path} must take q, k, v or x or tokens after the target; got {words}")
    if getattr(module, "ARRAYS", "torch") not in ("torch", "numpy"):
        raise ValueError(f'ARRAYS of the adapter {path} must be "torch" or "numpy"; got {module.ARRAYS!r}')
    if hasattr(module, "step") and not inspect.isfunction(module.step):
        raise ValueError(f"step of the adapter {path} must be a function step(target, {inputs[0]}, cache)")
    return Adapter(path, module, words)


def adapter_implementation(
    found: Any, name: str, contract: Contract, adapter: Adapter, arguments: dict[str, Any] | None = None
) -> Implementation:
    """The target, called by the functions of an adapter."""
    target = _build(found, adapter, arguments)
    exact = adapter.get("DTYPE", "float64") == "float64"
    dtype = torch.float64 if exact else torch.float32
    module = target if isinstance(target, nn.Module) else None
    if module is not None:
        cast_module(module, dtype).eval()
        if adapter.get("RANDOM_WEIGHTS", True):
            randomize_weights(module)
    try:
        if "q" in adapter.words:
            impl = _function(target, name, contract, adapter, dtype)
        else:
            impl = _sequence(target, module, name, contract, adapter, dtype)
    except ValueError:
        raise
    except Exception as error:
        needs = missing_device(error) or describe_error(error)
        raise ValueError(f"{name} could not be called by {adapter.path}: {needs}") from error
    return replace(impl, how=f"{impl.how}, by the adapter {adapter.path.name}")


def _build(found: Any, adapter: Adapter, arguments: dict[str, Any] | None) -> Any:
    make = adapter.get("build")
    if make is None:
        return build_target(found, arguments)[0] if inspect.isclass(found) else found
    try:
        with seeded(0):
            return call_target(make, found) if inspect.signature(make).parameters else call_target(make)
    except Exception as error:
        needs = missing_device(error) or describe_error(error)
        raise ValueError(f"build of the adapter {adapter.path} failed: {needs}") from error


def _function(target: Any, name: str, contract: Contract, adapter: Adapter, dtype: torch.dtype) -> Implementation:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, token_mask: Any = None
    ) -> Any:
        values = {"q": q, "k": k, "v": v, "causal": causal, "token_mask": token_mask}
        named = {word: adapter.give(value) for word, value in values.items() if word in adapter.words}
        if "mask" in adapter.words:
            named["mask"] = adapter.shape_mask(mask)
        return to_torch(adapter.module.call(target, **named))

    call = FunctionCall(
        attend,
        HEADS_SECOND,
        ("q", "k", "v"),
        mask="mask" if "mask" in adapter.words else None,
        mask_values="True = may attend" if "mask" in adapter.words else None,
        padding="token_mask" if "token_mask" in adapter.words else None,
        padding_values="True = may attend" if "token_mask" in adapter.words else None,
        causal_flag="causal" if "causal" in adapter.words else None,
    )
    q, k, v = (torch.randn(2, 4, 5, 8, dtype=dtype) for _ in range(3))
    out = attend(q.requires_grad_(), k, v)
    if not isinstance(out, Tensor) or out.shape != q.shape:
        raise ValueError(f"call of the adapter must return an output of shape {tuple(q.shape)}; got {_shape(out)}")
    impl = function_implementation(attend, name, contract, (call, dtype))
    return replace(impl, differentiable=out.requires_grad or not adapter.arrays)


def _sequence(
    target: Any, module: nn.Module | None, name: str, contract: Contract, adapter: Adapter, dtype: torch.dtype
) -> Implementation:
    """The call on tokens or vectors; a size that the adapter does not state is found by trying those of the weights."""
    tokens = "tokens" in adapter.words
    given = adapter.get("VOCAB_SIZE") if tokens else adapter.get("DIM")
    sizes = [] if given is None else [given]
    if given is None and module is not None:
        vocab_size = find_vocab_size(module)
        sizes = find_dims(module) if not tokens else [vocab_size] if vocab_size is not None else []
    if not sizes:
        constant = "VOCAB_SIZE" if tokens else "DIM"
        raise ValueError(f"the adapter {adapter.path} needs a constant {constant}, the size of its input")
    errors: list[Exception] = []
    for size in sizes:
        try:
            return _sequence_of(size, target, module, name, contract, adapter, dtype)
        except ValueError:
            raise
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _sequence_of(
    size: int,
    target: Any,
    module: nn.Module | None,
    name: str,
    contract: Contract,
    adapter: Adapter,
    dtype: torch.dtype,
) -> Implementation:
    tokens = "tokens" in adapter.words

    def run(x: Tensor, token_mask: Tensor | None = None) -> Any:
        causal = contract.kind == "causal"
        values = {"x": x, "tokens": x, "causal": causal, "token_mask": token_mask}
        named = {word: adapter.give(value) for word, value in values.items() if word in adapter.words}
        if "mask" in adapter.words:
            named["mask"] = adapter.shape_mask(
                torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if causal else None
            )
        return to_torch(call_target(adapter.module.call, target, **named))

    multiple, fixed = adapter.get("LENGTH_MULTIPLE", 1), adapter.get("LENGTH")
    impl = Implementation(
        name=name,
        level="model" if tokens else "layer",
        how=f"{name}: {'tokens (b, t)' if tokens else 'vectors (b, t, c)'}",
        run=run,
        vocab_size=size if tokens else None,
        dim=None if tokens else size,
        dtype=dtype,
        module=module,
        takes_padding="token_mask" in adapter.words,
        run_cached=_cached(target, adapter) if adapter.get("step") is not None else None,
        length_multiple=multiple,
        fixed_length=fixed,
        max_length=adapter.get("MAX_LENGTH"),
    )
    impl = replace(impl, length=impl.nearest_length(12))
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(3))
    with torch.enable_grad():
        out = run(x if tokens else x.requires_grad_())
    if not isinstance(out, Tensor) or out.ndim < 2 or out.shape[0] != 2 or not out.is_floating_point():
        raise ValueError(f"call of the adapter must return an output of shape (2, {impl.length}, …); got {_shape(out)}")
    aligned = out.ndim > 2 and out.shape[1] == impl.length
    lower = replace(impl, dtype=torch.float32) if out.dtype == torch.float32 else impl
    rows: Callable[[Tensor], Tensor] = (lambda out: out) if out.ndim > 2 else (lambda out: out[:, None])
    differentiable = out.requires_grad or not adapter.arrays
    return replace(
        lower, run=lambda x, token_mask=None: rows(run(x, token_mask)), aligned=aligned, differentiable=differentiable
    )


def _cached(target: Any, adapter: Adapter) -> Callable[[Sequence[Tensor]], Tensor]:
    start, step = adapter.get("start_cache"), adapter.module.step

    def run_cached(pieces: Sequence[Tensor]) -> Tensor:
        cache = None if start is None else call_target(start, target, pieces[0].shape[0])
        outs = []
        for piece in pieces:
            out, cache = call_target(step, target, adapter.give(piece), cache)
            outs.append(to_torch(out))
        return torch.cat(outs, dim=1)

    return run_cached


def _shape(out: Any) -> str:
    return str(tuple(out.shape)) if isinstance(out, Tensor) else type(out).__name__
