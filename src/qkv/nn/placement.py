"""Where tokens stand, told to a model: position schemes by name, and the vectors of the absolute ones.

Axes: b batch · t tokens · c model width.
"""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbedding
from qkv.nn.position_layers import Positions, Shaw, T5Bias
from qkv.nn.positions import Alibi, Relative
from qkv.nn.rope import Rope

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


class Placement(nn.Module):
    """Adds to token vectors, for absolute schemes, a vector of their position; then dropout.

    scale: multiply the token vectors by √width first, as in 2017.
    segments: how many parts a text may have (BERT's two sentences), each with a vector that its tokens get.
    norm: what normalises the sum (BERT, BART); nothing if not given.
    """

    def __init__(
        self,
        position: Position,
        length: int,
        dim: int,
        *,
        dropout: float = 0.0,
        scale: bool = False,
        segments: int = 0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.positions = make_positions(position, length, dim)
        self.segments = TokenEmbedding(segments, dim) if segments else None
        self.norm = norm
        self.factor = dim**0.5 if scale else 1.0
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b t c"], positions: Positions, segments: Int[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b t c"]:
        """segments: the segment of each token; all are of segment 0 if not given."""
        if self.factor != 1.0:
            x = x * self.factor
        if self.positions is not None:
            x = x + self.positions(positions.queries)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        elif segments is not None:
            raise ValueError("this model knows no segments; give its config segments=2, or leave them out")
        return self.dropout(x if self.norm is None else self.norm(x))


def make_positions(position: Position, length: int, dim: int) -> nn.Module | None:
    """The table of an absolute scheme; None where positions act inside attention, or not at all."""
    if position == "learned":
        return LearnedPositions(length, dim)
    return SinusoidalPositions(dim) if position == "sinusoidal" else None
