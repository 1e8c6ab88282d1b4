"""Encoder–decoders: every output may use the whole source, its padding does not matter, and rows keep to themselves."""

from dataclasses import replace

from qkv.check import influence
from qkv.check.checks.always import check_always
from qkv.check.checks.padding import check_padding
from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.subject import Subject


def check_source(subject: Subject, contract: Contract) -> list[Finding]:
    """The source's side; `source: ` stands before the names of checks that the target's side has too."""
    if subject.source is None:
        return []
    source = subject.source
    findings = [_reach(source, contract)]
    theirs = [*check_always(source), *check_padding(source, replace(contract, position=None))]
    return findings + [replace(finding, check=f"source: {finding.check}") for finding in theirs]


def _reach(source: Subject, contract: Contract) -> Finding:
    """Every output moves for every token of the source: there is no order between the two."""
    felt = influence.measure(source)
    if felt.silent:
        return Finding("cross attention", "inconclusive", None, "no change of the source moved any output")
    unseen = ~felt.felt
    if not bool(unseen.any()):
        evidence = f"each of {felt.moves.shape[0]} outputs moves for each of {felt.moves.shape[1]} tokens of the source"
        return Finding("cross attention", "pass", 0.0, evidence)
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"changing token {j} of the source does not move output {i} ({int(unseen.sum())} such pairs)"
    hint = "a causal mask lies on the cross attention, or a mask of the wrong sequence: the whole source is known"
    verdict = "described" if contract.kind is None else "fail"
    return Finding("cross attention", verdict, float(unseen.float().mean()), evidence, hint)
