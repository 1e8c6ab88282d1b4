"""What a check says: data, for the terminal, the page, JSON and pytest alike."""

from dataclasses import asdict, dataclass, field
from typing import Literal

from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis

Verdict = Literal["pass", "fail", "warn", "inconclusive", "described", "n/a"]


def told(error: BaseException) -> str:
    """What an implementation raised, as part of a sentence: the kind of error, and the first line of what it says.

    >>> told(ValueError("too wide\\nby 3")), told(KeyError())
    ('ValueError: too wide', 'KeyError')
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


@dataclass(frozen=True)
class Finding:
    """One property, judged or described.

    score: the forbidden effect divided by the effect of an allowed change, or an error divided by what it may be.
    evidence: what was done and what was seen, in numbers. hint: what the mistake probably is, and the usual fix.
    family: the family of known mistakes that the hint names.
    """

    check: str
    verdict: Verdict
    score: float | None
    evidence: str
    hint: str | None = None
    family: str | None = None  # of known mistakes (qkv.check.diagnosis.FAMILIES)


@dataclass(frozen=True)
class Report:
    """Everything that was found about one implementation; `diagnosis` is the likeliest single cause of what fails."""

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
        return all(finding.verdict != "fail" for finding in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fail")

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}
