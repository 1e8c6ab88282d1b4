"""What a verification says: each wrong number, each step, and the whole."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Remark:
    """One number that is not as exact arithmetic has it; row and column count from 1, as the person wrote."""

    step: str
    row: int
    column: int
    expected: str
    got: str
    kind: Literal["slip", "rounding"]
    mistake: str
    accepted: bool

    @property
    def sentence(self) -> str:
        cell = f"{self.step}[{self.row},{self.column}]" if self.row else self.step
        named = f": {self.mistake}" if self.mistake else ""
        return f"{cell}: expected {self.expected}, got {self.got}{named}"


@dataclass(frozen=True)
class StepCheck:
    """How one step stands: how many numbers are right, follow from earlier ones, or are wrong."""

    step: str
    verdict: Literal["right", "wrong", "follows", "rounded"]
    right: int
    follows: int
    rounded: int
    wrong: int
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class Verification:
    ok: bool
    tolerance: float
    first: Remark | None  # the first wrong number
    steps: tuple[StepCheck, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
