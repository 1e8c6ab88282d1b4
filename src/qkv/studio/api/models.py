"""The Models room: a model by id, an input, its maps by layer and head, and what a change does to its answers."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from qkv.data.wav import Sound, write_wav
from qkv.interp.ablation import sweep
from qkv.interp.compare import compare
from qkv.studio.answers import UnknownError, asking, maps, reading
from qkv.studio.jobs import Job
from qkv.studio.models.given import TooLongError
from qkv.studio.models.looks import Looks, window
from qkv.studio.models.shelf import Shelf
from qkv.studio.models.words import kinds, opened, seen
from qkv.studio.state import Studio

SMALLEST, LARGEST = 8, 1024  # cells along a side of a map that is sent
PAUSE = 0.002  # seconds: who waits for a lock that is taken again at once never gets it


def routes(studio: Studio) -> list[BaseRoute]:
    """What the models room answers."""
    shelf = Shelf(studio.runs, studio.models)
    looks = Looks(shelf)

    def named(body: dict[str, Any]) -> dict[str, Any]:
        return shelf.add(_word(body, "path")).as_plain()

    def listed(_: Any) -> dict[str, Any]:
        return {"models": [source.as_plain() for source in shelf.sources()]}

    return [
        reading("/api/models", listed),
        asking("/api/models/folder", named),
        asking("/api/models/open", lambda body: opened(shelf.get(_word(body, "model")))),
        asking("/api/models/look", lambda body: _bounded(looks, body)),
        asking("/api/models/change", lambda body: seen(looks.change(body))),
        asking("/api/models/answers", lambda body: _answers(looks, body)),
        asking("/api/models/kinds", lambda body: kinds(looks.get(body["look"]))),
        asking("/api/models/layer", lambda body: _layer(looks, body)),
        asking("/api/models/window", lambda body: _window(looks, body)),
        reading("/api/models/sound/{look}", lambda request: _sound(looks, request.path_params["look"])),
        asking("/api/models/compare", lambda body: _compared(looks, body)),
        asking("/api/models/sweep", lambda body: _sweep(studio, looks, body)),
    ]


def _word(body: dict[str, Any], name: str) -> str:
    found = body[name]
    if not isinstance(found, str):
        raise ValueError(f"{name} is a text; got {type(found).__name__}")
    return found


def _number(body: dict[str, Any], name: str, least: int, most: int) -> int:
    found = body[name]
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}; got {found!r}")
    return found


def _bounded(looks: Looks, body: dict[str, Any]) -> Response | dict[str, Any]:
    """A look; an input that is too long is answered apart, so that the page can offer to shorten it."""
    try:
        return seen(looks.look(body))
    except TooLongError as problem:
        return JSONResponse({"error": str(problem), "length": problem.length, "limit": problem.limit}, 413)


def _answers(looks: Looks, body: dict[str, Any]) -> dict[str, Any]:
    look = looks.get(body["look"])
    return look.told.at(_number(body, "place", -1, 10**9), look.subject)


def _layer(looks: Looks, body: dict[str, Any]) -> Response:
    """Small maps of all heads of a layer; layer −1 is the rollout."""
    look = looks.get(body["look"])
    trace, layer = look.maps(_number(body, "layer", -1, len(look.trace) - 1))
    size = _number(body, "size", SMALLEST, LARGEST)
    found = [trace.map(layer, head, size).float().cpu().numpy() for head in range(trace.layer(layer).heads)]
    return maps({"layer": body["layer"]}, {"maps": np.stack(found)})


def _window(looks: Looks, body: dict[str, Any]) -> Response:
    """A rectangle of one map, as exact as it fits into size × size."""
    look = looks.get(body["look"])
    trace, layer = look.maps(_number(body, "layer", -1, len(look.trace) - 1))
    found = trace.layer(layer)
    head = _number(body, "head", 0, found.heads - 1)
    rows, columns = _run(body, "rows", found.queries), _run(body, "columns", found.keys)
    weights, step = window(trace, layer, head, rows, columns, _number(body, "size", SMALLEST, LARGEST))
    said = {"rows": [rows.start, rows.stop], "columns": [columns.start, columns.stop], "step": step}
    return maps(said, {"weights": weights.float().cpu().numpy()})


def _run(body: dict[str, Any], name: str, size: int) -> range:
    asked = body.get(name) or [0, size]
    if not isinstance(asked, list) or len(asked) != 2 or not all(isinstance(place, int) for place in asked):
        raise ValueError(f"{name} is [start, stop]; got {asked!r}")
    start, stop = asked
    if not 0 <= start < stop <= size:
        raise ValueError(f"{name} lie within 0 to {size}; got {asked}")
    return range(start, stop)


def _sound(looks: Looks, name: str) -> Response:
    """The recording of a look as a file that every browser plays, whatever came in."""
    sound, file = looks.get(name).given.value, io.BytesIO()
    if not isinstance(sound, Sound):
        raise UnknownError("this look has no recording")
    write_wav(file, sound)
    return Response(file.getvalue(), media_type="audio/wav")


def _compared(looks: Looks, body: dict[str, Any]) -> dict[str, Any]:
    return compare(looks.get(body["look"]).trace, looks.get(body["other"]).trace).to_json()


def _sweep(studio: Studio, looks: Looks, body: dict[str, Any]) -> dict[str, Any]:
    """Each head silenced in turn, as long work."""
    look = looks.get(body["look"])

    def work(job: Job) -> dict[str, Any]:
        lock = look.held.lock

        def progress(done: int, total: int) -> None:
            lock.release()  # between two heads others may use the model
            try:
                job.say(done=done, total=total)
                time.sleep(PAUSE)
            finally:
                lock.acquire()

        with lock:
            return sweep(look.subject.model, look.subject.inputs, progress=progress).to_json()

    return {"job": studio.jobs.start("models-sweep", work).id}
