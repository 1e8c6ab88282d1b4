"""The feed-forward part of a block: the same small network at each position.

Axes: b batch · t tokens · c model width.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu"]


class FeedForward(nn.Module):
    """width → hidden → width with a non-linearity between.

    relu: max(0, x).  gelu: x·Φ(x), exact.  gelu-tanh: its approximation, as GPT-2 has it.
    swiglu: silu(gate)·hidden, with a second projection for the gate.
    dropout: on the hidden features, in training.

    >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ("relu", "gelu", "gelu-tanh", "swiglu"):
            raise ValueError(f"an activation is 'relu', 'gelu', 'gelu-tanh' or 'swiglu'; got {activation!r}")
        if hidden < 1:
            raise ValueError(f"hidden is at least 1; got {hidden}")
        self.activation = activation
        self.to_hidden = nn.Linear(dim, hidden, bias)
        self.to_gate = nn.Linear(dim, hidden, bias) if activation == "swiglu" else None
        self.to_out = nn.Linear(hidden, dim, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        hidden = self.to_hidden(x)
        if self.to_gate is not None:
            hidden = F.silu(self.to_gate(x)) * hidden
        elif self.activation == "relu":
            hidden = torch.relu(hidden)
        else:
            hidden = F.gelu(hidden, approximate="tanh" if self.activation == "gelu-tanh" else "none")
        return self.to_out(self.dropout(hidden))
