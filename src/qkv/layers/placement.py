"""Where tokens stand, told to a model: position schemes by name, and the vectors of the absolute ones.

Axes: b batch · t tokens · c model width.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from qkv.layers.embeddings import LearnedPositions, SinusoidalPositions
from qkv.layers.positions import Positions, Shaw, T5Bias
from qkv.ops.positions import Alibi, Relative
from qkv.ops.rope import Rope

Position = Literal["learned", "sinusoidal", "none", "rope", "alibi", "t5", "shaw"] | Relative

ABSOLUTE = ("learned", "sinusoidal", "none")


def named_position(position: Position, *, causal: bool) -> Position:
    """A position scheme by its name: "rope" is Rope(), and so on; absolute ones keep their name."""
    relative = {
        "rope": Rope(),
        "alibi": Alibi(),
        "t5": T5Bias(bidirectional=not causal),
        "shaw": Shaw(),
    }
    if isinstance(position, Relative) or position in ABSOLUTE:
        return position
    if position not in relative:
        raise ValueError(
            f"positions are {', '.join([*ABSOLUTE, *relative])}, or a scheme such as Rope(); got {position!r}"
        )
    return relative[position]


def relative_part(position: Position) -> Relative | None:
    """What attention needs of a position scheme."""
    return position if isinstance(position, Relative) else None


class Placement(nn.Module):
    """Adds to token vectors, for absolute schemes, a vector of their position; then dropout.

    scale: multiply the token vectors by √width first, as in 2017.
    """

    def __init__(
        self, position: Position, length: int, width: int, *, dropout: float = 0.0, scale: bool = False
    ) -> None:
        super().__init__()
        self.positions = make_positions(position, length, width)
        self.factor = width**0.5 if scale else 1.0
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t c"], positions: Positions) -> Float[Tensor, "b t c"]:
        if self.factor != 1.0:
            x = x * self.factor
        if self.positions is not None:
            x = x + self.positions(positions.queries)
        return self.dropout(x)


def make_positions(position: Position, length: int, width: int) -> nn.Module | None:
    """The table of an absolute scheme; None where positions act inside attention, or not at all."""
    if position == "learned":
        return LearnedPositions(length, width)
    return SinusoidalPositions(width) if position == "sinusoidal" else None
