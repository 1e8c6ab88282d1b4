"""From a subject (a checkpoint with an input) to a scene: its tokens, its heads' kinds, its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from qkv.interp.attention_over_image import picture_grid
from qkv.interp.head_types import NAMED, Head, Heads
from qkv.interp.subject import Subject
from qkv.interp.traces.trace import Trace
from qkv.interp.viewer.scene import Axis, Picture, Scene, Types, scene_of

AXIS = {"text": "text", "pair": "target", "image": "patches", "sound": "sound"}


def scene_of_subject(
    subject: Subject,
    trace: Trace,
    heads: Heads | None = None,
    *,
    facts: Sequence[tuple[str, str]] = (),
    title: str | None = None,
) -> Scene:
    """The scene of a subject's trace, with its heads' kinds where they were measured."""
    tokens = {AXIS[subject.kind]: subject.tokens}
    tokens = {"source": subject.source, **tokens} if subject.source else tokens
    return scene_of(
        trace,
        tokens,
        title=title or subject.checkpoint.rstrip("/").split("/")[-1],
        types=None if heads is None else types_of(heads),
        facts=facts,
        picture=picture_of(subject, trace),
    )


def types_of(heads: Heads) -> list[list[Types]]:
    """For each layer and head the kinds that it is called by, the one that names it first."""
    found: list[list[Types]] = [[] for _ in heads.names]
    for head in heads.heads:
        found[head.layer].append(_types(head))
    return found


def _types(head: Head) -> Types:
    told = [(kind, score) for kind, score in head.scores.items() if score is not None and score >= NAMED[kind]]
    return tuple(sorted(told, key=lambda each: (each[0] != head.kind, -each[1])))


def picture_of(subject: Subject, trace: Trace) -> Picture | None:
    """The picture, if every layer runs over all of its patches."""
    if subject.picture is None:
        return None
    try:
        picture_grid(subject.model, trace)
    except ValueError:
        return None
    pixels = torch.from_numpy(np.array(subject.picture.image.convert("RGB")))
    return Picture(pixels, subject.picture.rows, subject.picture.columns, subject.picture.special)


def beside(scene: Scene, other: Scene, name: str) -> Scene:
    """Two scenes on one page: the other's maps follow, their axes told apart by its name."""
    shift = len(scene.axes)
    axes = tuple(Axis(f"{axis.name} · {name}", axis.tokens) for axis in other.axes)
    panels = tuple(replace(panel, queries=panel.queries + shift, keys=panel.keys + shift) for panel in other.panels)
    return replace(scene, axes=(*scene.axes, *axes), panels=(*scene.panels, *panels))
