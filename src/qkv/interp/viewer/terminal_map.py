"""An attention map in the terminal: one cell for each weight, darker or brighter by its size.

Axes: t queries (rows) · s keys (columns).
"""

from collections.abc import Sequence

from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

# A perceptually even scale from dark blue to yellow that colour-blind eyes can read, as nine steps of it.
SCALE = ("#00204d", "#16386b", "#414d6b", "#62636f", "#7f7c75", "#a09877", "#c2b36b", "#e5cf52", "#ffea46")
SHADES = " ·:-=+*#@"  # the same nine steps without colour


def heatmap(weights: Float[Tensor, "t s"], rows: Sequence[str], columns: Sequence[str], *, colour: bool = True) -> Text:
    """The map of one head: a row for each query, a cell of two characters for each key, with their tokens.

    >>> import torch
    >>> print(heatmap(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), ["a", "b"], ["a", "b"], colour=False).plain)
      a b
    a @@··
    b ====
    """
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(
            f"a map of {tuple(weights.shape)} needs as many names for its rows and columns; got {len(rows)} and "
            f"{len(columns)}"
        )
    margin = max((cell_len(name) for name in rows), default=0)
    picture = Text(" " * (margin + 1) + "".join(set_cell_size(name, 2) for name in columns).rstrip() + "\n")
    for name, line in zip(rows, weights.tolist(), strict=True):
        picture.append(" " * (margin - cell_len(name)) + name + " ").append(cells(line, colour=colour)).append("\n")
    picture.rstrip()
    return picture


def cells(line: Sequence[float], *, colour: bool = True) -> Text:
    """One row of a map: a cell of two characters for each number from 0 to 1."""
    row = Text()
    for weight in line:
        step = min(int(weight * len(SCALE)), len(SCALE) - 1)
        row.append("  " if colour else 2 * SHADES[max(step, 1)], style=f"on {SCALE[step]}" if colour else "")
    return row


def legend(*, colour: bool = True) -> Text:
    """The scale: what 0 and 1 look like."""
    picture = Text("0 ")
    for step, shade in zip(SCALE, SHADES, strict=True):
        picture.append("  " if colour else 2 * shade, style=f"on {step}" if colour else "")
    return picture.append(" 1")
