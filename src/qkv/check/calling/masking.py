"""How the sequence of a module is masked: a causal mask, padding, the lengths of rows; by names and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.forms import CallForm, padding_argument
from qkv.check.calling.mask_forms import (
    KEY_SHAPES,
    VALUES,
    MaskForm,
    change_token,
    choose_mask,
    find_mask_form,
    find_pair_form,
    polarity_of,
)
from qkv.check.calling.names import CAUSAL_FLAGS, LENGTHS, PADDING_MASKS, Parameters, mask_names, padding_names
from qkv.check.calling.outputs import find_output, find_rows
from qkv.check.contract import Contract


@dataclass(frozen=True)
class Masking:
    """How a sequence is masked.

    Args:
        causal_flag: a flag that makes it causal.
        mask: the form of its mask; `causal` says whether a causal one is passed.
        padding: the form of a mask that marks real tokens.
        token_mask: a padding parameter that is known by its name and takes (b, t).
        lengths: a parameter that takes the number of real tokens of each row.
        pad_id: the token that marks padding; then no argument does.
        polarity: what the values of its mask mean, as a contract says it; None without a mask.
        pairs: the form of a mask of pairs of tokens that it takes, also if nothing has to be passed.
    """

    causal_flag: str | None = None
    mask: MaskForm | None = None
    causal: bool = False
    padding: MaskForm | None = None
    token_mask: str | None = None
    lengths: str | None = None
    pad_id: int | None = None
    polarity: str | None = None
    pairs: MaskForm | None = None

    @property
    def takes_padding(self) -> bool:
        combined = self.mask is not None and self.mask.batched
        return bool(self.token_mask or self.lengths) or self.padding is not None or combined or self.pad_id is not None

    @property
    def adds_padding(self) -> bool:
        """Whether padding is a mask that is added, with −∞ for what is hidden."""
        return any(form is not None and form.values.startswith("added") for form in (self.mask, self.padding))

    @property
    def sides(self) -> tuple[str, ...]:
        """Where padding may be: lengths only say where it begins on the right."""
        return ("right",) if self.lengths is not None else ("right", "left", "holes")

    def arguments(self, x: Tensor, token_mask: Tensor | None, dtype: torch.dtype) -> dict[str, Any]:
        """The keyword arguments of one call, on the device of the input; float masks in its dtype."""
        dtype = x.dtype if x.is_floating_point() else dtype
        named: dict[str, Any] = {} if self.causal_flag is None else {self.causal_flag: True}
        t = x.shape[1]
        if self.mask is not None and (self.causal or token_mask is not None):
            mask = torch.ones(x.shape[0], t, t, dtype=torch.bool)
            mask = mask.tril() if self.causal else mask
            if token_mask is not None and not (self.padding or self.token_mask or self.lengths):
                mask = mask & token_mask[:, None]
            named[self.mask.parameter] = self.mask(mask, dtype)
        if token_mask is not None and self.token_mask is not None:
            named[self.token_mask] = padding_argument(self.token_mask, token_mask, PADDING_MASKS)
        elif token_mask is not None and self.lengths is not None:
            named[self.lengths] = token_mask.sum(1)
        elif token_mask is not None and self.padding is not None:
            named[self.padding.parameter] = self.padding(token_mask, dtype)
        return {name: value.to(x.device) if isinstance(value, Tensor) else value for name, value in named.items()}

    def __str__(self) -> str:
        words = f", {self.causal_flag}=True" if self.causal_flag else ""
        if self.causal and self.mask:
            words += f", a causal mask as {self.mask}"
        if self.token_mask or self.padding or self.lengths:
            words += f", padding as {self.token_mask or self.padding or self.lengths}"
        return words if self.pad_id is None else f"{words}, padding as token {self.pad_id}"


# padding masks of which True means a real token as often as padding: what works decides
AMBIGUOUS = ("padding_mask", "pad_mask", "key_mask", "kv_mask", "seq_mask", "input_mask")


def find_masking(
    form: CallForm, parameters: Parameters, contract: Contract, dtype: torch.dtype, length: int = 6
) -> Masking:
    """How to pass a causal mask and padding, and what the values of its mask mean."""
    found = _find_masking(form, parameters, contract, dtype, length)
    x = form.sample(2, length, dtype)

    def run(x: Tensor, tried: MaskForm, mask: Tensor) -> Tensor | None:
        named = found.arguments(x, None, dtype) | {tried.parameter: tried(mask, dtype)}
        return find_output(form.call(x, named), *x.shape[:2])

    names = [known for known in mask_names(parameters) if known != found.token_mask]
    found = replace(found, pairs=find_pair_form(names, run, x, contract.mask) if length > 3 else None)
    if contract.mask is None:
        return found
    return replace(found, polarity=_measure_polarity(form, parameters, contract, dtype, length))


def _measure_polarity(
    form: CallForm, parameters: Parameters, contract: Contract, dtype: torch.dtype, length: int
) -> str | None:
    """What the values of its mask mean: the promised meaning if that works, else any that does."""
    x = form.sample(2, length, dtype)

    def run(x: Tensor, tried: MaskForm, mask: Tensor) -> Tensor | None:
        return find_output(form.call(x, {tried.parameter: tried(mask, dtype)}), *x.shape[:2])

    pairs = mask_names(parameters)
    keys = [known for known in parameters if known in (*PADDING_MASKS, *pairs)]
    for promised in (contract.mask, None):
        for names, marks_keys in ((pairs, False), (keys, True)):
            mask = find_mask_form(names, run, x, promised, keys=marks_keys)
            if mask is not None:
                return polarity_of(mask.values)
    return None


def _find_masking(
    form: CallForm, parameters: Parameters, contract: Contract, dtype: torch.dtype, length: int
) -> Masking:
    """How to pass a causal mask and padding: by parameter names that are known, else by trying."""
    reads_tokens = form.reads == "tokens"
    token_mask = next((known for known in PADDING_MASKS if known in parameters), None)
    any_form = token_mask == "attention_mask" and not reads_tokens  # in a layer it may have any form
    if any_form or (token_mask in AMBIGUOUS and contract.mask is None):
        token_mask = None
    masks = [known for known in mask_names(parameters) if known != token_mask]
    causal = contract.kind == "causal"
    x = form.sample(2, length, dtype)
    lengths = next((known for known in LENGTHS if known in parameters), None)
    flag = next((known for known in CAUSAL_FLAGS if known in parameters), None)
    if flag is not None and causal and not reads_tokens and (not masks or _is_causal(form, x, {flag: True})):
        return Masking(causal_flag=flag, token_mask=token_mask, lengths=None if token_mask else lengths)

    def run(x: Tensor, tried: MaskForm, mask: Tensor) -> Tensor | None:
        return find_output(form.call(x, {tried.parameter: tried(mask, dtype)}), *x.shape[:2])

    mask = find_mask_form(masks, run, x, contract.mask, keys=False)
    if mask is not None and (causal or (token_mask is None and mask.batched)) and not _is_causal(form, x, {}):
        return Masking(mask=mask, causal=causal, token_mask=token_mask, lengths=None if token_mask else lengths)
    if lengths is not None and token_mask is None:
        return Masking(lengths=lengths)
    if token_mask is not None:
        return Masking(token_mask=token_mask)
    others = [known for known in masks if mask is None or known != mask.parameter]
    named = [known for known in AMBIGUOUS if known in parameters] + padding_names(parameters)
    others = named + others
    padding = find_mask_form(others, run, x, contract.mask, keys=True)
    if padding is None and named:  # no form works as it should: judge it with the usual one
        return Masking(token_mask=named[0])
    if padding is None and "attention_mask" in parameters and _takes_token_mask(form, x):
        return Masking(token_mask="attention_mask")  # no form works as it should: judge it with the usual one
    return Masking(mask=mask if not causal else None, padding=padding)


def find_row_padding(
    form: CallForm, parameters: Parameters, contract: Contract, dtype: torch.dtype, length: int
) -> Masking:
    """How padding is passed to a module whose outputs are not aligned with its inputs, such as a Perceiver.

    If padding is promised and no form hides it, the usual form that changes the output is for the checks to judge.
    """
    x = form.sample(2, length, dtype)
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    real[:, 1:3] = False
    names = [known for known in parameters if known in (*PADDING_MASKS, *mask_names(parameters))]

    forms = [
        MaskForm(parameter, shape, values, keys=True)
        for parameter, shape in product(names, KEY_SHAPES)
        for values in sorted(VALUES, key=lambda values: ("may not" in values) == PADDING_MASKS.get(parameter, True))
    ]

    def run(y: Tensor, tried: MaskForm) -> Tensor | None:
        return find_rows(form.call(y, {tried.parameter: tried(real, dtype)}), len(y))

    def measure() -> Iterator[tuple[MaskForm, Tensor]]:
        """Each form that it takes, with the effect of each token on the output."""
        for tried in forms:
            try:
                outs = [run(y, tried) for y in (x, *(change_token(x, token) for token in range(length)))]
            except Exception:  # it does not take this form
                continue
            before, *after = (out for out in outs if out is not None and bool(out.isfinite().all()))
            if len(after) == length:
                yield tried, torch.stack([(out - before).abs().max() for out in after])

    found, seen = [], real[0]
    for tried, effects in measure():
        found.append((tried, float(effects[~seen].max()), effects[seen]))
        if float(effects[seen].min()) > 1e-6 and found[-1][1] <= 1e-9 * float(effects[seen].min()):
            return Masking(padding=tried)
    padding = choose_mask((tried, hidden, float(visible.min())) for tried, hidden, visible in found)
    if padding is None and contract.padding:
        plain = find_rows(form.call(x, {}), len(x))
        for usual in (tried for tried, _, visible in found if float((visible > 0).float().mean()) >= 0.5):
            out = run(x, usual)
            if plain is not None and out is not None and float((out - plain).abs().max()) > 1e-9:
                return Masking(padding=usual)
    return Masking(padding=padding)


@contextmanager
def padded_by_id(module: nn.Module, tokens: Tensor, token_mask: Tensor | None, pad_id: int | None) -> Iterator[Tensor]:
    """The tokens with the pad id at padded places; embeddings see what was there, so that its content can differ."""
    if token_mask is None or pad_id is None:
        yield tokens
        return
    shown = tokens.masked_fill(~token_mask, pad_id)

    def embed_content(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        for given, content in ((shown, tokens), (shown.T, tokens.T)):
            if inputs and isinstance(inputs[0], Tensor) and torch.equal(inputs[0], given):
                return (content, *inputs[1:])
        return None

    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                hooks.callback(part.register_forward_pre_hook(embed_content).remove)
        yield shown


def find_pad_id(module: nn.Module, size: int, run: Callable[[Tensor], Tensor | None], x: Tensor) -> int | None:
    """The token that marks padding: changing its content changes no other output. Else one that some mask is made of.

    Else the one that names say.

    Args:
        size: of the vocabulary.
        run: from tokens to the output, or None.
    """
    named = list(_named_pad_ids(module, size))
    real = torch.ones(x.shape[:2], dtype=torch.bool)
    real[:, 1] = False
    known = list(dict.fromkeys((*named, *_global_pad_ids(module, size), 0)))
    for pad_id in known:
        outs = []
        for content in (x, change_token(x, 1), change_token(x, 0)):
            with padded_by_id(module, content, real, pad_id) as shown:
                outs.append(run(shown))
        if any(out is None for out in outs):
            return None
        effects = [(out - outs[0]).abs().flatten(2).amax((0, 2)) for out in outs[1:]]
        if len(effects[0]) == x.shape[1]:  # the output of the padded token itself may be anything
            effects = [effect[real[0]] for effect in effects]
        if float(effects[0].max()) <= 1e-9 * float(effects[1].max()):
            return pad_id
    compared = next((pad_id for pad_id in known if _is_compared_with(module, run, x, real, pad_id, size)), None)
    return next(iter(named), None) if compared is None else compared


def _is_compared_with(
    module: nn.Module, run: Callable[[Tensor], Tensor | None], x: Tensor, real: Tensor, pad_id: int, size: int
) -> bool:
    """Whether a token matters beside its embedding, as in `ids != pad_id`, though a part may not use that mask.

    Embeddings see the same content in all calls. Another token in its place must change nothing: else tokens are read
    in another way.
    """
    other = next((token for token in range(size - 1, 0, -1) if token != pad_id and not bool((x == token).any())), None)
    plain, outs = run(x), []
    for token in (pad_id, other):
        if token is None:
            return False
        with padded_by_id(module, x, real, token) as shown:
            outs.append(run(shown))
    if plain is None or any(out is None for out in outs):
        return False
    effects = [float((out - plain).abs().max()) for out in outs if out is not None]
    return effects[0] > 1e-6 * float(plain.abs().max()) and effects[1] <= 1e-9 * float(plain.abs().max())


def _global_pad_ids(module: nn.Module, size: int) -> Iterator[int]:
    """The constants beside the code of a module that call themselves padding, such as PAD_ID."""
    known = getattr(type(module).forward, "__globals__", {})
    for name, value in known.items():
        if "pad" in name.lower() and type(value) is int and 0 <= value < size:
            yield value


def _named_pad_ids(module: nn.Module, size: int) -> Iterator[int]:
    """Tokens that the attributes of a module, of its parts or of their configs call padding."""
    for part in module.modules():
        for holder in (part, getattr(part, "config", None), getattr(part, "cfg", None)):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                says = "pad" in name.lower() and any(word in name.lower() for word in ("id", "tok", "index"))
                if (says or name.lower() == "pad") and type(value) is int and 0 <= value < size:
                    yield value


def _takes_token_mask(form: CallForm, x: Tensor) -> bool:
    """Whether it can be called with attention_mask (b, t), 1 for real tokens."""
    try:
        return find_output(form.call(x, {"attention_mask": torch.ones(x.shape[:2]).long()}), *x.shape[:2]) is not None
    except Exception:
        return False


def _is_causal(form: CallForm, x: Tensor, named: dict[str, Any]) -> bool:
    """Whether it is causal when called so: changing the last token changes no earlier output."""
    other = x.clone()
    other[:, -1] = x[:, 0]
    try:
        a, b = (find_output(form.call(y, dict(named)), *x.shape[:2]) for y in (x, other))
    except Exception:  # it needs its mask
        return False
    return a is not None and b is not None and bool((a - b)[:, :-1].abs().max() <= 1e-9 * a.abs().max())
