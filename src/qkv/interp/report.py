"""What was seen, told: lines for the terminal, a scene for the page, a picture."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from qkv.interp.attention_over_image import over_picture, rollout_over_picture
from qkv.interp.session import Seen, rolled_trace
from qkv.interp.subject import Subject
from qkv.interp.viewer import png as pictures
from qkv.interp.viewer import terminal
from qkv.interp.viewer.scene import Panel, Scene, with_map
from qkv.interp.viewer.subjects import beside, picture_of, scene_of_subject

UNITS = {"loss": "loss", "kl": "nats (KL) from the unchanged answers", "measure": "measure"}


def lines(seen: Seen, *, width: int, colour: bool) -> Iterator[Text]:
    """For the terminal: what was asked; without a question, kinds of heads and the most telling map."""
    yield _title(seen)
    if seen.prediction:
        what = "class" if seen.subject.kind == "image" else "next token"
        likeliest = "  ".join(f"“{terminal.visible(text)}” {chance:.3f}" for _, text, chance in seen.prediction)
        yield Text(f"{what}: {likeliest}")
    yield Text()
    asked = seen.asked
    if not asked.questions or (asked.changed and (asked.layer is not None or asked.head is not None)):
        yield from _maps(seen, width, colour)
    if seen.effect is not None:
        said = asked.said
        yield Text(", ".join(said), style="bold")
        yield from terminal.effect_lines(seen.subject, seen.effect)
    if seen.sweep is not None:
        yield from _sweep_lines(seen)
    if asked.rollout and seen.rollout is not None:
        yield from _rollout_lines(seen, width, colour)
    if seen.lens is not None:
        place = min(seen.query, len(seen.lens.positions) - 1)
        where = (
            ""
            if len(seen.lens.positions) == 1
            else f" after token {place} “{terminal.visible(seen.subject.tokens[place])}”"
        )
        yield Text(f"what each layer would answer{where}", style="bold")
        yield from terminal.lens_lines(seen.subject, seen.lens, place)
    if seen.comparison is not None and seen.other is not None:
        yield Text(f"compared with {seen.other[0]}", style="bold")
        yield from terminal.comparison_lines(seen.comparison)


def _title(seen: Seen) -> Text:
    layers, heads = len(seen.trace), sum(layer.heads for layer in seen.trace.layers)
    line = Text(seen.subject.checkpoint, style="bold")
    line.append(
        f"  {type(seen.subject.model).__name__}, {layers} attention layers, {heads} heads", style="dim not bold"
    )
    return line.append(f", {_input(seen.subject)}", style="dim not bold")


def _input(subject: Subject) -> str:
    if subject.picture is not None:
        return f"{subject.picture.rows} × {subject.picture.columns} patches"
    target = f"{len(subject.tokens)} tokens"
    return target if not subject.source else f"source {len(subject.source)} tokens, target {target}"


def _maps(seen: Seen, width: int, colour: bool) -> Iterator[Text]:
    if seen.asked.layer is None and seen.asked.head is None:
        yield from terminal.kinds(seen.heads)
        yield Text()
    layer, head = seen.trace.layer(seen.layer), seen.heads.at(seen.layer, seen.head)
    yield Text(f"layer {seen.layer}, head {seen.head}", style="bold").append(
        f"  {layer.name}, {terminal.named(head)}", style="dim not bold"
    )
    if picture_of(seen.subject, seen.trace) is not None:
        found = over_picture(seen.subject.model, seen.trace, seen.layer, seen.head, query=seen.query)
        yield Text(f"what “{seen.subject.tokens[seen.query]}” attends to", style="dim")
        yield from terminal.picture_map(found, colour=colour)
        return
    rows, columns = seen.subject.labels(layer)
    yield from terminal.head_map(seen.trace, seen.layer, seen.head, rows, columns, width=width, colour=colour)


def _sweep_lines(seen: Seen) -> Iterator[Text]:
    assert seen.sweep is not None
    found = seen.sweep
    yield Text(f"each head silenced: what it adds to the {UNITS[found.measure]}", style="bold")
    if found.measure == "loss":
        yield Text(f"unchanged: {found.before:.4f}", style="dim")
    yield from terminal.table([str(place) for place in range(len(found.names))], found.columns, found.table)
    worst = ", ".join(f"{layer}.{head} {cost:+.3f}" for layer, head, cost in found.worst())
    yield Text(f"most: {worst}")


def _rollout_lines(seen: Seen, width: int, colour: bool) -> Iterator[Text]:
    assert seen.rollout is not None
    yield Text(f"rollout through {len(seen.rollout.layers)} layers", style="bold")
    if picture_of(seen.subject, seen.trace) is not None:
        yield from terminal.picture_map(
            rollout_over_picture(seen.subject.model, seen.trace, query=seen.query), colour=colour
        )
        return
    names = seen.subject.labels(seen.trace.layer(seen.rollout.layers[0]))[1]
    rows = [names[query] for query in seen.rollout.queries]
    yield from terminal.head_map(rolled_trace(seen.rollout), 0, 0, rows, names, width=width, colour=colour)


def scene(seen: Seen) -> Scene:
    """For the page: all heads, with the rollout where there is one, and what it is compared with beside it."""
    made = scene_of_subject(seen.subject, seen.trace, seen.heads, facts=_facts(seen))
    if seen.rollout is not None and len(seen.rollout.queries) == seen.rollout.weights.shape[1]:
        first = seen.rollout.layers[0]
        axis = next(panel.queries for panel in made.panels if panel.name == first)
        made = with_map(made, "rollout", seen.rollout.weights, queries=axis)
    if seen.other is not None:
        name, other, trace = seen.other
        made = beside(made, scene_of_subject(other, trace), name)
    return made


def _facts(seen: Seen) -> list[tuple[str, str]]:
    facts = [("model", f"{type(seen.subject.model).__name__}, {_input(seen.subject)}")]
    if seen.prediction:
        what = "class" if seen.subject.kind == "image" else "next token"
        likeliest = "  ".join(f"“{terminal.visible(text)}” {chance:.3f}" for _, text, chance in seen.prediction[:3])
        facts.append((what, likeliest))
    changed = seen.asked.said
    return [*facts, ("changed", ", ".join(changed))] if changed else facts


def png(seen: Seen) -> bytes:
    """As a picture: the sweep's table, attention over a picture, one head if one was named, else all heads."""
    if seen.sweep is not None:
        names = [f"{place}  {name}" for place, name in enumerate(seen.sweep.names)]
        title = f"{seen.subject.checkpoint}: each head silenced"
        return pictures.png_of_table(seen.sweep.table, names, seen.sweep.columns, title, UNITS[seen.sweep.measure])
    made = scene(seen)
    one = seen.asked.layer is not None or seen.asked.head is not None
    panel = _panel(made, seen) if one else None
    if made.picture is not None:
        return pictures.png_over_picture(made, seen.query, panel, seen.head if one else None)
    if seen.asked.rollout and not one:
        return pictures.png_of_head(made, next(each for each in made.panels if each.place < 0), 0)
    return pictures.png_of_heads(made) if panel is None else pictures.png_of_head(made, panel, seen.head)


def _panel(made: Scene, seen: Seen) -> Panel:
    return next(panel for panel in made.panels if panel.place == seen.layer)
