"""Attention in the terminal: heat maps of one head, head types, tables of layers and heads, effects of interventions.

Axes: t queries (rows) · s keys (columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from qkv._html import COLOR_SCALE
from qkv.interp.ablation import Effect
from qkv.interp.attribution import ImageAttention
from qkv.interp.comparison import Comparison
from qkv.interp.head_types import HEAD_TYPES, ClassifiedHead, HeadTypes
from qkv.interp.inputs import PreparedInput
from qkv.interp.lens import LogitLens
from qkv.interp.traces import Trace

SHADES = " ·:-=+*#@"  # the nine steps of the color scale without color
MAX_HEADS = 6  # heads named per type
NAME_WIDTH = 17  # column of the type names
MAX_ROWS = 48  # rows of a map
POSITIONAL_TYPES = ("positional", "uniform")  # types that do not depend on the content of tokens


def heatmap(weights: Float[Tensor, "t s"], rows: Sequence[str], columns: Sequence[str], *, color: bool = True) -> Text:
    """The map of one head: a row per query and a cell of two characters per key, with their tokens.

    A weight of exactly 0, as of a masked key, is an empty cell.

    >>> import torch
    >>> print(heatmap(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), ["a", "b"], ["a", "b"], color=False).plain)
      a b
    a @@
    b ====
    """
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(
            f"expected a name for each row and column of a map of shape {tuple(weights.shape)}, got {len(rows)} and "
            f"{len(columns)} names"
        )
    margin = max((cell_len(name) for name in rows), default=0)
    map_ = Text(" " * (margin + 1) + "".join(set_cell_size(name, 2) for name in columns).rstrip() + "\n")
    for name, line in zip(rows, weights.tolist(), strict=True):
        map_.append(" " * (margin - cell_len(name)) + name + " ").append(
            row_cells(line, color=color, blank_zero=True)
        ).append("\n")
    map_.rstrip()
    return map_


def row_cells(line: Sequence[float], *, color: bool = True, blank_zero: bool = False) -> Text:
    """One row of a map: a cell of two characters per number from 0 to 1; `blank_zero` leaves zeros empty."""
    row = Text()
    for weight in line:
        if blank_zero and weight == 0:
            row.append("  ")
            continue
        step = min(int(weight * len(COLOR_SCALE)), len(COLOR_SCALE) - 1)
        row.append("  " if color else 2 * SHADES[max(step, 1)], style=f"on {COLOR_SCALE[step]}" if color else "")
    return row


def legend(*, color: bool = True) -> Text:
    """The color scale from 0 to 1."""
    scale = Text("0 ")
    for step, shade in zip(COLOR_SCALE, SHADES, strict=True):
        scale.append("  " if color else 2 * shade, style=f"on {step}" if color else "")
    return scale.append(" 1")


def visible_token(token: str, most: int = 14) -> str:
    """A token on one line: whitespace is shown where there is nothing else, control characters become dots.

    >>> visible_token(" cat"), visible_token("\\n"), visible_token("a\\tb")
    ('cat', '⏎', 'a·b')
    """
    shown = token.strip(" \n\t") or "".join({"\n": "⏎", "\t": "⇥", " ": "␣"}[letter] for letter in token) or "∅"
    shown = "".join(letter if letter.isprintable() else "·" for letter in shown)
    return shown if cell_len(shown) <= most else set_cell_size(shown, most - 1).rstrip() + "…"


def head_type_lines(found: HeadTypes, width: int = 80) -> Iterator[Text]:
    """Two lines for each head type that occurs: what it does, and its heads as layer.head with their scores."""
    for name, does in HEAD_TYPES.items():
        heads = [head for head in found.of_type(name) if name not in POSITIONAL_TYPES or head.type == name]
        if not heads:
            continue
        yield Text(f"{name:<{NAME_WIDTH}}", style="bold").append(does, style="dim not bold")
        line = Text(" " * NAME_WIDTH + ("heads" if len(heads) > 1 else "head"))
        for count, head in enumerate(heads):
            left = len(heads) - count
            shown = f" {head.layer}.{head.head} ({head.scores[name]:.2f})"
            if count == MAX_HEADS or (count and len(line) + len(shown) + len(f", and {left} more") > width):
                line.append(f" and {left} more", style="dim")
                break
            line.append("," if count else "").append(shown, style="cyan")
        yield line


def head_map_lines(
    trace: Trace, layer: int | str, head: int, rows: Sequence[str], columns: Sequence[str], *, width: int, color: bool
) -> Iterator[Text]:
    """One head's map, pooled to fit the width, with its color scale."""
    found = trace.layer(layer)
    row_names, column_names = ([visible_token(name) for name in side] for side in (rows, columns))
    if not _distinct_when_cut(column_names):  # times, coordinates: the index tells the tokens apart
        last = len(str(len(row_names) - 1))
        row_names = [f"{index:>{last}} {name}" for index, name in enumerate(row_names)]
        column_names = [f"{index % 100:>2}" for index in range(len(column_names))]
    margin = max((cell_len(name) for name in row_names), default=0) + 1
    size = max(min((width - margin) // 2, MAX_ROWS if found.queries > MAX_ROWS else max(found.keys, found.queries)), 4)
    step = max(-(-max(found.queries, found.keys) // size), 1)
    weights = trace.map(layer, head, size).float().cpu()
    yield heatmap(weights, row_names[::step], column_names[::step], color=color)
    note = "" if step == 1 else f"   each cell: the largest of {step} × {step} weights, labeled by its first tokens"
    yield legend(color=color).append(note, style="dim")


def _distinct_when_cut(names: Sequence[str]) -> bool:
    """Whether at least half of the different names are still different when a column has two characters for each.

    >>> _distinct_when_cut(["the", "cat", "sat"]), _distinct_when_cut(["0.00 s", "0.04 s", "0.08 s"])
    (True, False)
    """
    return 2 * len({set_cell_size(name, 2) for name in names}) > len(set(names))


def image_map_lines(found: ImageAttention, *, color: bool) -> Iterator[Text]:
    """Weights over the patches of an image, the largest brightest."""
    most = max(float(found.grid.max()), 1e-12)
    map_ = Text()
    for row in (found.grid / most).tolist():
        map_.append(row_cells(row, color=color)).append("\n")
    map_.rstrip()
    yield map_
    scale = legend(color=color)
    yield Text(f"patches, 0 to {most:.3f}:  ").append(scale).append(f" × {most:.3f}", style="dim")


def table_lines(
    rows: Sequence[str], columns: Sequence[str], numbers: Sequence[Sequence[float | None]], *, digits: int = 3
) -> Iterator[Text]:
    """Numbers of layers (rows) and heads (columns), the largest bold."""
    every = [abs(cell) for row in numbers for cell in row if cell is not None]
    strong = sorted(every)[-max(len(every) // 12, 1)] if every else 0.0
    margin = max(cell_len(row) for row in rows)
    wide = max(digits + 4, *(len(column) + 1 for column in columns))
    yield Text(" " * margin + "".join(f"{column:>{wide}}" for column in columns), style="dim")
    for name, row in zip(rows, numbers, strict=True):
        line = Text(set_cell_size(name, margin), style="dim")
        for cell in row:
            shown = "" if cell is None else f"{cell:.{digits}f}"
            line.append(f"{shown:>{wide}}", style="bold" if cell is not None and abs(cell) >= strong > 0 else "not dim")
        yield line


def effect_lines(subject: PreparedInput, found: Effect) -> Iterator[Text]:
    """What an intervention changed: the loss, the prediction, and the positions that changed most."""
    if found.loss_before is not None and found.loss_after is not None:
        grown = found.loss_after - found.loss_before
        yield Text(f"loss       {found.loss_before:.4f} → {found.loss_after:.4f}  ({grown:+.4f})", style="bold")
    if found.kl is not None:
        flipped = f", top prediction changed at {found.flipped:.0%} of positions" if found.flipped is not None else ""
        yield Text(f"KL         {found.kl:.4f} nats{flipped}")
    if found.top_before:
        yield Text(f"prediction {describe_changed_answer(subject, found)}")
    if found.kind == "tokens" and len(found.kl_at) > 1:
        worst = sorted(range(len(found.kl_at)), key=lambda place: -found.kl_at[place])[:5]
        names = [f"{place} “{visible_token(subject.tokens[place])}” {found.kl_at[place]:.3f}" for place in worst]
        yield Text("largest at " + ", ".join(names), style="dim")


def describe_changed_answer(subject: PreparedInput, found: Effect) -> str:
    """The last answer before an intervention with its probability, and what became of it."""
    old, new = found.top_before[-1], found.top_after[-1]
    after = f"{found.probability_after[-1]:.3f}"
    if old != new:
        after += f", now “{visible_token(subject.token(new))}”"
    return f"“{visible_token(subject.token(old))}” {found.probability_before[-1]:.3f} → {after}"


def lens_lines(subject: PreparedInput, found: LogitLens, place: int) -> Iterator[Text]:
    """The logit lens at one position: the most likely tokens after each block."""
    margin = max(len(name) for name in found.names)
    for row, name in enumerate(found.names):
        line = Text(f"{name:<{margin}}  ", style="dim")
        chances = found.probabilities[row, place].tolist()
        for rank, (token, chance) in enumerate(zip(found.tokens[row, place].tolist(), chances, strict=True)):
            word = set_cell_size(visible_token(subject.token(token), 10), 10)
            line.append(f" {word} {chance:.3f} ", style="bold not dim" if rank == 0 else "not dim")
        yield line.append(f"  KL {float(found.kl[row, place]):.3f}", style="dim")


def comparison_lines(found: Comparison) -> Iterator[Text]:
    """The distances between the heads of two traces, and the best matches."""
    columns = [f"head {i}" for i in range(max(len(row) for row in found.table))]
    yield from table_lines([str(place) for place in range(len(found.table))], columns, found.table)
    yield Text(
        f"mean distance {found.mean:.3f} (0: equal, 1: no key in common), over {found.rows} queries", style="bold"
    )
    moved = [match for match in found.matches if match.first != match.second]
    if moved and found.matched < found.mean - 1e-6:
        names = ", ".join(f"{match.layer}.{match.first} ~ {match.layer}.{match.second}" for match in moved[:8])
        yield Text(f"best matching {found.matched:.3f}: {names}", style="dim")


def describe_head(head: ClassifiedHead) -> str:
    """A head's type and score, in a few words."""
    if head.type == "mixed":
        return "no known type"
    also = [f"{name} {score:.2f}" for name, score in head.types if score > head.score]
    text = f"{head.type} {head.score:.2f}: {HEAD_TYPES[head.type]}"
    return f"{text}; also {', '.join(also)}" if also else text
