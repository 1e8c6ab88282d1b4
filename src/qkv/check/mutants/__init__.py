"""The bug zoo: implementations with one known mistake each, which the checks must catch."""

import difflib
from collections.abc import Iterator

from qkv.check.finding import Report
from qkv.check.mutants import functions as functions
from qkv.check.mutants import fused as fused
from qkv.check.mutants import layers as layers
from qkv.check.mutants import models as models
from qkv.check.mutants import positions as positions
from qkv.check.mutants import training as training
from qkv.check.mutants.mutant import MUTANTS, Mutant
from qkv.check.run import run

__all__ = ["MUTANTS", "Mutant", "checked", "find", "walk"]


def find(name: str) -> Mutant:
    """The mutant of that name; a ValueError names the nearest.

    >>> find("mask strict").family
    'mask off by one'
    """
    if name in MUTANTS:
        return MUTANTS[name]
    near = difflib.get_close_matches(name, MUTANTS, n=3) or [other for other in MUTANTS if name in other][:3]
    meant = f"did you mean {' or '.join(near)}?" if near else "`qkv check --zoo` walks through all of them"
    raise ValueError(f"the zoo has no mutant {name!r}; {meant}")


def walk() -> Iterator[tuple[Mutant, Report]]:
    """Check every mutant under the contract that it breaks."""
    for mutant in MUTANTS.values():
        yield mutant, checked(mutant)


def checked(mutant: Mutant) -> Report:
    """One mutant under the contract that it breaks, beside its reference if it has one."""
    return run(mutant.make(), mutant.contract, like=None if mutant.like is None else mutant.like())
