"""Feed-forward network (MLP) of a transformer block: ReLU, GELU, SwiGLU.

Axes: b batch · t tokens · c model dim.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu"]


class FeedForward(nn.Module):
    """dim → mlp_dim → dim with an activation in between, the same at each position.

    Args:
        activation: "relu"; "gelu", exact; "gelu-tanh", GPT-2's approximation; "swiglu", silu(gate)·hidden with a second
            projection for the gate.
        dropout: on the hidden features, in training.

    >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, dim: int, mlp_dim: int, *, activation: Activation = "gelu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if activation not in ("relu", "gelu", "gelu-tanh", "swiglu"):
            raise ValueError(f"activation must be 'relu', 'gelu', 'gelu-tanh' or 'swiglu', got {activation!r}")
        if mlp_dim < 1:
            raise ValueError(f"mlp_dim must be at least 1, got {mlp_dim}")
        self.activation: Activation = activation
        self.to_hidden = nn.Linear(dim, mlp_dim, bias)
        self.to_gate = nn.Linear(dim, mlp_dim, bias) if activation == "swiglu" else None
        self.to_out = nn.Linear(mlp_dim, dim, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        hidden = self.to_hidden(x)
        hidden = activate(hidden, self.activation) if self.to_gate is None else F.silu(self.to_gate(x)) * hidden
        return self.to_out(self.dropout(hidden))


def activate(hidden: Tensor, activation: Activation) -> Tensor:
    """Apply an activation function that has no gate."""
    if activation == "relu":
        return torch.relu(hidden)
    return F.gelu(hidden, approximate="tanh" if activation == "gelu-tanh" else "none")
