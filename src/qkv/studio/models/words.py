"""A look in words: what the page shows of it, and the command and the Python that give the same without the page."""

from __future__ import annotations

import shlex
from typing import Any

from qkv.interp.ablation import beta_of
from qkv.interp.attention_over_image import picture_grid
from qkv.interp.audio import token_seconds
from qkv.interp.head_types import KINDS
from qkv.interp.result import plain
from qkv.interp.subject import Subject
from qkv.interp.viewer.terminal import telling
from qkv.models import Transcriber
from qkv.models.base import Model
from qkv.studio.models.given import BYTES, picture_uri, room, samples
from qkv.studio.models.looks import Look
from qkv.studio.models.shelf import Held

LETTERS = {kind: kind[0].upper() for kind in KINDS} | {"positional": "L", "offset": "K", "mixed": "·"}
LONG = 400  # letters of a text from which on a command reads it from a file
WHERE = {(False, False): "target on target", (False, True): "source on source", (True, False): "target on source"}


def opened(held: Held) -> dict[str, Any]:
    """What the page shows of a model before it was given anything."""
    model = held.model
    return {
        **held.source.as_plain(),
        "kind": held.kind,
        "model": type(model).__name__,
        "parameters": model.num_parameters if isinstance(model, Model) else sum(p.numel() for p in model.parameters()),
        "room": room(held) if held.kind in ("text", "pair") else None,
        "largest": BYTES,
        "notes": list(held.notes),
        "samples": samples(held),
    }


def seen(look: Look) -> dict[str, Any]:
    """What the page shows of a look; maps are asked for apart."""
    subject, axes = look.subject, [list(look.subject.tokens)]
    layers = []
    for layer in look.trace.layers:
        sides = [list(names) for names in subject.labels(layer)]
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
                "beta": beta_of(layer),
                "group": _group(subject, layer),
            }
        )
    return {
        "look": look.id,
        "model": look.held.source.id,
        "kind": subject.kind,
        "axes": axes,
        "layers": layers,
        "rolls": look.rolls,
        "tells_kinds": look.tells_kinds,
        "notes": list(subject.notes),
        "picture": _picture(look),
        "second": token_seconds(subject.model) if isinstance(subject.model, Transcriber) else None,
        "told": look.told.at(-1, subject),
        "effect": None if look.effect is None else _effect(look),
        "reproduce": reproduce(look),
    }


def _group(subject: Subject, layer: Any) -> str:
    if subject.kind != "pair":
        return {"text": "text on itself", "image": "patches on patches", "sound": "sound on itself"}[subject.kind]
    inside = "encoder" in layer.name and "decoder" not in layer.name
    return WHERE[bool(layer.cross), inside and not layer.cross]


def _picture(look: Look) -> dict[str, Any] | None:
    picture = look.subject.picture
    if picture is None:
        return None
    try:
        picture_grid(look.subject.model, look.trace)
    except ValueError:
        return None
    return {
        "source": picture_uri(picture.image),
        "rows": picture.rows,
        "columns": picture.columns,
        "special": picture.special,
    }


def _effect(look: Look) -> dict[str, Any]:
    assert look.effect is not None
    found = look.effect.to_json()
    found["increase"] = plain(look.effect.increase)
    return found


def kinds(look: Look) -> dict[str, Any]:
    """The kinds of heads, with the letter that stands for each in the grid."""
    found = look.kinds()
    best = telling(found)
    return {
        "telling": [best.layer, best.head],
        "kinds": {kind: {"letter": LETTERS[kind], "does": does} for kind, does in KINDS.items()},
        "heads": [
            {
                "layer": head.layer,
                "head": head.head,
                "kind": head.kind,
                "letter": LETTERS[head.kind],
                "score": plain(head.score),
                "offset": head.offset,
                "scores": plain(head.scores),
            }
            for head in found.heads
        ],
    }


def reproduce(look: Look) -> dict[str, Any]:
    """The command without layer and head, which the page adds; and the Python before and after the map is asked for.

    last: the input, where it comes after all options because it begins with a hyphen.
    text: what text.txt holds, where the input is too long for a line.
    """
    where, name = look.held.source.where, look.given.name
    what = '"$(cat text.txt)"' if _is_long(look) else shlex.quote(name)
    words = ["qkv", "look", where]
    target = ["--target", look.given.target] if isinstance(look.given.target, str) else []
    hyphen = name.startswith("-")
    flags = [word for head in look.changes.silence for word in ("--silence", head)]
    flags += [word for beta in look.changes.beta for word in ("--beta", beta)]
    flags += [word for edge in look.changes.cut for word in ("--cut", _edge(*edge))]
    return {
        "command": " ".join(filter(None, [shlex.join(words), "" if hyphen else what, shlex.join(target)])),
        "last": f"-- {what}" if hyphen else "",
        "text": name if _is_long(look) else "",
        "flags": shlex.join(flags),
        "where": where,
        "given": _given(look),
        "target": _target(look),
        "open": _open_lines(look),
        "change": _change_lines(look),
        "effect": "" if look.effect is None else "print(effect(seen.model, seen.inputs, **changes))",
    }


def _is_long(look: Look) -> bool:
    return look.subject.kind in ("text", "pair") and len(look.given.name) > LONG


def _open_lines(look: Look) -> list[str]:
    where = repr(look.held.source.where)
    target = f", target={look.given.target!r}" if look.given.target else ""
    first = ["import qkv", "from qkv.interp import effect, subject"]
    if look.given.sample is not None and look.subject.kind == "sound":
        first += [
            "from qkv.checkpoints import shipped",
            "",
            f'recording = shipped.place({where}) / "{look.given.name}"',
        ]
    elif look.given.sample is not None:
        first += ["from PIL import Image", "from qkv.data.digit_images import digits"]
        first += ["", f"picture = Image.fromarray(digits().test.pixels[{look.given.sample}, 0].numpy())"]
    opened = f"seen = subject.open({where}, {_given(look)}{target})"
    return [*first, opened, "trace = qkv.interp.at(seen.model, seen.inputs)"]


def _given(look: Look) -> str:
    """The input, as Python says it."""
    if look.given.sample is not None:
        return "recording" if look.subject.kind == "sound" else "picture"
    return 'open("text.txt").read()' if _is_long(look) else repr(look.given.name)


def _target(look: Look) -> str:
    """The target that another model is given, as Python says it; nothing where there is none."""
    target = look.given.target or look.target
    return repr(target) if target else ""


def _edge(layer: int, head: int | None, query: int, key: int) -> str:
    return f"{layer}{'' if head is None else f'.{head}'}:{query}:{key}"


def _change_lines(look: Look) -> list[str]:
    if not look.changes:
        return []
    asked = look.changes.on((look.plain or look).trace)
    return [f"changes = {asked!r}", "with qkv.interp.change(seen.model, **changes):", "    trace = seen.trace()"]
