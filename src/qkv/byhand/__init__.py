"""Attention solved by hand in exact arithmetic, and checking of a person's own calculation.

`solve` returns every step exactly; `verify` finds the first wrong number of an answer. The command is `qkv byhand`.
"""

from qkv.byhand.examples import EXAMPLES, example
from qkv.byhand.matrices import Matrix
from qkv.byhand.problem import Problem, make_problem
from qkv.byhand.solution import Solution, solve, solve_problem
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
