"""What is seen, for the terminal: kinds of heads, one head's map, tables of layers and heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from qkv.interp.attention_over_image import PictureMap
from qkv.interp.compare import Comparison
from qkv.interp.effect import Effect
from qkv.interp.head_types import KINDS, Head, Heads
from qkv.interp.logit_lens import Lens
from qkv.interp.subject import Subject
from qkv.interp.traces.trace import Trace
from qkv.interp.viewer.terminal_map import SCALE, SHADES, heatmap, legend

MOST = 6  # heads named of one kind
ROWS = 48  # rows of a map at most
PLACES = ("positional", "uniform")  # kinds that do not say where a head looks


def visible(token: str, most: int = 14) -> str:
    """A token as it can be read in a line: blanks shown where there is nothing else, control characters as dots.

    >>> visible(" cat"), visible("\\n"), visible("a\\tb")
    ('cat', '⏎', 'a·b')
    """
    shown = token.strip(" \n\t") or "".join({"\n": "⏎", "\t": "⇥", " ": "␣"}[letter] for letter in token) or "∅"
    shown = "".join(letter if letter.isprintable() else "·" for letter in shown)
    return shown if cell_len(shown) <= most else set_cell_size(shown, most - 1).rstrip() + "…"


def kinds(found: Heads) -> Iterator[Text]:
    """A line for each kind that some head has: what it does, and its heads as layer.head with their scores."""
    for kind, does in KINDS.items():
        heads = [head for head in found.of(kind) if kind not in PLACES or head.kind == kind]
        if not heads:
            continue
        line = Text(f"{kind:<11}", style="bold")
        for head in heads[:MOST]:
            line.append(f" {head.layer}.{head.head}", style="bold cyan").append(
                f" {head.scores[kind]:.2f}", style="default not bold"
            )
        more = f"  and {len(heads) - MOST} more" if len(heads) > MOST else ""
        yield line.append(more, style="dim").append(f"   {does}", style="dim not bold")


def telling(found: Heads) -> Head:
    """The head whose kind is surest, of those that say where they look; a distance or evenness only if none does."""
    for left_out in (("offset", *PLACES, "mixed"), (*PLACES, "mixed"), ()):
        fitting = [head for head in found.heads if head.kind not in left_out]
        if fitting:
            return max(fitting, key=lambda head: head.score)
    raise ValueError("there are no heads to choose from")


def head_map(
    trace: Trace, layer: int | str, head: int, rows: Sequence[str], columns: Sequence[str], *, width: int, colour: bool
) -> Iterator[Text]:
    """One head's map, pooled to what fits into the width, with its scale."""
    found = trace.layer(layer)
    margin = max((cell_len(visible(name)) for name in rows), default=0) + 1
    room = max(min((width - margin) // 2, ROWS if found.queries > ROWS else max(found.keys, found.queries)), 4)
    step = max(-(-max(found.queries, found.keys) // room), 1)
    weights = trace.map(layer, head, room).float().cpu()
    names = [[visible(name) for name in side[::step]] for side in (rows, columns)]
    yield heatmap(weights, *names, colour=colour)
    said = "" if step == 1 else f"   each cell: the largest of {step} × {step} weights, named by its first tokens"
    yield legend(colour=colour).append(said, style="dim")


def picture_map(found: PictureMap, *, colour: bool) -> Iterator[Text]:
    """Weights over the patches of a picture, the largest brightest."""
    most = max(float(found.grid.max()), 1e-12)
    picture = Text()
    for row in (found.grid / most).tolist():
        for share in row:
            step = min(int(share * len(SCALE)), len(SCALE) - 1)
            picture.append("  " if colour else 2 * SHADES[max(step, 1)], style=f"on {SCALE[step]}" if colour else "")
        picture.append("\n")
    picture.rstrip()
    yield picture
    scale = legend(colour=colour)
    yield Text(f"patches, 0 to {most:.3f}:  ").append(scale).append(f" × {most:.3f}", style="dim")


def table(
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


def effect_lines(subject: Subject, found: Effect) -> Iterator[Text]:
    """What a change did to loss, prediction, and the places where it did most."""
    if found.loss_before is not None and found.loss_after is not None:
        grown = found.loss_after - found.loss_before
        yield Text(f"loss       {found.loss_before:.4f} → {found.loss_after:.4f}  ({grown:+.4f})", style="bold")
    if found.kl is not None:
        flipped = f", {found.flipped:.0%} of likeliest answers changed" if found.flipped is not None else ""
        yield Text(f"moved by   {found.kl:.4f} nats (KL){flipped}")
    if found.top_before:
        old, new = found.top_before[-1], found.top_after[-1]
        yield Text(
            f"prediction “{visible(subject.token(old))}” {found.probability_before[-1]:.3f} → "
            + (f"{found.probability_after[-1]:.3f}" if old == new else f"now “{visible(subject.token(new))}”")
        )
    if found.kind == "tokens" and len(found.kl_at) > 1:
        worst = sorted(range(len(found.kl_at)), key=lambda place: -found.kl_at[place])[:5]
        names = [f"{place} “{visible(subject.tokens[place])}” {found.kl_at[place]:.3f}" for place in worst]
        yield Text("most after " + ", ".join(names), style="dim")


def lens_lines(subject: Subject, found: Lens, place: int) -> Iterator[Text]:
    """What the model would answer after each block, at one position."""
    margin = max(len(name) for name in found.names)
    for row, name in enumerate(found.names):
        line = Text(f"{name:<{margin}}  ", style="dim")
        chances = found.probabilities[row, place].tolist()
        for rank, (token, chance) in enumerate(zip(found.tokens[row, place].tolist(), chances, strict=True)):
            word = set_cell_size(visible(subject.token(token), 10), 10)
            line.append(f" {word} {chance:.3f} ", style="bold not dim" if rank == 0 else "not dim")
        yield line.append(f"  KL {float(found.kl[row, place]):.3f}", style="dim")


def comparison_lines(found: Comparison) -> Iterator[Text]:
    """How far apart heads of two traces are, and which match best."""
    columns = [f"head {i}" for i in range(max(len(row) for row in found.table))]
    yield from table([str(place) for place in range(len(found.table))], columns, found.table)
    yield Text(f"mean distance {found.mean:.3f} (0 equal, 1 no key shared), over {found.rows} queries", style="bold")
    moved = [match for match in found.matches if match.first != match.second]
    if moved and found.matched < found.mean - 1e-6:
        names = ", ".join(f"{match.layer}.{match.first} ~ {match.layer}.{match.second}" for match in moved[:8])
        yield Text(f"paired as they match best, {found.matched:.3f}: {names}", style="dim")


def named(head: Head) -> str:
    """A head's kind and score, in a few words."""
    return "of no one kind" if head.kind == "mixed" else f"{head.kind} {head.score:.2f}: {KINDS[head.kind]}"
