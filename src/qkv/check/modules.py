"""Modules: attention layers, blocks and models on tokens; how to call them, by their names and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.names import CACHES, CAUSAL, MASKS, PADDING, QUERIES
from qkv.check.subject import Level, Subject, randomised


def module_subject(
    module: nn.Module, name: str, contract: Contract, dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32)
) -> Subject:
    """A module as a subject, with its trainable weights drawn anew; in float64 where it can be."""
    for dtype in dtypes[:-1]:
        try:
            return _module_subject(module, name, contract, dtype)
        except ValueError:  # some kernels know no float64
            continue
    return _module_subject(module, name, contract, dtypes[-1])


def _module_subject(module: nn.Module, name: str, contract: Contract, dtype: torch.dtype) -> Subject:
    module = randomised(module.to(dtype).eval())
    parameters = inspect.signature(module.forward).parameters
    names = list(parameters)
    vocab, width = _vocabulary(module, names), _width(module)
    tried: list[str] = []
    for form, call in _forms(module, names, vocab, width).items():
        x = _sample(2, 8, vocab if form.startswith("tokens") else None, width, dtype)
        try:
            out = output_of(call(x, {}), 2, 8)
        except Exception as error:
            tried.append(f"{form}: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}")
            continue
        if out is not None:
            vocab = vocab if form.startswith("tokens") else None
            return _subject(module, name, contract, form, call, parameters, vocab, width, dtype)
        tried.append(f"{form}: no output of shape (batch, tokens, …)")
    raise ValueError(f"{name} could not be called; tried {'; '.join(tried)}. Declare its sizes with --args")


def _subject(
    module: nn.Module,
    name: str,
    contract: Contract,
    form: str,
    call: Callable[[Tensor, dict[str, Any]], Any],
    parameters: Any,
    vocab: int | None,
    width: int | None,
    dtype: torch.dtype,
) -> Subject:
    fixed, said = _asked(call, parameters, contract, vocab, width, dtype)
    padding = next((known for known in PADDING if known in parameters), None)

    def run(x: Tensor, present: Tensor | None = None) -> Tensor:
        named = {key: value(x) for key, value in fixed.items()}
        if present is not None and padding is not None:
            flags = present if PADDING[padding] else ~present
            named[padding] = flags.long() if "input_ids" in parameters else flags
        out = output_of(call(x, named), *x.shape[:2])
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, tokens, …) for {tuple(x.shape)}")
        return out

    level: Level = "model" if vocab is not None else "layer"
    return Subject(
        name=name,
        level=level,
        how=f"{name}: {form}{said}",
        run=run,
        vocab=vocab,
        width=width,
        dtype=dtype,
        module=module,
        pads=padding is not None,
        cached=_cached(module, call, parameters, fixed, _sample(2, 4, vocab, width, dtype)),
    )


def _forms(
    module: nn.Module, names: list[str], vocab: int | None, width: int | None
) -> dict[str, Callable[[Tensor, dict[str, Any]], Any]]:
    """The ways to call it, likeliest first."""
    forms: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {}
    if vocab is not None:
        forms["tokens (b, t)"] = lambda x, named: module(x, **named)
        if "input_ids" in names:
            forms["tokens (b, t) as input_ids"] = lambda x, named: module(input_ids=x, **named)
    if width is not None:
        if names and names[0].lower() in QUERIES and len(names) >= 3:
            if getattr(module, "batch_first", True):
                forms["vectors (b, t, c) as query, key and value"] = lambda x, named: module(x, x, x, **named)
            else:
                forms["vectors (t, b, c) as query, key and value"] = lambda x, named: _turned(
                    module(*[x.transpose(0, 1)] * 3, **named)
                )
        elif _sequence_first(module):
            forms["vectors (t, b, c)"] = lambda x, named: _turned(module(x.transpose(0, 1), **named))
        forms["vectors (b, t, c)"] = lambda x, named: module(x, **named)
    return forms


def _asked(
    call: Callable[[Tensor, dict[str, Any]], Any],
    parameters: Any,
    contract: Contract,
    vocab: int | None,
    width: int | None,
    dtype: torch.dtype,
) -> tuple[dict[str, Callable[[Tensor], Any]], str]:
    """What every call says: a layer that is causal only when told so is told so, if that was promised."""
    if contract.kind != "causal" or vocab is not None:
        return {}, ""
    flag = next((known for known in CAUSAL if known in parameters), None)
    mask = next((known for known in MASKS if known in parameters and known != "attention_mask"), None)
    if flag is not None and (mask is None or mask == "allowed"):
        return {flag: lambda x: True}, f", {flag}=True"
    if mask is None:
        return {}, ""
    for words, form in (
        ("True = may attend", lambda x: _past(x)),
        ("True = may not attend", lambda x: ~_past(x)),
        ("added", lambda x: torch.zeros(_past(x).shape, dtype=x.dtype).masked_fill(~_past(x), float("-inf"))),
    ):
        if _leaks_nothing(call, mask, form, _sample(1, 6, None, width, dtype)):
            return {mask: form}, f", {mask}= a causal mask ({words})"
    return {}, ""


def _leaks_nothing(call: Callable[..., Any], mask: str, form: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    other = x.clone()
    other[:, -1] = -other[:, -1].flip(-1)  # a shift or a scale alone would be undone by a norm
    try:
        a, b = (output_of(call(y, {mask: form(y)}), 1, 6) for y in (x, other))
    except Exception:  # a form of mask that the layer does not take is one answer fewer
        return False
    return a is not None and b is not None and bool((a - b)[:, :-1].abs().max() < 1e-9 < (a - b)[:, -1].abs().max())


def _gives_cache(call: Callable[..., Any], parameters: Any, fixed: dict[str, Any], sample: Tensor) -> bool:
    """Whether a call hands a cache back."""
    named = {key: value(sample) for key, value in fixed.items()}
    if "use_cache" in parameters:
        named["use_cache"] = True
    try:
        return _held(call(sample, named)) is not None
    except Exception:  # whatever goes wrong here, there is no cache to be had
        return False


def _cached(
    module: nn.Module, call: Callable[..., Any], parameters: Any, fixed: dict[str, Any], sample: Tensor
) -> Callable[[Sequence[Tensor], Sequence[Tensor | None]], Tensor] | None:
    """Run pieces one after another through its cache, where there is one that can be recognised."""
    name = next((known for known in CACHES if known in parameters), None)
    if name is None:
        return None
    fresh = getattr(module, "new_cache", None)
    if fresh is None and not _gives_cache(call, parameters, fixed, sample):
        return None

    def pieces(parts: Sequence[Tensor], flags: Sequence[Tensor | None]) -> Tensor:
        held = None if fresh is None else fresh()
        outs, seen = [], []
        for part, present in zip(parts, flags, strict=True):
            named: dict[str, Any] = {key: value(part) for key, value in fixed.items()} | {name: held}
            if "use_cache" in parameters:
                named["use_cache"] = True
            if present is not None:
                seen.append(present)
                if "attention_mask" in parameters:
                    named["attention_mask"] = torch.cat(seen, dim=1).long()
                elif "present" in parameters:
                    named["present"] = present
            result = call(part, named)
            if fresh is None:
                held = _held(result)
            out = output_of(result, *part.shape[:2])
            if out is None:
                raise ValueError("a call with a cache gave no output of shape (batch, tokens, …)")
            outs.append(out)
        return torch.cat(outs, dim=1)

    return pieces


def _held(result: Any) -> Any:
    """The cache that a call returned."""
    if hasattr(result, "past_key_values"):
        return result.past_key_values
    if isinstance(result, tuple | list) and len(result) > 1:
        return result[-1] if not isinstance(result[1], tuple | list | dict) else result[1]
    raise ValueError("a call with a cache returned none")


def output_of(result: Any, batch: int, tokens: int) -> Tensor | None:
    """The first output that has a row for each token."""
    if isinstance(result, Tensor):
        fits = result.ndim >= 2 and tuple(result.shape[:2]) == (batch, tokens) and result.is_floating_point()
        return result if fits else None
    if hasattr(result, "logits") or hasattr(result, "last_hidden_state"):
        return (
            output_of(getattr(result, "logits", None), batch, tokens)
            if hasattr(result, "logits")
            else output_of(result.last_hidden_state, batch, tokens)
        )
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    return next((out for part in parts if (out := output_of(part, batch, tokens)) is not None), None)


def _vocabulary(module: nn.Module, names: list[str]) -> int | None:
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    if not tables or (names and names[0] in ("x", "hidden_states") and not _reads_tokens(module)):
        return None
    for holder in (getattr(module, "config", None), module):
        for known in ("vocab_size", "vocab", "n_vocab"):
            if isinstance(size := getattr(holder, known, None), int):
                return size
    named = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    likely = [part for name, part in named if "pos" not in name.lower()]
    return (likely or tables)[0].num_embeddings


def _reads_tokens(module: nn.Module) -> bool:
    return any(isinstance(child, nn.Embedding) for child in module.children())


def _width(module: nn.Module) -> int | None:
    for name in ("embed_dim", "d_model", "width", "dim", "hidden_size", "n_embd"):
        if isinstance(size := getattr(module, name, None), int):
            return size
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            return part.normalized_shape[-1]
        if isinstance(part, nn.Linear):
            return part.in_features
    return None


def _sequence_first(module: nn.Module) -> bool:
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


def _turned(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.transpose(0, 1)
    return (result[0].transpose(0, 1), *result[1:])


def _past(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


def _sample(batch: int, length: int, vocab: int | None, width: int | None, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if vocab is not None:
        return torch.randint(0, vocab, (batch, length), generator=generator)
    return torch.randn(batch, length, width or 1, generator=generator, dtype=dtype)
