"""Models and looks as JSON for the Models page, with the command and the Python lines that reproduce a look."""

from __future__ import annotations

import shlex
from typing import Any

from qkv.interp.attribution import patch_grid
from qkv.interp.forward import to_json
from qkv.interp.head_types import HEAD_TYPES
from qkv.interp.inputs import PreparedInput
from qkv.interp.media_inputs import token_seconds
from qkv.models import Transcriber
from qkv.models.base import Model
from qkv.studio.models.inputs import MAX_FILE_BYTES, image_data_url, list_samples, max_tokens
from qkv.studio.models.looks import Edge, Look
from qkv.studio.models.store import LoadedModel

MAX_TEXT = 400  # characters of a text in a command; a longer one is read from a file
GROUPS = {"text": "self-attention over the text", "image": "patches", "audio": "self-attention over the recording"}


def model_json(loaded: LoadedModel) -> dict[str, Any]:
    """An opened model."""
    model = loaded.model
    parameters = model.num_parameters if isinstance(model, Model) else sum(p.numel() for p in model.parameters())
    return {
        **loaded.source.to_json(),
        "kind": loaded.kind,
        "model": type(model).__name__,
        "parameters": parameters,
        "max_tokens": max_tokens(loaded) if loaded.kind in ("text", "pair") else None,
        "max_bytes": MAX_FILE_BYTES,
        "notes": list(loaded.notes),
        "samples": list_samples(loaded),
    }


def look_json(look: Look) -> dict[str, Any]:
    """A look without its maps, which the page requests separately."""
    prepared, axes = look.prepared, [list(look.prepared.tokens)]
    layers = []
    for layer in look.trace.layers:
        sides = [list(names) for names in prepared.labels(layer)]
        for names in sides:
            if names not in axes:
                axes.append(names)
        layers.append(
            {
                "name": layer.name,
                "heads": layer.heads,
                "queries": layer.queries,
                "keys": layer.keys,
                "rows": axes.index(sides[0]),
                "columns": axes.index(sides[1]),
                "scale": layer.scale,
                "group": _group(prepared, layer),
            }
        )
    return {
        "look": look.id,
        "model": look.loaded.source.id,
        "kind": prepared.kind,
        "axes": axes,
        "layers": layers,
        "has_rollout": look.has_rollout,
        "can_classify": look.can_classify,
        "notes": list(prepared.notes),
        "image": _image_json(look),
        "token_seconds": token_seconds(prepared.model) if isinstance(prepared.model, Transcriber) else None,
        "predictions": look.predictions.at(-1, prepared),
        "effect": None if look.effect is None else {**look.effect.to_json(), "increase": to_json(look.effect.increase)},
        "reproduce": reproduce(look),
    }


def head_types_json(look: Look) -> dict[str, Any]:
    """The type of each head, and the head whose type is clearest."""
    found = look.head_types()
    clearest = found.clearest()
    return {
        "clearest": [clearest.layer, clearest.head],
        "types": HEAD_TYPES,
        "heads": [
            {
                "layer": head.layer,
                "head": head.head,
                "type": head.type,
                "score": to_json(head.score),
                "offset": head.offset,
                "scores": to_json(head.scores),
            }
            for head in found.heads
        ],
    }


def reproduce(look: Look) -> dict[str, Any]:
    """The parts of the command and of the Python lines that reproduce a look; the page adds layer and head.

    last: the input, if it must follow all options because it begins with a hyphen.
    text: the content of text.txt, if the input is too long for a command.
    """
    checkpoint, name = look.loaded.source.checkpoint, look.input.name
    shown = '"$(cat text.txt)"' if _is_long(look) else shlex.quote(name)
    target = ["--target", look.input.target] if isinstance(look.input.target, str) else []
    is_option = name.startswith("-")
    flags = [word for head in look.interventions.ablate for word in ("--ablate", head)]
    flags += [word for scale in look.interventions.scale for word in ("--scale", scale)]
    flags += [word for edge in look.interventions.mask for word in ("--mask-edge", _edge_text(edge))]
    command = [shlex.join(["qkv", "look", checkpoint]), "" if is_option else shown, shlex.join(target)]
    other_target = look.input.target or look.target
    return {
        "command": " ".join(filter(None, command)),
        "last": f"-- {shown}" if is_option else "",
        "text": name if _is_long(look) else "",
        "flags": shlex.join(flags),
        "checkpoint": checkpoint,
        "input": _input_code(look),
        "target": repr(other_target) if other_target else "",
        "open": _open_lines(look),
        "intervene": _intervene_lines(look),
        "effect": ""
        if look.effect is None
        else "print(measure_effect(prepared.model, prepared.inputs, **interventions))",
    }


def _group(prepared: PreparedInput, layer: Any) -> str:
    if prepared.kind != "pair":
        return GROUPS[prepared.kind]
    if layer.cross:
        return "target to source"
    return "source" if "encoder" in layer.name and "decoder" not in layer.name else "target"


def _image_json(look: Look) -> dict[str, Any] | None:
    image = look.prepared.image
    if image is None:
        return None
    try:
        patch_grid(look.prepared.model, look.trace)
    except ValueError:
        return None
    source = image_data_url(image.image)
    return {"source": source, "rows": image.rows, "columns": image.columns, "special": image.special}


def _is_long(look: Look) -> bool:
    return look.prepared.kind in ("text", "pair") and len(look.input.name) > MAX_TEXT


def _open_lines(look: Look) -> list[str]:
    checkpoint = repr(look.loaded.source.checkpoint)
    target = f", target={look.input.target!r}" if look.input.target else ""
    lines = ["import qkv", "from qkv.interp import measure_effect, prepare_input"]
    if look.input.sample is not None and look.prepared.kind == "audio":
        lines += ["from qkv.checkpoints import bundled", ""]
        lines += [f'recording = bundled.folder({checkpoint}) / "{look.input.name}"']
    elif look.input.sample is not None:
        lines += ["from PIL import Image", "from qkv.data.images.load import load_digits", ""]
        lines += [f"image = Image.fromarray(load_digits().test.pixels[{look.input.sample}, 0].numpy())"]
    lines.append(f"prepared = prepare_input({checkpoint}, {_input_code(look)}{target})")
    return [*lines, "trace = qkv.interp.trace(prepared.model, prepared.inputs)"]


def _input_code(look: Look) -> str:
    """The input as Python code."""
    if look.input.sample is not None:
        return "recording" if look.prepared.kind == "audio" else "image"
    return 'open("text.txt").read()' if _is_long(look) else repr(look.input.name)


def _edge_text(edge: Edge) -> str:
    layer, head, query, key = edge
    return f"{layer}{'' if head is None else f'.{head}'}:{query}:{key}"


def _intervene_lines(look: Look) -> list[str]:
    if not look.interventions:
        return []
    arguments = look.interventions.arguments((look.original or look).trace)
    return [
        f"interventions = {arguments!r}",
        "with qkv.interp.intervene(prepared.model, **interventions):",
        "    trace = prepared.trace()",
    ]
