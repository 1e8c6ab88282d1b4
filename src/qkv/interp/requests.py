"""Requests as people write them: 3.1 for a head, x2 for twice a layer's own β, 3.1:5:2 for an edge of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from qkv.checkpoints import bundled as shipped
from qkv.checkpoints.fetch import HUB_ID
from qkv.interp.ablation import beta_of
from qkv.interp.traces.trace import Trace

HEAD = re.compile(r"(?P<layer>.+)\.(?P<head>\d+)")


def layer_of(trace: Trace, asked: str) -> int:
    """A layer's place in the trace, from its place or its name."""
    layer = trace.layer(int(asked) if asked.lstrip("-").isdigit() else asked)
    return next(place for place, each in enumerate(trace.layers) if each is layer)


def head_of(trace: Trace, asked: str) -> tuple[int, int]:
    """(layer, head) of "3.1"."""
    found = HEAD.fullmatch(asked.strip())
    if found is None:
        raise ValueError(f"a head is named by its layer and its number, such as 3.1; got {asked!r}")
    layer, head = layer_of(trace, found["layer"]), int(found["head"])
    heads = trace.layers[layer].heads
    if head >= heads:
        raise ValueError(f"layer {layer} has {heads} heads, 0 to {heads - 1}; got {head} in {asked!r}")
    return layer, head


def silenced_of(trace: Trace, asked: Iterable[str]) -> list[tuple[int, int]]:
    """Heads to be silenced."""
    return [head_of(trace, each) for part in asked for each in part.split(",")]


def betas_of(trace: Trace, asked: Iterable[str]) -> dict[tuple[int, int | None], float]:
    """β of layers and heads: "0.5" and "x2" are for all, "3=x2" for a layer, "3.1=0" for a head."""
    found: dict[tuple[int, int | None], float] = {}
    for each in asked:
        where, equals, value = each.rpartition("=")
        if not equals:
            places: list[tuple[int, int | None]] = [(place, None) for place in range(len(trace.layers))]
        else:
            places = [_place(trace, where)]
        for place in places:
            found[place] = _beta(trace, place[0], value, each)
    return found


def cuts_of(trace: Trace, asked: Iterable[str]) -> list[tuple[int, int | None, int, int]]:
    """Edges to be cut: "3.1:5:2" of one head, "3:5:2" of all heads of a layer; query 5 may not attend to key 2."""
    found: list[tuple[int, int | None, int, int]] = []
    for each in asked:
        where, *ends = each.rsplit(":", 2)
        if len(ends) != 2 or not all(end.strip().isdecimal() for end in ends):
            raise ValueError(f"an edge is head:query:key, such as 3.1:5:2, or 3:5:2 for a whole layer; got {each!r}")
        (layer, head), (query, key) = _place(trace, where.strip()), map(int, ends)
        trace.weights(layer, head or 0, rows=range(query, query + 1), columns=range(key, key + 1))  # says if not
        found.append((layer, head, query, key))
    return found


def _place(trace: Trace, where: str) -> tuple[int, int | None]:
    """A head, or a layer with all of its heads."""
    if HEAD.fullmatch(where) and not any(layer.name == where for layer in trace.layers):
        return head_of(trace, where)
    return layer_of(trace, where), None


def _beta(trace: Trace, layer: int, value: str, asked: str) -> float:
    factor = value.strip().lower().startswith(("x", "×"))
    try:
        number = float(value.strip().lstrip("xX×"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"--beta is a number such as 0.5, x2 for twice a layer's own, or 3=x2 for layer 3; got {asked!r}"
        )
    if not factor:
        return number
    own = beta_of(trace.layers[layer])
    if own is None:
        raise ValueError(f"{trace.layers[layer].name} has no β of its own to multiply; give a number")
    return own * number


def is_checkpoint(asked: str, kind: str) -> bool:
    """Whether what is compared with is a checkpoint, and not an input of this kind."""
    if asked in shipped.names():
        return True
    path = Path(asked).expanduser()
    if path.is_dir() or (path.is_file() and (path.suffix == ".bin" or kind not in ("image", "sound"))):
        return True
    return not path.exists() and "/" in asked and HUB_ID.fullmatch(asked) is not None
