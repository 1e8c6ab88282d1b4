"""Attention worked by hand, in exact numbers; and a person's own working checked.

`work` is the door; `qkv byhand` is its command.
"""

from qkv.byhand.examples import EXAMPLES, example
from qkv.byhand.matrices import Matrix
from qkv.byhand.problem import Problem, make_problem
from qkv.byhand.verify import Verification, verify
from qkv.byhand.working import Worked, work, work_problem

__all__ = [
    "EXAMPLES",
    "Matrix",
    "Problem",
    "Verification",
    "Worked",
    "example",
    "make_problem",
    "verify",
    "work",
    "work_problem",
]
