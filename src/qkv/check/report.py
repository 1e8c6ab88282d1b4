"""Results of a check: Finding, Report, Diagnosis and the bug families with their usual fixes, as plain data."""

from dataclasses import asdict, dataclass, field
from typing import Literal

from qkv.check.contract import Contract

Verdict = Literal["pass", "fail", "warn", "inconclusive", "described", "n/a"]

EXACTLY = "explained exactly: "  # begins the hint of a finding whose cause gives the outputs exactly at several shapes

# The families of known bugs, and the usual fix of each.
BUG_FAMILIES = {
    "no mask": "add the causal mask on this path, before the softmax",
    "mask off by one": "a query sees keys up to and including itself: use tril(), not tril(-1) or tril(1)",
    "mask transposed": "allow key ≤ query: tril, not triu",
    "mask not −∞": "fill masked scores with −∞, so that masked keys get a weight of 0",
    "mask after softmax": "put −∞ into the scores before the softmax",
    "mask polarity": "invert the mask, or swap the branches of where or masked_fill",
    "mask with cache": "with a KV cache, align the mask at the end: allow key ≤ query + (keys − queries)",
    "alignment": "with more keys than queries, align the mask at the end: allow key ≤ query + (keys − queries)",
    "cross attention": "let every target see the whole source: no causal mask there, and no mask of the target",
    "mask of rows": "give each row of the batch its own mask: expand it over heads in the order of the scores",
    "mask dropped": "pass the mask on, also when queries and keys have different lengths",
    "leak": "find what reads the whole sequence: a mean, a norm, blocks, a mask that is built or sliced wrongly",
    "window": "a window of W sees keys from query − W + 1 to query: check the inequality",
    "softmax axis": "take the softmax over the keys, the last axis of q·kᵀ",
    "softmax replaced": "use a softmax over the keys",
    "scale": "multiply q·k by 1/√(head dim), once, before the softmax",
    "scores changed": "scores are q·k times the scale, nothing else",
    "state": "keep nothing between calls that depends on the input, or key it by everything that it depends on",
    "lengths differ": "compute the same at every length: check blocks, padded keys, thresholds and tables",
    "one token": "keep axes of size 1: squeeze and view with explicit axes",
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
    "wrong gradient": "derive the backward pass again, factor by factor, or leave it to autograd",
    "unreached": "use the parameter, or remove it",
    "paths differ": "both paths must compute the same: mask, scale, dropout and positions alike",
    "untied": "tie the weights again after loading",
    "loss shift": "shift once: logits[:, :-1] against tokens[:, 1:]",
    "loss mask": "shift the mask as the labels are shifted, and leave padding out",
    "loss mean": "divide by the number of scored tokens",
    "accumulation": "divide each micro-batch's loss once, by the size of the whole batch; step on the leftover batches",
    "packing": "mask between documents, and restart positions in each",
    "block": "in blocks: mask by positions in the whole sequence, hide what fills the last one, read all of them, and "
    "rescale the running output and sum by exp(old maximum − new maximum)",
    "strides": "read tensors through their strides: reshape, or contiguous() before a view of raw memory",
    "truncated": "let every query use every key that it may attend to, the last ones too",
    "not identified": "no known bug explains the outputs; the evidence says where to look",
    "split": "split before cutting into windows and shuffling, so that no example is on both sides",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The bug behind what fails.

    Args:
        family: a key of BUG_FAMILIES; "not identified" if no known bug explains it.
        words: what is wrong.
        where: the layer, if there are several.
        exact: whether it gives the observed outputs exactly at several shapes; otherwise it is a likely cause.
        condition: when it acts, such as "from 65 tokens on"; empty if always.
        line: the line of the checked file that calls the operation at fault, as "file.py:12: code".
        also: the family of a second bug that acts together with the first.
    """

    family: str
    words: str
    where: str = ""
    exact: bool = False
    condition: str = ""
    line: str = ""
    also: str = ""

    def __post_init__(self) -> None:
        if self.family not in BUG_FAMILIES:
            raise ValueError(f"there is no bug family {self.family!r}; families are {', '.join(BUG_FAMILIES)}")

    @property
    def fix(self) -> str:
        """The usual fix, of both bugs if there are two."""
        return BUG_FAMILIES[self.family] + (f"; and {BUG_FAMILIES[self.also]}" if self.also else "")

    @property
    def hint(self) -> str:
        """The words with the layer, the family and the usual fix."""
        return f"{self.mistake} [{self.family}]: {self.fix}"

    @property
    def mistake(self) -> str:
        """What is wrong, where and when."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.words}" + (f" ({self.condition})" if self.condition else "")


@dataclass(frozen=True)
class Finding:
    """One measured property of an implementation.

    Args:
        check: the name of the property.
        score: the forbidden effect divided by the effect of an allowed change, or an error divided by its limit.
        evidence: what was done and what was measured, in numbers.
        hint: the likely bug and its usual fix.
        family: the bug family that the hint names, a key of BUG_FAMILIES.
        shapes: the sizes at which it was tested, axis by axis.
        condition: when it fails, such as "in bfloat16"; empty if always, or if that is not known.
    """

    check: str
    verdict: Verdict
    score: float | None
    evidence: str
    hint: str | None = None
    family: str | None = None
    shapes: str = ""
    condition: str = ""


def judge(
    check: str, score: float, limit: float, evidence: str, hint: str, family: str, condition: str = ""
) -> Finding:
    """A finding that passes if the score is at most the limit, and else fails with a hint; a NaN score fails."""
    if score <= limit:
        return Finding(check, "pass", score, evidence)
    return Finding(check, "fail", score, evidence, hint, family, condition=condition)


# the findings that can prove or disprove each promise of a contract, and what to provide where none does
PROOFS: dict[str, tuple[tuple[str, ...], str]] = {
    "kind": (("causal", "past reachable", "kind", "cross attention"), "outputs with one row per token"),
    "window": (("kind",), "a class that takes sequences longer than the window"),
    "scale": (("scale", "formula"), "a layer that is not compiled, or the function of q, k, v inside it"),
    "softmax": (("softmax", "rows sum to one", "formula"), "a layer that is not compiled, or its function of q, k, v"),
    "grouped": (("grouped heads",), "fewer key heads than query heads, with --args"),
    "mask": (("mask polarity",), "the name of its mask, with --call or --adapter"),
    "alignment": (("alignment",), "a causal flag and more keys than queries, with --call or --adapter"),
    "padding": (
        ("padding content", "padding removed", "source: padding"),
        "its padding mask, with --call or --adapter",
    ),
    "cache": (("cache",), "how its cache is called, with --adapter"),
    "position": (
        (
            "relative positions", "long positions", "rotary", "alibi", "order", "positions in scores only",
            "padding removed (left)",
        ),
        "a layer that is not compiled, or without attention kernels of its own",
    ),
    "loss": (("loss alignment",), "a model with its own loss, or the loss as the target"),
}  # fmt: skip
JUDGED = ("pass", "fail", "warn")


@dataclass(frozen=True)
class Report:
    """All findings about one implementation.

    Args:
        target: the name of what was checked.
        how: how it was called, in words.
        kind: the kind of attention that its influence map shows, such as "causal".
        contract: what was required.
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
        """Whether nothing failed and every required property was tested."""
        return not self.failed and not self.unproven

    @property
    def unproven(self) -> tuple[str, ...]:
        """The required properties that could not be tested, each with the reason and what to provide."""
        judged = {finding.check for finding in self.findings if finding.verdict in JUDGED}
        missing = []
        for promise, (proofs, provide) in PROOFS.items():
            value = getattr(self.contract, promise)
            if value is None or value is False or (promise == "kind" and self.diagnosis is not None):
                continue
            of_source = [f for f in self.findings if f.check == f"source: {promise}" and f.verdict == "inconclusive"]
            if of_source:  # what the target keeps says nothing about the source
                missing.append(f"{promise} {value}: of the source, {of_source[0].evidence}; provide {provide}")
            elif not any(check.startswith(proof) for check in judged for proof in proofs):
                reasons = [f.evidence for f in self.findings if f.check.startswith((promise, *proofs))]
                why = reasons[-1] if reasons else "no check applies"
                missing.append(f"{promise} {value}: {why}; provide {provide}")
        compared = [f.evidence for f in self.findings if f.check == "like" and f.verdict == "inconclusive"]
        missing += [f"like the reference: {why}" for why in compared]
        return tuple(missing)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fail")

    def to_dict(self) -> dict[str, object]:
        return {"ok": self.ok, "unproven": self.unproven, **asdict(self)}


def describe_error(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its message.

    >>> describe_error(ValueError("too wide\\nby 3")), describe_error(KeyError())
    ('ValueError: too wide', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
