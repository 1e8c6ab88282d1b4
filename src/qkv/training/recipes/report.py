"""A run as one offline page: what was done, how it went, what came of it."""

from __future__ import annotations

import html
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv import __version__
from qkv._figures import Lines, Map, Panel, draw
from qkv._html import page, table
from qkv.training.metrics_log import read as read_metrics
from qkv.training.recipes.plain import to_toml

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
    """The whole page."""
    recipe = run.recipe
    told = (
        f"{recipe.kind}, {run.parameters:,} parameters, seed {recipe.seed}; {run.seconds / 60:.1f} minutes of training"
    )
    parts = [f'<p class="soft">{html.escape(told)} · qkv {__version__}</p>', _figures(run)]
    from qkv.training.runs import stage_folder

    for stage in task.stages:
        panels = curves(stage_folder(run.folder, task, stage))
        title = "How it learned" if len(task.stages) == 1 else f"How it learned: {stage.name}"
        if panels:
            parts += [f"<h2>{html.escape(title)}</h2>", f"<figure>{draw(panels, name=stage.name)}</figure>"]
    confusion = run.result.get("test", {}).get("confusion")
    if confusion:
        parts += ["<h2>What was taken for what</h2>", _confusion(confusion, run.result["test"]["classes"])]
    parts += ["<h2>Samples</h2>", _samples(samples)]
    parts += [f'<p class="soft">{html.escape(text)}</p>' for text in run.notes]
    parts += ["<h2>The recipe</h2>", f"<pre>{html.escape(to_toml(recipe.to_table()))}</pre>"]
    again = f"qkv train --config {shlex.quote(str(run.folder / 'recipe.toml'))}"
    parts.append(f"<p>Again: <code>{html.escape(again)}</code></p>")
    return page(f"{recipe.system}: a run", *parts, style=STYLE)


def curves(folder: Path) -> list[Panel]:
    """Loss, and each other number of evaluation, over steps."""
    lines = read_metrics(folder)
    steps = [line["step"] for line in lines if "loss" in line]
    losses = [line["loss"] for line in lines if "loss" in line]
    looked = [(line["step"], line["evaluation"]) for line in lines if "evaluation" in line]
    panels: list[Panel] = []
    if steps:
        thin = max(len(steps) // POINTS, 1)
        panels.append(Lines("loss in training", "step", x=steps[::thin], series={"training": losses[::thin]}))
    for name in dict.fromkeys(name for _, numbers in looked for name in numbers):
        points = [(step, numbers[name]) for step, numbers in looked if numbers.get(name) is not None]
        if len(points) > 1:
            x, y = zip(*points, strict=True)
            panels.append(Lines(f"{name.replace('_', ' ')} in validation", "step", x=x, series={"validation": y}))
    return panels


def _figures(run: Run) -> str:
    """The numbers that matter, large."""
    shown = [
        f"<div><b>{figure(name, value)}</b><span>{html.escape(name.replace('_', ' '))}, {part}</span></div>"
        for part, numbers in run.result.items()
        for name, value in numbers.items()
        if isinstance(value, int | float)
    ]
    return f'<div class="figures">{"".join(shown)}</div>'


def figure(name: str, value: float) -> str:
    """A number as people read it: shares as percentages."""
    share = name in ("accuracy", "too_short") or name.startswith("word_error_rate")
    return f"{value:.2%}" if share else f"{value:,.3f}"


def _confusion(counts: list[list[int]], classes: list[str]) -> str:
    shown = Map("rows are, columns were taken for", "taken for", "is", matrix=counts, labels=classes)
    picture = draw([shown], name="confusion")
    wrong = sorted(
        (
            (count, classes[i], classes[j])
            for i, row in enumerate(counts)
            for j, count in enumerate(row)
            if i != j and count
        ),
        reverse=True,
    )[:5]
    listed = "; ".join(f"{true} taken for {said} ({count} ×)" for count, true, said in wrong) or "none at all"
    return f"<figure>{picture}<figcaption>Most often: {html.escape(listed)}.</figcaption></figure>"


def _samples(samples: list[dict[str, Any]]) -> str:
    if not samples:
        return "<p>None.</p>"
    if "picture" in samples[0]:
        shown = "".join(
            f'<figure class="{"right" if row["is"] == row["taken for"] else "wrong"}">'
            f'<img src="{html.escape(row["picture"])}" alt="{html.escape(row["is"])}">'
            f"{html.escape(row['is'])} → {html.escape(row['taken for'])}<br>{row['sure']:.0%} sure</figure>"
            for row in samples
        )
        notice = "The most doubtful first; framed ones were taken for something else."
        return f'<p class="soft">{notice}</p><div class="gallery">{shown}</div>'
    columns = list(samples[0])
    return table(columns, [[_told(row[name]) for name in columns] for row in samples])


def _told(value: Any) -> object:
    if isinstance(value, str) and "\n" in value:
        return f"<pre>{html.escape(value)}</pre>".encode()
    return value
