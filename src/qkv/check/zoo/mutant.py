"""A mutant: an implementation with one known mistake, and the contract under which it is one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv.check.contract import Contract

MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """name: what is wrong, in words. family: what a diagnosis should come to. make: builds it."""

    name: str
    family: str
    contract: Contract
    make: Callable[[], Any]


def mutant(name: str, family: str, contract: Contract) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Put an implementation into the zoo."""

    def keep(make: Callable[[], Any]) -> Callable[[], Any]:
        if name in MUTANTS:
            raise ValueError(f"there are two mutants called {name!r}")
        MUTANTS[name] = Mutant(name, family, contract, make)
        return make

    return keep
