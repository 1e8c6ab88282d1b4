"""Results of a check: Finding, Report, Diagnosis and the bug families with their usual fixes, as plain data."""

from dataclasses import asdict, dataclass, field
from typing import Literal

from qkv.check.contract import Contract

Verdict = Literal["pass", "fail", "warn", "inconclusive", "described", "n/a"]

# The families of known bugs, and the usual fix of each.
BUG_FAMILIES = {
    "no mask": "add the causal mask on this path, before the softmax",
    "mask off by one": "a query sees keys up to and including itself: use tril(), not tril(-1) or tril(1)",
    "mask transposed": "allow key ≤ query: tril, not triu",
    "mask not −∞": "fill masked scores with −∞, so that nothing comes through",
    "mask after softmax": "put −∞ into the scores before the softmax",
    "mask polarity": "invert the mask, or swap the branches of where or masked_fill",
    "mask with cache": "with a KV cache, align the mask at the end: allow key ≤ query + (keys − queries)",
    "alignment": "with more keys than queries, align the mask at the end: allow key ≤ query + (keys − queries)",
    "mask dropped": "pass the mask on, also when queries and keys have different lengths",
    "leak": "find what reads the whole sequence: a mean, a norm, blocks, a mask that is built or sliced wrongly",
    "window": "a window of W sees keys from query − W + 1 to query: check the inequality",
    "softmax axis": "take the softmax over the keys, the last axis of q·kᵀ",
    "softmax replaced": "use a softmax over the keys",
    "scale": "multiply q·k by 1/√(head dim), once, before the softmax",
    "scores changed": "scores are q·k times the scale, nothing else",
    "low precision": "compute scores, angles and softmax in float32 at least",
    "overflow": "subtract the row's maximum before exp, or use torch.softmax",
    "fully masked row": "a softmax over −∞ alone is NaN: give such rows weights of 0",
    "heads mixed": "split with view(b, t, h, d).transpose(1, 2) and merge with transpose(1, 2).reshape(b, t, h·d)",
    "head layout": "share keys and values alike: repeat_interleave (0 0 1 1), not repeat (0 1 0 1)",
    "inputs swapped": "scores are q·k, the output is weights · v",
    "rotary": "rotate queries and keys alike, by position × frequency, over the whole head dim, and nothing else",
    "positions": "let positions depend on where a token is, not on the sequence length",
    "alibi": "the slopes of h heads are 2^(−8/h), 2^(−16/h), …, 2^(−8)",
    "sink": "include the sink's score in every softmax",
    "cache order": "append new keys and values after the cached ones, and keep all of them",
    "positions with cache": "offset positions by the length of the cache",
    "padding": "mask the padded keys of each row, before the softmax, with the right polarity",
    "batch mixed": "nothing may run over the batch axis: check norms, means and views",
    "random in eval": "apply dropout only if self.training (functional dropout is on by default)",
    "input changed": "do not write into the caller's tensor: no trailing underscore, no assignment to a slice",
    "detached": "remove the detach, no_grad, item or numpy between input and output",
    "unreached": "use the parameter, or remove it",
    "paths differ": "both paths must compute the same: mask, scale, dropout and positions alike",
    "untied": "tie the weights again after loading",
    "loss shift": "shift once: logits[:, :-1] against tokens[:, 1:]",
    "loss mask": "shift the mask as the labels are shifted, and leave padding out",
    "loss mean": "divide by the number of scored tokens",
    "accumulation": "divide each micro-batch's loss once, by the size of the whole batch; step on the leftover batches",
    "packing": "mask between documents, and restart positions in each",
    "split": "split before cutting into windows and shuffling, so that no example is on both sides",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The likely bug: its family (a key of BUG_FAMILIES), what is wrong, and the layer if there are several."""

    family: str
    words: str
    where: str = ""

    def __post_init__(self) -> None:
        if self.family not in BUG_FAMILIES:
            raise ValueError(f"there is no bug family {self.family!r}; families are {', '.join(BUG_FAMILIES)}")

    @property
    def hint(self) -> str:
        """The words with the layer, the family and the usual fix."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.words} [{self.family}]: {BUG_FAMILIES[self.family]}"


@dataclass(frozen=True)
class Finding:
    """One property of an implementation, judged or described.

    Args:
        check: the name of the property.
        score: the forbidden effect divided by the effect of an allowed change, or an error divided by its limit.
        evidence: what was done and what was measured, in numbers.
        hint: the likely bug and its usual fix.
        family: the bug family that the hint names, a key of BUG_FAMILIES.
    """

    check: str
    verdict: Verdict
    score: float | None
    evidence: str
    hint: str | None = None
    family: str | None = None


def judge(check: str, score: float, limit: float, evidence: str, hint: str, family: str) -> Finding:
    """A finding that passes if the score is at most the limit, and else fails with a hint; a NaN score fails."""
    if score <= limit:
        return Finding(check, "pass", score, evidence)
    return Finding(check, "fail", score, evidence, hint, family)


@dataclass(frozen=True)
class Report:
    """All findings about one implementation.

    Args:
        target: the name of what was checked.
        how: how it was called, in words.
        kind: the kind of attention that its influence map shows, such as "causal".
        contract: what was promised.
        influence: the influence map: row i, column j is the effect of token j on output i, relative to the largest.
        diagnosis: the most likely single cause of what fails.
    """

    target: str
    how: str
    kind: str
    contract: Contract
    findings: tuple[Finding, ...]
    influence: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    diagnosis: Diagnosis | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fail")

    def to_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


def describe_error(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its message.

    >>> describe_error(ValueError("too wide\\nby 3")), describe_error(KeyError())
    ('ValueError: too wide', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
