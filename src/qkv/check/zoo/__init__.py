"""The bug zoo: implementations with one known mistake each, which the checks must catch."""

from collections.abc import Iterator

from qkv.check.finding import Report
from qkv.check.run import run
from qkv.check.zoo import functions as functions
from qkv.check.zoo import layers as layers
from qkv.check.zoo.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "walk"]


def walk() -> Iterator[tuple[Mutant, Report]]:
    """Check every mutant under the contract that it breaks."""
    for mutant in MUTANTS.values():
        yield mutant, run(mutant.make(), mutant.contract)
