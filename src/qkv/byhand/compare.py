"""The exact result beside the library's float64 attention."""

from dataclasses import dataclass
from sys import float_info

from qkv.byhand.matrices import decimals
from qkv.byhand.problem import Problem
from qkv.byhand.reading import Rows

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Agreement:
    """The largest difference between the exact output and the float64 one, and how much may be."""

    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance


def compare_with_float64(problem: Problem, exact: Rows) -> Agreement:
    """Work the problem again in float64, by `qkv.nn.attention` from the inputs on."""
    import torch
    from torch import Tensor

    from qkv.nn.attention import attention

    def tensor(rows: Rows) -> Tensor:
        return torch.tensor([[float(cell) for cell in row] for row in decimals(rows)], dtype=torch.float64)

    inputs = problem.inputs
    if inputs is not None:
        x = tensor(inputs)
        q, k, v = (x if weight is None else x @ tensor(weight) for weight in problem.projections)
    else:
        q, k, v = (tensor(rows) for rows in problem.projected())
    split = [m.unflatten(-1, (problem.heads, -1)).transpose(0, 1)[None] for m in (q, k, v)]
    allowed = None if problem.allowed is None else torch.tensor(problem.allowed)
    beta = float(problem.beta.decimal)
    out = attention(*split, scale=beta, mask=allowed)[0].transpose(0, 1).flatten(1)
    if problem.wo is not None:
        out = out @ tensor(problem.wo)
    difference = float((out - tensor(exact)).abs().max())
    # float64 rounds a score s by about s·ε, which moves a weight by that share of itself
    largest = float((q.abs() @ k.abs().T).max()) * abs(beta)
    spread = float(v.abs().max()) * (1 if problem.wo is None else float(tensor(problem.wo).abs().sum(0).max()))
    return Agreement(difference, max(TOLERANCE, 8 * float_info.epsilon * (largest + len(k)) * spread))
