"""The mutant suite: implementations with one known mistake each, which the checks must catch."""

from qkv.check.mutants import attention, layers, models, positions, training  # noqa: F401 (they fill the registry)
from qkv.check.mutants.generated import generate_mutants, sample_mutants
from qkv.check.mutants.suite import MUTANTS, Mutant, check_all_mutants, check_mutant, find_mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "check_all_mutants",
    "check_mutant",
    "find_mutant",
    "generate_mutants",
    "sample_mutants",
]
