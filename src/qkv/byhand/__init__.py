"""Attention solved by hand in exact arithmetic, and checking of a person's own calculation.

`solve` returns every step exactly; `verify` finds the first wrong number of an answer. The command is `qkv byhand`.
"""

from typing import TYPE_CHECKING

from qkv.byhand.examples import EXAMPLES, example
from qkv.byhand.matrices import Matrix
from qkv.byhand.problem import Problem, make_problem
from qkv.byhand.solution import Solution, solve, solve_problem

if TYPE_CHECKING:
    from qkv.byhand.verification import Verification, verify

__all__ = [
    "EXAMPLES",
    "Matrix",
    "Problem",
    "Solution",
    "Verification",
    "example",
    "make_problem",
    "solve",
    "solve_problem",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import the search for slips, which needs numpy, on first use."""
    if name not in ("Verification", "verify"):
        raise AttributeError(f"module 'qkv.byhand' has no attribute {name!r}")
    from qkv.byhand import verification

    return getattr(verification, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
