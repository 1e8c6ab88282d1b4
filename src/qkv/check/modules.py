"""Modules: layers, blocks and models on tokens, on images or on pairs; how to call them, by names and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.caches import cached
from qkv.check.contract import Contract
from qkv.check.finding import told
from qkv.check.forms import Form, Parameters, forms
from qkv.check.images import image_subject
from qkv.check.mask_forms import MaskForm, find_form
from qkv.check.names import CAUSAL, MASKS, PADDING
from qkv.check.outputs import every, output_of
from qkv.check.pairs import pair_subject
from qkv.check.subject import Subject, randomised


def module_subject(
    module: nn.Module,
    name: str,
    contract: Contract,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    *,
    drawn: bool = True,
) -> Subject:
    """A module as a subject, with its trainable weights `drawn` anew unless told not to; in float64 where it can be."""
    tried: dict[str, str] = {}
    for dtype in dtypes:
        module = module.to(dtype).eval()
        module = randomised(module) if drawn else module
        with torch.no_grad():
            for find in (pair_subject, image_subject, _sequence_subject):
                if (subject := find(module, name, contract, dtype, tried)) is not None:
                    return subject
    said = (
        "; ".join(f"{form}: {error}" for form, error in list(tried.items())[:4]) or "nothing that fits its parameters"
    )
    raise ValueError(
        f"{name} could not be called; tried {said}. Declare its sizes with --args, or its call with --call"
    )


def _sequence_subject(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Subject | None:
    parameters = inspect.signature(module.forward).parameters
    for form in forms(module, parameters):
        try:
            out = output_of(form.call(form.sample(2, 8, dtype), {}), 2, 8)
        except Exception as error:
            tried.setdefault(form.words, told(error))
            continue
        if out is not None:
            return _subject(module, name, form, masking(form, parameters, contract, dtype), parameters, dtype)
        tried.setdefault(form.words, "no output of shape (batch, tokens, …)")
    return None


@dataclass(frozen=True)
class Masking:
    """How a sequence is masked: a causal flag, a mask that is causal, and what says which tokens exist."""

    flag: str | None = None
    mask: MaskForm | None = None
    past: bool = False
    padding: MaskForm | None = None
    counts: str | None = None  # a parameter of padding that is known by its name, and takes (b, t) flags

    def named(self, x: Tensor, present: Tensor | None, dtype: torch.dtype) -> dict[str, Any]:
        """The arguments of one call."""
        named: dict[str, Any] = {} if self.flag is None else {self.flag: True}
        t = x.shape[1]
        if self.mask is not None and (self.past or present is not None):
            allowed = torch.ones(x.shape[0], t, t, dtype=torch.bool)
            allowed = allowed.tril() if self.past else allowed
            if present is not None and self.padding is None and self.counts is None:
                allowed = allowed & present[:, None]
            named[self.mask.parameter] = self.mask(allowed, dtype)
        if present is not None and self.counts is not None:
            flags = present if PADDING[self.counts] else ~present
            named[self.counts] = flags.long() if self.counts.endswith("attention_mask") else flags
        elif present is not None and self.padding is not None:
            named[self.padding.parameter] = self.padding(present, dtype)
        return named

    @property
    def pads(self) -> bool:
        combined = self.mask is not None and self.mask.batched
        return self.counts is not None or self.padding is not None or combined

    def __str__(self) -> str:
        said = [f"{self.flag}=True"] if self.flag else []
        said += [f"a causal mask as {self.mask}"] if self.past and self.mask else []
        said += [f"padding as {self.counts}"] if self.counts else [f"padding as {self.padding}"] if self.padding else []
        return "".join(f", {words}" for words in said)


def masking(form: Form, parameters: Parameters, contract: Contract, dtype: torch.dtype) -> Masking:
    """How a causal kind and padding are said to it: by names that are known, else by trying."""
    tokens = form.reads == "tokens"
    counts = next((known for known in PADDING if known in parameters), None)
    if counts == "attention_mask" and not tokens:  # of a layer: it may be of any form
        counts = None
    masks = [known for known in MASKS if known in parameters and known != counts]
    causal = contract.kind == "causal"
    flag = next((known for known in CAUSAL if known in parameters), None) if causal and not tokens else None
    if flag is not None and (not masks or masks[0] == "allowed"):
        return Masking(flag=flag, counts=counts)

    def run(x: Tensor, tried: MaskForm, flags: Tensor) -> Tensor | None:
        return output_of(form.call(x, {tried.parameter: tried(flags, dtype)}), *x.shape[:2])

    x = form.sample(2, 6, dtype)
    mask = next((found for known in masks if (found := find_form(known, run, x, contract.mask, keys=False))), None)
    if mask is not None and (causal or (counts is None and mask.batched)) and not _is_causal(form, x):
        return Masking(mask=mask, past=causal, counts=counts)
    if counts is not None:
        return Masking(counts=counts)
    others = [known for known in masks if mask is None or known != mask.parameter]
    padding = next((found for known in others if (found := find_form(known, run, x, contract.mask, keys=True))), None)
    if padding is None and "attention_mask" in parameters and _takes_flags(form, x):
        return Masking(counts="attention_mask")  # no form does what it should: what it makes of the usual one is judged
    return Masking(mask=mask if not causal else None, padding=padding)


def _takes_flags(form: Form, x: Tensor) -> bool:
    """Whether it can be called with attention_mask (b, t), 1 where a token exists."""
    try:
        return output_of(form.call(x, {"attention_mask": torch.ones(x.shape[:2]).long()}), *x.shape[:2]) is not None
    except Exception:
        return False


def _is_causal(form: Form, x: Tensor) -> bool:
    """Whether it is causal without being told so: then a mask that is handed in is one of padding."""
    other = x.clone()
    other[:, -1] = x[:, 0]
    try:
        a, b = (output_of(form.call(y, {}), *x.shape[:2]) for y in (x, other))
    except Exception:  # it wants its mask
        return False
    return a is not None and b is not None and bool((a - b)[:, :-1].abs().max() <= 1e-9 * a.abs().max())


def _subject(
    module: nn.Module, name: str, form: Form, masks: Masking, parameters: Parameters, dtype: torch.dtype
) -> Subject:
    def run(x: Tensor, present: Tensor | None = None) -> Tensor:
        out = output_of(form.call(x, masks.named(x, present if masks.pads else None, dtype)), *x.shape[:2])
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, tokens, …) for {tuple(x.shape)}")
        return out

    tokens = form.reads == "tokens"
    fixed: dict[str, Callable[[Tensor], Any]] = {
        key: lambda x, key=key: masks.named(x, None, dtype)[key]
        for key in masks.named(form.sample(1, 2, dtype), None, dtype)
    }
    found = cached(module, form.call, parameters, fixed, masks.counts, form.sample(2, 6, dtype))
    return Subject(
        name=name,
        level="model" if tokens else "layer",
        how=f"{name}: {form.words}{masks}{f', cache as {found[0]}' if found else ''}",
        run=run,
        vocab=form.size if tokens else None,
        width=None if tokens else form.size,
        dtype=dtype,
        module=module,
        pads=masks.pads,
        cached=found[1] if found else None,
        every=lambda x: every(form.call(x, masks.named(x, None, dtype))),
    )
