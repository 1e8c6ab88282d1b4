"""A mutant: an implementation with one known mistake, and the contract under which it is one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv.check.contract import Contract
from qkv.check.diagnosis import FAMILIES

MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """name: what is wrong, in words. family: what a diagnosis should come to. make: builds it.

    like: builds the reference that it should equal, where only that shows the mistake.
    """

    name: str
    family: str
    contract: Contract
    make: Callable[[], Any]
    like: Callable[[], Any] | None = None

    @property
    def source(self) -> tuple[str, int, str]:
        """The file it stands in, its line, and its code."""
        made = inspect.unwrap(self.make)
        lines, first = inspect.getsourcelines(made)
        return inspect.getsourcefile(made) or "", first, "".join(lines)


def mutant(
    name: str, family: str, contract: Contract, like: Callable[[], Any] | None = None
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put an implementation into the zoo."""

    def keep(make: Callable[[], Any]) -> Callable[[], Any]:
        if family not in FAMILIES:
            raise ValueError(f"the mutant {name!r} is of a family {family!r} that nobody knows")
        if name in MUTANTS:
            raise ValueError(f"there are two mutants called {name!r}")
        MUTANTS[name] = Mutant(name, family, contract, make, like)
        return make

    return keep
