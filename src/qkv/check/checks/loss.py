"""Next-token losses: which position is scored on which token, what a mask leaves out, and what the sum is divided by.

The gradient of a cross-entropy with respect to the logits of a position is softmax − 1 at its target: it is negative at
the target alone. So it shows what each position was compared with, whatever the code looks like.

Axes: b batch · t positions · v vocabulary.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.check.calling.names import LENGTHS
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Finding, Verdict, describe_error

BATCH, LENGTH, VOCAB_SIZE = 2, 8, 24
MASKS = ("mask", "weights", "weight", "present", "valid", "keep")  # and every name with "mask" in it
LABELS = ("labels", "targets", "target", "y")
IGNORE_INDEX = -100
LENGTHS_SWEPT = (3, 12, 24, 33, 50, 65, 100, 129, 257)  # a token more than chunks, and lengths between


@dataclass(frozen=True)
class ScoredPositions:
    """What a loss compares: (row, position, row of the target, position of the target) and the weight of each."""

    pairs: tuple[tuple[int, int, int, int], ...]
    weights: tuple[float, ...]

    @property
    def offsets(self) -> set[int]:
        """How far the target is from the position."""
        return {target - position for row, position, other, target in self.pairs if row == other}

    @property
    def crosses_rows(self) -> bool:
        return any(row != other for row, _, other, _ in self.pairs)

    @property
    def positions(self) -> set[tuple[int, int]]:
        return {(row, position) for row, position, _, _ in self.pairs}

    @property
    def targets(self) -> set[tuple[int, int]]:
        return {(row, target) for _, _, row, target in self.pairs}


def check_loss(function: Callable[..., Any], contract: Contract) -> tuple[str, list[Finding]]:
    """A function loss(logits, tokens), perhaps with a mask; returns how it is called and the findings."""
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    mask = next((name for name in names[2:] if _mask_values(name)), None)
    tokens = unique_tokens()
    meaning = _mask_values(mask)[0][0] if mask is not None else ""
    how = f"a loss of logits (b, t, v) and {names[1]} (b, t){f', {mask}: {meaning}' if mask else ''}"
    own = function
    function = functools.partial(own, **_other_values(parameters, mask))
    plain, everything = function, torch.ones_like(tokens, dtype=torch.bool)
    if mask is not None and parameters[mask].default is inspect.Parameter.empty:
        plain = _with_mask(function, mask, everything, tokens)
    try:
        scored = scored_positions(lambda logits: plain(logits, tokens), tokens)
    except Exception as error:
        raise ValueError(f"the loss could not be called with logits (b, t, v) and tokens (b, t): "
                         f"{describe_error(error)}") from error  # fmt: skip
    inverted = not scored.pairs and plain is not function and mask is not None  # it hides everything
    if inverted and mask is not None:
        plain = _with_mask(function, mask, ~everything, tokens)
        scored = scored_positions(lambda logits: plain(logits, tokens), tokens)

    def at_length(length: int) -> ScoredPositions:
        size = BATCH * length
        tokens = unique_tokens(BATCH, length, size)
        sized = functools.partial(own, **_other_values(parameters, mask, size))
        if plain is not function and mask is not None:
            sized = _with_mask(sized, mask, torch.full_like(tokens, not inverted, dtype=torch.bool), tokens)
        return scored_positions(lambda logits: sized(logits, tokens), tokens, size)

    alignment = check_alignment(scored, contract, names[1])
    if alignment.verdict in ("pass", "described"):
        alignment = check_lengths(scored, at_length) or alignment
    findings = [alignment]
    if mask is not None:
        findings.append(_check_mask(function, plain, tokens, mask))
    findings.append(_check_ignore_index(plain, tokens))
    return how, findings


def _other_values(
    parameters: Mapping[str, inspect.Parameter], mask: str | None, vocab_size: int = VOCAB_SIZE
) -> dict[str, Any]:
    """Values of the required parameters besides logits, tokens and a mask, by words in their names."""
    known: dict[str, Any] = {"vocab": vocab_size, "classes": vocab_size, "reduction": "mean"}
    known |= dict.fromkeys(("ignore", "pad"), IGNORE_INDEX) | dict.fromkeys(("smooth", "eps"), 0.0)
    found = {}
    for name, parameter in itertools.islice(parameters.items(), 2, None):
        word = next((word for word in known if word in name.lower()), None)
        if parameter.default is parameter.empty and name != mask and word is not None:
            found[name] = known[word]
    return found


def _mask_values(name: str) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """What a parameter of this name takes, from a mask (b, t) of scored tokens: likely forms first; [] if no mask."""
    low = name.lower()
    if low in LENGTHS:
        return [("the lengths of the rows", lambda mask: mask.sum(-1))]
    if "pad" in low and "mask" in low:
        return [("1 = not scored", lambda mask: ~mask), ("1 = not scored", lambda mask: (~mask).double())]
    if low in MASKS or "mask" in low:
        kinds = (torch.Tensor.double, torch.Tensor.bool, torch.Tensor.long)
        return [("(b, t), 1 = scored", kind) for kind in kinds]
    return []


def _with_mask(function: Callable[..., Any], parameter: str, mask: Tensor, tokens: Tensor) -> Callable[..., Any]:
    """The loss with this mask (b, t), True = scored, in the first form that it takes."""
    problem: Exception | None = None
    for _, convert in _mask_values(parameter):
        given = functools.partial(function, **{parameter: convert(mask)})
        try:
            scored_positions(lambda logits, given=given: given(logits, tokens), tokens)
        except Exception as error:  # try another dtype of mask
            problem = error
        else:
            return given
    assert problem is not None
    raise problem


def check_own_loss(impl: Implementation, contract: Contract) -> list[Finding]:
    """For a model on tokens that takes labels: the gradient of its loss with respect to the logits that it returns."""
    if impl.module is None or impl.vocab_size is None or impl.source is not None:
        return []
    names = inspect.signature(impl.module.forward).parameters
    label = next((known for known in LABELS if known in names), None)
    if label is None or impl.vocab_size < 2 * impl.length:
        return []
    x = impl.random_input(1, impl.length, torch.Generator().manual_seed(35))
    labels = unique_tokens(1, impl.length, impl.vocab_size)
    name = "loss alignment"
    with torch.enable_grad():
        loss, logits = _loss_and_logits(impl.module(x, **{label: labels}), impl.vocab_size)
        if loss is None or logits is None or not loss.requires_grad:
            return [Finding(name, "n/a", None, "no loss and logits were returned together")]
        (gradient,) = torch.autograd.grad(loss, logits, allow_unused=True)
    if gradient is None or gradient.ndim != 3 or gradient.shape[1] != impl.length:
        return [Finding(name, "n/a", None, "the loss is not computed from the returned logits")]
    scored = read_gradient(gradient.double(), logits.detach().double(), labels)
    return [check_alignment(scored, contract, label)]


def _loss_and_logits(result: Any, vocab_size: int) -> tuple[Tensor | None, Tensor | None]:
    values = [getattr(result, "loss", None), getattr(result, "logits", None)]
    if isinstance(result, dict):
        values += result.values()
    elif isinstance(result, tuple):
        values += result
    tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    loss = next((value for value in tensors if value.numel() == 1), None)
    logits = next((value for value in tensors if value.ndim == 3 and value.shape[-1] == vocab_size), None)
    return loss, logits


def unique_tokens(batch: int = BATCH, length: int = LENGTH, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """Tokens (b, t) of which none occurs twice, so that a target shows its position."""
    order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(31))
    return order[: batch * length].reshape(batch, length)


def scored_positions(loss: Callable[[Tensor], Any], tokens: Tensor, vocab_size: int = VOCAB_SIZE) -> ScoredPositions:
    """Which position a loss of logits scores on which token."""
    generator = torch.Generator().manual_seed(32)
    logits = torch.randn(*tokens.shape, vocab_size, generator=generator, dtype=torch.float64).requires_grad_()
    value = loss(logits)
    value = value[0] if isinstance(value, tuple | list) else value
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return read_gradient(gradient, logits.detach(), tokens)


def read_gradient(gradient: Tensor, logits: Tensor, tokens: Tensor) -> ScoredPositions:
    """The scored positions that a gradient with respect to the logits shows."""
    gradient, probabilities = gradient.nan_to_num(0.0), logits.softmax(-1)  # a mean over nothing scores nothing
    pairs, weights = [], []
    for row in range(tokens.shape[0]):
        for position in range(tokens.shape[1]):
            own = gradient[row, position]
            if float(own.abs().max()) <= 1e-12:
                continue
            target = int(own.argmin())
            places = (tokens == target).nonzero()
            if len(places):
                pairs.append((row, position, int(places[0, 0]), int(places[0, 1])))
                weights.append(float(-own[target] / (1 - probabilities[row, position, target])))
    return ScoredPositions(tuple(pairs), tuple(weights))


def check_alignment(scored: ScoredPositions, contract: Contract, name: str) -> Finding:
    """Whether position i is scored on token i + 1 (or i, if labels come shifted); name: the parameter of the labels."""
    check, family = "loss alignment", "loss shift"
    if not scored.pairs:
        return Finding(check, "inconclusive", None, "no gradient reached the logits")
    offsets = sorted(scored.offsets)
    words = ", ".join(f"i{offset:+d}" if offset else "i" for offset in offsets)
    evidence = f"position i is scored on {name} {words} ({len(scored.pairs)} positions are scored)"
    if scored.crosses_rows:
        hint = "a position is scored on a token of another row: flatten logits and labels after shifting, not before"
        return Finding(check, "fail", 1.0, evidence, hint, family)
    promised = {"next": [1], "same": [0]}.get(contract.loss or "")
    if offsets == promised or (promised is None and offsets in ([0], [1])):
        verdict: Verdict = "pass" if promised else "described"
        note = "; the caller must shift the labels" if offsets == [0] and not promised else ""
        return Finding(check, verdict, 0.0, evidence + note)
    if offsets == [2] or (offsets == [1] and contract.loss == "same"):
        hint = "labels are shifted twice: once by the data or the caller, once by the loss"
    elif offsets == [0]:
        hint = "labels are not shifted: each position is scored on the token that it has just read"
    elif offsets and max(offsets) < 0:
        hint = "labels are shifted the wrong way: each position is scored on a token before it"
    else:
        hint = "logits and labels are cut differently"
    return Finding(check, "fail", 1.0, evidence, hint, family)


def check_lengths(usual: ScoredPositions, at_length: Callable[[int], ScoredPositions]) -> Finding | None:
    """A loss that scores every position at the usual length must do so, with equal weights, at every other length.

    Args:
        usual: what is scored at LENGTH tokens.
        at_length: what is scored at another length; it may raise.
    Returns:
        The failure at the shortest length found, or None.
    """
    if len(usual.offsets) != 1:
        return None
    (offset,) = usual.offsets

    def complete(length: int) -> set[tuple[int, int]]:
        return {(row, i) for row in range(BATCH) for i in range(length) if 0 <= i + offset < length}

    def flaw(length: int) -> str:
        try:
            scored = at_length(length)
        except Exception:  # it takes some lengths only
            return ""
        if scored.crosses_rows or scored.offsets - {offset}:
            return "some positions are scored on other tokens"
        if missing := sorted({i for _, i in complete(length) - scored.positions}):
            return f"no label is used at position {_list(missing)}"
        if equal_weights and max(scored.weights) > 1.01 * min(scored.weights):
            return f"weights of positions differ: {min(scored.weights):.2g} to {max(scored.weights):.2g}"
        return ""

    if usual.positions != complete(LENGTH):  # it scores a part by design
        return None
    equal_weights = max(usual.weights) <= 1.01 * min(usual.weights)
    wrong = [length for length in LENGTHS_SWEPT if flaw(length)]
    if not wrong:
        return None
    first = wrong[0]
    right = max((length for length in (LENGTH, *LENGTHS_SWEPT) if length < first), default=0)
    while first > LENGTH and first - right > 1:
        middle = (first + right) // 2
        first, right = (middle, right) if flaw(middle) else (first, middle)
    longest = flaw(wrong[-1])
    evidence = f"at {first} tokens, {flaw(first)}"
    if wrong[-1] != first:
        evidence = f"{evidence}; at {wrong[-1]} tokens, {longest}"
    evidence = f"{evidence}; at {LENGTH} tokens every position is scored alike"
    if "no label" in longest:
        hint = "labels are lost where one chunk of the sequence ends: shift once, before cutting into chunks"
    elif "weights" in longest:
        hint = "chunks of different lengths count alike: sum over all of them, then divide by the number of labels"
    else:
        hint = "logits and labels are cut differently at this length"
    always = set(wrong) >= {length for length in LENGTHS_SWEPT if length >= first}
    condition = (
        f"{'' if always else 'at some lengths '}from {first} tokens on" if first > LENGTH else f"at {first} tokens"
    )
    return Finding("loss alignment", "fail", 1.0, evidence, hint, "loss shift", condition=condition)


def _list(numbers: list[int]) -> str:
    """The first of some numbers.

    >>> _list([63, 127, 191, 255])
    '63, 127, 191, …'
    """
    return ", ".join(map(str, numbers[:3])) + (", …" if len(numbers) > 3 else "")


def _check_mask(function: Callable[..., Any], plain: Callable[..., Any], tokens: Tensor, parameter: str) -> Finding:
    """Exactly the tokens that the mask leaves out are not scored."""
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 6:] = False
    if parameter.lower() not in LENGTHS:
        mask[0, 3:5] = False
    full = scored_positions(lambda logits: plain(logits, tokens), tokens)
    try:
        given = _with_mask(function, parameter, mask, tokens)
    except Exception as error:
        return Finding("loss mask", "inconclusive", None, f"the call with a mask failed: {describe_error(error)}")
    found = scored_positions(lambda logits: given(logits, tokens), tokens)
    expected = {place for place in full.targets if bool(mask[place])}
    if found.targets == expected:
        return _check_mean(found, tokens.numel())
    evidence = f"{len(found.targets ^ expected)} tokens are scored although masked, or not scored although kept"
    if found.positions == {place for place in full.positions if bool(mask[place])}:
        hint = "the mask is off by one: it is read at the position that predicts, not at the predicted token"
    elif found.targets == full.targets:
        hint = "the mask is not used"
    elif found.targets == full.targets - expected:
        hint = "the mask is inverted"
    else:
        hint = "the mask is cut or shifted differently from the labels"
    return Finding("loss mask", "fail", 1.0, evidence, hint, "loss mask")


def _check_mean(found: ScoredPositions, all_tokens: int) -> Finding:
    """What the sum is divided by: the scored tokens, or all tokens."""
    each, count = found.weights[0], len(found.weights)
    total = each * count
    evidence = f"each of {count} scored tokens has weight {each:.4g}: "
    if abs(total - 1) <= 1e-6:
        return Finding("loss mask", "pass", 0.0, f"{evidence}a mean over the scored tokens")
    if abs(each - 1) <= 1e-6:
        return Finding("loss mask", "pass", 0.0, f"{evidence}a sum")
    if each * all_tokens > 0.5 and total < 1:
        hint = "masked tokens are counted in the mean, so a sequence with more padding learns less"
        evidence = f"{evidence}a mean over tokens that are not scored too"
        return Finding("loss mask", "fail", abs(total - 1), evidence, hint, "loss mean")
    return Finding("loss mask", "described", abs(total - 1), f"{evidence}{total:.4g} in all")


def _check_ignore_index(function: Callable[..., Any], tokens: Tensor) -> Finding:
    """Labels of −100 are not scored, by convention."""
    labels = tokens.clone()
    labels[0, 3:5] = IGNORE_INDEX
    try:
        full, found = (scored_positions(lambda logits, x=x: function(logits, x), tokens) for x in (tokens, labels))
    except Exception as error:  # usually an index out of range
        return Finding("labels of −100", "described", None, f"they raise {type(error).__name__}")
    if found.targets == {place for place in full.targets if int(labels[place]) != IGNORE_INDEX}:
        return Finding("labels of −100", "described", 0.0, "they are not scored")
    return Finding("labels of −100", "described", 1.0, "they are scored, or shift what is scored")
