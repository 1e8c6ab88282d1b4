"""Losses of next tokens: which place predicts which token, what a mask leaves out, and what is divided by.

Axes: b batch · t places · v vocabulary.

The gradient of a cross-entropy with respect to the logits of a place is softmax − 1 at its target: it is negative at
the target alone, so it says what each place was compared with, whatever the code looks like.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding, Verdict

BATCH, PLACES, VOCABULARY = 2, 8, 24
MASKS = ("mask", "loss_mask", "weights", "weight", "attention_mask", "token_mask", "label_mask", "present")
IGNORED = -100


@dataclass(frozen=True)
class Compared:
    """For each place that is scored: (row, place, row of the target, place of the target) and its weight."""

    pairs: tuple[tuple[int, int, int, int], ...]
    weights: tuple[float, ...]

    @property
    def offsets(self) -> set[int]:
        return {target - place for row, place, other, target in self.pairs if row == other}

    @property
    def crossed(self) -> bool:
        return any(row != other for row, _, other, _ in self.pairs)

    @property
    def targets(self) -> set[tuple[int, int]]:
        return {(row, target) for _, _, row, target in self.pairs}


def check_loss(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """A function loss(logits, tokens), perhaps with a mask."""
    names = list(inspect.signature(function).parameters)
    mask = next((name for name in names[2:] if name.lower() in MASKS), None)
    tokens = unique_tokens()
    how = f"a loss of logits (b, t, v) and {names[1]} (b, t){f', {mask} (b, t): 1 = scored' if mask else ''}"
    compared = compare(lambda logits: function(logits, tokens), tokens)
    findings = [alignment(compared, contract, names[1])]
    if mask is not None:
        findings.append(_masked(function, tokens, mask, contract))
    findings.append(_ignored(function, tokens, contract))
    return how, findings


def unique_tokens(batch: int = BATCH, places: int = PLACES, vocabulary: int = VOCABULARY) -> Tensor:
    """Tokens of which none comes twice, so that a target says where it stands."""
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(31))
    return order[: batch * places].reshape(batch, places)


def compare(loss: Callable[[Tensor], Any], tokens: Tensor, vocabulary: int = VOCABULARY) -> Compared:
    """Which place is compared with which token."""
    generator = torch.Generator().manual_seed(32)
    logits = torch.randn(*tokens.shape, vocabulary, generator=generator, dtype=torch.float64).requires_grad_()
    value = loss(logits)
    value = value[0] if isinstance(value, tuple | list) else value
    (slope,) = torch.autograd.grad(value.sum(), logits)
    return read(slope, logits.detach(), tokens)


def read(slope: Tensor, logits: Tensor, tokens: Tensor) -> Compared:
    """The gradient as comparisons."""
    chances = logits.softmax(-1)
    pairs, weights = [], []
    for row in range(tokens.shape[0]):
        for place in range(tokens.shape[1]):
            own = slope[row, place]
            if float(own.abs().max()) <= 1e-12:
                continue
            target = int(own.argmin())
            there = (tokens == target).nonzero()
            if len(there):
                pairs.append((row, place, int(there[0, 0]), int(there[0, 1])))
                weights.append(float(-own[target] / (1 - chances[row, place, target])))
    return Compared(tuple(pairs), tuple(weights))


def alignment(compared: Compared, contract: Contract, name: str) -> Finding:
    """Whether place i is compared with token i + 1 (or i, where labels come shifted)."""
    if not compared.pairs:
        return Finding("loss alignment", "inconclusive", None, "no gradient reached the logits")
    offsets = sorted(compared.offsets)
    said = ", ".join(f"i{offset:+d}" if offset else "i" for offset in offsets)
    evidence = f"place i is compared with {name} {said} ({len(compared.pairs)} places are scored)"
    if compared.crossed:
        hint = "a place is compared with a token of another row: flatten logits and labels after shifting, not before"
        return Finding("loss alignment", "fail", 1.0, evidence, hint, "loss shift")
    promised = {"next": [1], "same": [0]}.get(contract.loss or "")
    if offsets == promised or (promised is None and offsets in ([0], [1])):
        verdict: Verdict = "pass" if promised else "described"
        note = "; the caller must shift the labels" if offsets == [0] and not promised else ""
        return Finding("loss alignment", verdict, 0.0, evidence + note)
    if offsets == [2] or (offsets == [1] and contract.loss == "same"):
        hint = "labels are shifted twice: once by the data or the caller, once in here"
    elif offsets == [0]:
        hint = "labels are not shifted: each place is asked for the token that it has just read"
    elif offsets and max(offsets) < 0:
        hint = "labels are shifted the wrong way: each place is asked for a token before it"
    else:
        hint = "logits and labels are cut differently"
    return Finding("loss alignment", "fail", 1.0, evidence, hint, "loss shift")


def _masked(function: Callable[..., Any], tokens: Tensor, name: str, contract: Contract) -> Finding:
    """A token that the mask leaves out is not scored, and is the only one that is not."""
    flags = torch.ones_like(tokens, dtype=torch.bool)
    flags[0, 3:5], flags[1, 6:] = False, False
    full = compare(lambda logits: function(logits, tokens), tokens)
    for form in (flags.double(), flags, flags.long()):
        try:
            found = compare(lambda logits, form=form: function(logits, tokens, **{name: form}), tokens)
            break
        except Exception as error:  # another form of mask is tried
            said = f"{type(error).__name__}: {error}"
    else:
        return Finding("loss mask", "inconclusive", None, f"the call with a mask failed: {said}")
    right = {pair for pair in full.targets if bool(flags[pair])}
    if found.targets == right:
        return _mean(found, tokens.numel())
    evidence = (
        f"{len(found.targets ^ right)} tokens are scored that the mask leaves out, or not scored though it keeps them"
    )
    places = {(row, place) for row, place, _, _ in found.pairs}
    if places == {(row, place) for row, place, _, _ in full.pairs if bool(flags[row, place])}:
        hint = "the mask is off by one: it is read at the place that predicts, not at the token that is predicted"
    elif found.targets == full.targets:
        hint = "the mask is not used"
    elif found.targets == full.targets - right:
        hint = "the mask is used the other way round"
    else:
        hint = "the mask is cut or shifted differently from the labels"
    return Finding("loss mask", "fail", 1.0, evidence, hint, "loss mask")


def _mean(found: Compared, whole: int) -> Finding:
    """What the sum is divided by: the tokens that are scored, or all of them."""
    each, count = found.weights[0], len(found.weights)
    total = each * count
    evidence = f"each of {count} scored tokens weighs {each:.4g}: "
    if abs(total - 1) <= 1e-6:
        return Finding("loss mask", "pass", 0.0, f"{evidence}a mean over what is scored")
    if abs(each - 1) <= 1e-6:
        return Finding("loss mask", "pass", 0.0, f"{evidence}a sum")
    hint = "masked tokens are counted in the mean, so a text with more padding learns less"
    if each * whole > 0.5 and total < 1:
        return Finding(
            "loss mask", "fail", abs(total - 1), f"{evidence}a mean over what is not scored too", hint, "loss mean"
        )
    return Finding("loss mask", "described", abs(total - 1), f"{evidence}they weigh {total:.4g} in all")


def _ignored(function: Callable[..., Any], tokens: Tensor, contract: Contract) -> Finding:
    """Labels of −100 are left out, by the custom of the field."""
    labels = tokens.clone()
    labels[0, 3:5] = IGNORED
    try:
        full, found = (compare(lambda logits, x=x: function(logits, x), tokens) for x in (tokens, labels))
    except Exception as error:  # indices out of range are the usual answer
        return Finding("labels of −100", "described", None, f"they are refused: {type(error).__name__}")
    kept = {pair for pair in full.targets if int(labels[pair]) != IGNORED}
    if found.targets == kept:
        return Finding("labels of −100", "described", 0.0, "they are not scored")
    return Finding("labels of −100", "described", 1.0, "they are scored, or shift what is scored")
