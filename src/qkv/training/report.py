"""The report of a run (report.html): one offline page with curves, metrics, samples and the recipe."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv import __version__
from qkv._config import to_toml
from qkv._figures import FigurePanel, Heatmap, Lines, draw_svg
from qkv._html import page, table
from qkv.training.metrics import read_metrics
from qkv.training.records import format_metric

if TYPE_CHECKING:
    from qkv.training.recipes.definition import Task
    from qkv.training.runs import Run

POINTS = 400  # of a curve
STYLE = """
.gallery { display: flex; flex-wrap: wrap; gap: .9rem; margin: .8rem 0; }
.gallery figure { margin: 0; width: 5.6rem; font-size: .82rem; line-height: 1.25; }
.gallery img { width: 5.6rem; height: 5.6rem; image-rendering: pixelated; display: block;
  border: 1px solid var(--line); }
.gallery .wrong img { border: 4px solid var(--bad); }
td pre { margin: 0; max-width: 38rem; }
.figures { display: flex; flex-wrap: wrap; gap: 2.4rem; margin: 1.2rem 0 .4rem; }
.figures div b { display: block; font-size: 1.7rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures div span { color: var(--soft); font-size: .9rem; }
"""


def report_page(run: Run, task: Task, samples: list[dict[str, Any]]) -> str:
    """Render the page."""
    config = run.config
    summary = (
        f"{config.model_kind}, {run.parameters:,} parameters, seed {config.seed}; "
        f"{run.seconds / 60:.1f} minutes of training"
    )
    parts = [f'<p class="soft">{html.escape(summary)} · qkv {__version__}</p>', _render_metrics(run)]
    for stage in task.stages:
        panels = training_curves(task.stage_folder(run.folder, stage), stage.evaluated_on)
        title = "Training" if len(task.stages) == 1 else f"Training: {stage.name}"
        if panels:
            parts += [f"<h2>{html.escape(title)}</h2>", f"<figure>{draw_svg(panels, name=stage.name)}</figure>"]
    test = run.result.get("test", {})
    if test.get("confusion"):
        parts += ["<h2>Confusion matrix</h2>", _render_confusion(test["confusion"], test["classes"])]
    parts += ["<h2>Samples</h2>", _render_samples(samples)]
    parts += [f'<p class="soft">{html.escape(text)}</p>' for text in run.notes]
    parts += ["<h2>Recipe</h2>", f"<pre>{html.escape(to_toml(config.to_table()))}</pre>"]
    command = f"qkv train --config {shlex.quote(str(run.folder / 'recipe.toml'))}"
    parts.append(f"<p>Train it again: <code>{html.escape(command)}</code></p>")
    return page(f"{config.recipe}: training run", *parts, style=STYLE)


def training_curves(folder: Path, evaluated_on: str = "validation") -> list[FigurePanel]:
    """Draw the training loss, and each metric of the evaluations, over steps."""
    lines = read_metrics(folder)
    steps = [line["step"] for line in lines if "loss" in line]
    losses = [line["loss"] for line in lines if "loss" in line]
    evaluations = [(line["step"], line["evaluation"]) for line in lines if "evaluation" in line]
    panels: list[FigurePanel] = []
    if steps:
        every = max(len(steps) // POINTS, 1)
        panels.append(Lines("training loss", "step", x=steps[::every], series={"training": losses[::every]}))
    for name in dict.fromkeys(name for _, metrics in evaluations for name in metrics):
        points = [(step, metrics[name]) for step, metrics in evaluations if metrics.get(name) is not None]
        if len(points) > 1:
            x, y = zip(*points, strict=True)
            panels.append(Lines(f"{evaluated_on} {name.replace('_', ' ')}", "step", x=x, series={evaluated_on: y}))
    return panels


def describe_best(best: Mapping[str, Any]) -> tuple[str, str]:
    """Describe the best epoch of a run that was picked on the test set: the metric's name, and its value and epoch.

    >>> describe_best({"accuracy": 0.6796, "epoch": 90.0, "picked_on": "best epoch picked on the test set"})
    ('best accuracy (test)', '67.96% at epoch 90 (best epoch picked on the test set)')
    """
    (name, value), *_ = best.items()
    return f"best {name} (test)", f"{format_metric(name, value)} at epoch {best['epoch']:g} ({best['picked_on']})"


def _render_metrics(run: Run) -> str:
    cells = [
        f"<div><b>{format_metric(name, value)}</b><span>{html.escape(name.replace('_', ' '))}, {part}</span></div>"
        for part, metrics in run.result.items()
        if part != "best"
        for name, value in metrics.items()
        if isinstance(value, int | float)
    ]
    best = ""
    if "best" in run.result:
        title, text = describe_best(run.result["best"])
        best = f"<p><b>{html.escape(title)}</b>: {html.escape(text)}</p>"
    return f'<div class="figures">{"".join(cells)}</div>{best}'


def _render_confusion(counts: list[list[int]], classes: list[str]) -> str:
    figure = draw_svg(
        [Heatmap("rows: true class, columns: predicted", "predicted", "true class", matrix=counts, labels=classes)],
        name="confusion",
    )
    errors = [
        (count, classes[i], classes[j])
        for i, row in enumerate(counts)
        for j, count in enumerate(row)
        if i != j and count
    ]
    most = [f"{true} as {predicted} ({count} ×)" for count, true, predicted in sorted(errors, reverse=True)[:5]]
    caption = html.escape("; ".join(most) or "none")
    return f"<figure>{figure}<figcaption>Most frequent errors: {caption}.</figcaption></figure>"


def _render_samples(samples: list[dict[str, Any]]) -> str:
    if not samples:
        return "<p>None.</p>"
    if "image" in samples[0]:
        figures = "".join(_render_image(row) for row in samples)
        order = "Wrong predictions come first, in a frame; then the least confident right ones."
        note = f"True class → predicted class. {order}"
        return f'<p class="soft">{note}</p><div class="gallery">{figures}</div>'
    columns = list(samples[0])
    return table(columns, [[_render_cell(row[name]) for name in columns] for row in samples])


def _render_image(row: dict[str, Any]) -> str:
    correct = "right" if row["label"] == row["prediction"] else "wrong"
    return (
        f'<figure class="{correct}"><img src="{html.escape(row["image"])}" alt="{html.escape(row["label"])}">'
        f"{html.escape(row['label'])} → {html.escape(row['prediction'])}<br>{row['confidence']:.0%} confident</figure>"
    )


def _render_cell(value: Any) -> object:
    if isinstance(value, str) and "\n" in value:
        return f"<pre>{html.escape(value)}</pre>".encode()
    return value
