"""Render a LookResult: lines for the terminal, the scene of the attention viewer, or a PNG."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from qkv.interp.ablation import SweepTable
from qkv.interp.attribution import Rollout, attention_over_image, rollout_over_image
from qkv.interp.inputs import PreparedInput
from qkv.interp.lens import LogitLens
from qkv.interp.look import LookResult
from qkv.interp.viewer import png, terminal
from qkv.interp.viewer.scene import Scene, add_map, combine_scenes, make_look_scene, make_patch_image

UNITS = {"loss": "loss", "kl": "KL divergence from the unchanged answers (nats)", "measure": "measure"}


def terminal_lines(result: LookResult, *, width: int, color: bool) -> Iterator[Text]:
    """Lines for the terminal: the analyses asked for; without any, the head types and the clearest head's map."""
    request, prepared = result.request, result.prepared
    yield _title_line(result)
    if result.prediction:
        yield Text(": ".join(_describe_prediction(result, len(result.prediction))))
    yield Text()
    if not request.has_analyses or (request.intervenes and request.names_head):
        yield from _map_lines(result, width, color)
    if result.effect is not None:
        yield Text(", ".join(request.interventions), style="bold")
        yield from terminal.effect_lines(prepared, result.effect)
    if result.ablation_sweep is not None:
        yield from _sweep_lines(result.ablation_sweep)
    if request.rollout and result.rollout is not None:
        yield from _rollout_lines(result, result.rollout, width, color)
    if result.logit_lens is not None:
        yield from _lens_lines(result, result.logit_lens)
    if result.comparison is not None and result.other is not None:
        yield Text(f"compared with {result.other[0]}", style="bold")
        yield from terminal.comparison_lines(result.comparison)


def _title_line(result: LookResult) -> Text:
    layers, heads = len(result.trace), sum(layer.heads for layer in result.trace.layers)
    model = type(result.prepared.model).__name__
    size = f"{_count(layers, 'attention layer')}, {_count(heads, 'head')}"
    details = f"  {model}, {size}, {_describe_input(result.prepared)}"
    return Text(result.prepared.checkpoint, style="bold").append(details, style="dim not bold")


def _describe_input(prepared: PreparedInput) -> str:
    if prepared.image is not None:
        return f"{prepared.image.rows} × {prepared.image.columns} patches"
    target = _count(len(prepared.tokens), "token")
    return f"source {_count(len(prepared.source), 'token')}, target {target}" if prepared.source else target


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_prediction(result: LookResult, count: int) -> tuple[str, str]:
    """What is predicted ("class" or "next token"), and the most likely answers with their probabilities."""
    answers = [f"“{terminal.visible_token(text)}” {p:.3f}" for _, text, p in result.prediction[:count]]
    return ("class" if result.prepared.kind == "image" else "next token"), "  ".join(answers)


def _map_lines(result: LookResult, width: int, color: bool) -> Iterator[Text]:
    """The head types, unless a head is named, and one head's map."""
    if not result.request.names_head:
        yield from terminal.head_type_lines(result.head_types, width)
        yield Text()
    prepared, trace = result.prepared, result.trace
    layer, head = trace.layer(result.layer), result.head_types.at(result.layer, result.head)
    is_chosen = head.type == "mixed" and not result.request.names_head
    why = "; the least uniform head, since no type says more than uniform" if is_chosen else ""
    yield Text(f"layer {result.layer}, head {result.head}", style="bold").append(
        f"  {layer.name}, {terminal.describe_head(head)}{why}", style="dim not bold"
    )
    if make_patch_image(prepared, trace) is not None:
        found = attention_over_image(prepared.model, trace, result.layer, result.head, query=result.query)
        yield Text(f"what “{prepared.tokens[result.query]}” attends to", style="dim")
        yield from terminal.image_map_lines(found, color=color)
        return
    rows, columns = prepared.labels(layer)
    yield from terminal.head_map_lines(trace, result.layer, result.head, rows, columns, width=width, color=color)


def _sweep_lines(sweep: SweepTable) -> Iterator[Text]:
    yield Text(f"each head ablated: increase of the {UNITS[sweep.measure]}", style="bold")
    if sweep.measure == "loss":
        yield Text(f"without ablation: {sweep.before:.4f}", style="dim")
    yield from terminal.table_lines([str(index) for index in range(len(sweep.names))], sweep.columns, sweep.table)
    largest = ", ".join(f"{layer}.{head} {cost:+.3f}" for layer, head, cost in sweep.largest())
    yield Text(f"largest: {largest}")


def _rollout_lines(result: LookResult, rollout: Rollout, width: int, color: bool) -> Iterator[Text]:
    prepared, trace = result.prepared, result.trace
    yield Text(f"rollout through {len(rollout.layers)} layers", style="bold")
    if make_patch_image(prepared, trace) is not None:
        found = rollout_over_image(prepared.model, trace, query=result.query)
        yield from terminal.image_map_lines(found, color=color)
        return
    columns = prepared.labels(trace.layer(rollout.layers[0]))[1]
    rows = [columns[query] for query in rollout.queries]
    yield from terminal.head_map_lines(rollout.to_trace(), 0, 0, rows, columns, width=width, color=color)


def _lens_lines(result: LookResult, lens: LogitLens) -> Iterator[Text]:
    position, where = min(result.query, len(lens.positions) - 1), ""
    if len(lens.positions) > 1:
        where = f" after token {position} “{terminal.visible_token(result.prepared.tokens[position])}”"
    yield Text(f"logit lens: the prediction of each layer{where}", style="bold")
    yield from terminal.lens_lines(result.prepared, lens, position)


def make_result_scene(result: LookResult) -> Scene:
    """The scene for the viewer: all heads, the rollout if there is one, and the other trace of a comparison."""
    prepared, rollout = result.prepared, result.rollout
    scene = make_look_scene(prepared, result.trace, result.head_types, facts=_facts(result))
    if rollout is not None and len(rollout.queries) == rollout.weights.shape[1]:
        axis = next(panel.queries for panel in scene.panels if panel.name == rollout.layers[0])
        scene = add_map(scene, "rollout", rollout.weights, queries=axis)
    if result.other is not None:
        name, other, trace = result.other
        scene = combine_scenes(scene, make_look_scene(other, trace), name)
    return scene


def _facts(result: LookResult) -> list[tuple[str, str]]:
    facts = [("model", f"{type(result.prepared.model).__name__}, {_describe_input(result.prepared)}")]
    intervenes = bool(result.request.interventions)
    if result.prediction:
        name, answers = _describe_prediction(result, 3)
        facts.append((f"{name} without the intervention" if intervenes else name, answers))
    if intervenes:
        facts.append(("intervention", ", ".join(result.request.interventions)))
    if result.effect is not None and result.effect.top_before:
        facts.append(("its effect", terminal.describe_changed_answer(result.prepared, result.effect)))
    return facts


def draw_png(result: LookResult) -> bytes:
    """A PNG: the sweep's table, attention over an image, one head if one is named, otherwise all heads."""
    sweep = result.ablation_sweep
    if sweep is not None:
        names = [f"{index}  {name}" for index, name in enumerate(sweep.names)]
        title = f"{result.prepared.checkpoint}: each head ablated"
        return png.draw_table(sweep.table, names, sweep.columns, title, f"increase of the {UNITS[sweep.measure]}")
    scene = make_result_scene(result)
    panel = head = None
    if result.request.names_head:
        panel = next(each for each in scene.panels if each.place == result.layer)
        head = result.head
    if scene.image is not None:
        return png.draw_overlay(scene, result.query, panel, head)
    if panel is not None:
        return png.draw_head(scene, panel, result.head)
    if result.request.rollout:
        return png.draw_head(scene, next(each for each in scene.panels if each.place < 0), 0)
    return png.draw_heads(scene)
