"""What is wrong with data, item by item: named with its place, counted, and either refused or left out and reported."""

from dataclasses import dataclass, field
from typing import Literal

BadItems = Literal["refuse", "skip"]
SHOWN = 3


@dataclass
class Problems:
    """A list of what cannot be used. `settle` refuses the set if there is anything, or says what was left out.

    >>> problems = Problems("pictures", "skip")
    >>> problems.add("cats/3.png", "not a picture")
    >>> problems.settle(total=10)
    ('1 of 10 pictures left out: cats/3.png: not a picture',)
    """

    what: str
    bad_items: BadItems = "refuse"
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.bad_items not in ("refuse", "skip"):
            raise ValueError(f"bad items are 'refuse' or 'skip'; got {self.bad_items!r}")

    def add(self, where: object, problem: object) -> None:
        self.found.append(f"{where}: {problem}")

    def settle(self, total: int) -> tuple[str, ...]:
        """Notes about what was left out; a ValueError if nothing may be, or if nothing is left."""
        if not self.found:
            return ()
        more = len(self.found) - SHOWN
        listed = "; ".join(self.found[:SHOWN]) + (f"; and {more:,} more" if more > 0 else "")
        if self.bad_items == "skip" and len(self.found) < total:
            return (f"{len(self.found):,} of {total:,} {self.what} left out: {listed}",)
        advice = "" if self.bad_items == "skip" else ". Mend or remove them, or ask for bad items to be skipped"
        raise ValueError(f"{len(self.found):,} of {total:,} {self.what} cannot be used: {listed}{advice}")


def one_line(error: BaseException) -> str:
    """An error as part of a sentence."""
    return " ".join(str(error).split())[:200] or type(error).__name__
