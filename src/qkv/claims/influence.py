"""Who influences whom: the size of the gradient of each output with respect to each input."""

from collections.abc import Callable

import torch
from torch import Tensor


def influence(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """‖∂ out_t / ∂ x_s‖ for every output t and input s: x is (s, c), run(x) is (t, e).

    One random direction for each output: a path that exists is missed with probability 0.
    """
    x = x.detach().requires_grad_()
    out = run(x)
    direction = torch.randn(out.shape[-1], generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    rows = []
    for t in range(len(out)):
        (found,) = torch.autograd.grad(out[t] @ direction, x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros(len(x), dtype=x.dtype) if found is None else found.norm(dim=-1))
    return torch.stack(rows)
