"""API of the Models page: open models, run them on inputs, send maps of heads, intervene, compare, sweep."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from qkv.data.speech.wav import Audio, write_wav
from qkv.interp.ablation import ablation_sweep
from qkv.interp.comparison import compare
from qkv.studio.jobs import Job
from qkv.studio.models.inputs import TooLongError
from qkv.studio.models.looks import LookStore, map_window
from qkv.studio.models.store import ModelStore
from qkv.studio.models.views import head_types_json, look_json, model_json
from qkv.studio.responses import NotFoundError, array_response, get_route, post_route
from qkv.studio.server import Studio

MIN_SIZE, MAX_SIZE = 8, 1024  # cells along a side of a map
YIELD_SECONDS = 0.002  # between releasing and taking a lock, so that others can take it


def routes(studio: Studio) -> list[BaseRoute]:
    """The routes of the Models page."""
    api = ModelsApi(studio)
    return [
        get_route("/api/models", api.list),
        post_route("/api/models/folder", lambda body: api.models.add(_parse_text(body, "path")).to_json()),
        post_route("/api/models/open", lambda body: model_json(api.models.get(_parse_text(body, "model")))),
        post_route("/api/models/look", api.look),
        post_route("/api/models/intervene", lambda body: look_json(api.looks.intervene(body))),
        post_route("/api/models/predictions", api.predictions),
        post_route("/api/models/head_types", lambda body: head_types_json(api.looks.get(body["look"]))),
        post_route("/api/models/layer", api.layer),
        post_route("/api/models/window", api.window),
        get_route("/api/models/audio/{look}", api.audio),
        post_route("/api/models/compare", api.compare),
        post_route("/api/models/sweep", api.sweep),
    ]


class ModelsApi:
    """The handlers of the Models page."""

    def __init__(self, studio: Studio) -> None:
        self.jobs = studio.jobs
        self.models = ModelStore(studio.runs, studio.models)
        self.looks = LookStore(self.models)

    def list(self, request: Request) -> dict[str, Any]:
        """The models that can be opened."""
        return {"models": [source.to_json() for source in self.models.sources()]}

    def look(self, body: dict[str, Any]) -> Response | dict[str, Any]:
        """Run a model; a text that is too long is answered with 413, so that the page can offer to shorten it."""
        try:
            return look_json(self.looks.look(body))
        except TooLongError as problem:
            return JSONResponse({"error": str(problem), "length": problem.length, "limit": problem.limit}, 413)

    def predictions(self, body: dict[str, Any]) -> dict[str, Any]:
        """The predictions at one position."""
        look = self.looks.get(body["look"])
        return look.predictions.at(_parse_integer(body, "position", -1, 10**9), look.prepared)

    def layer(self, body: dict[str, Any]) -> Response:
        """Small maps of all heads of a layer; layer -1 is the rollout."""
        look = self.looks.get(body["look"])
        trace, layer = look.maps(_parse_integer(body, "layer", -1, len(look.trace) - 1))
        size = _parse_integer(body, "size", MIN_SIZE, MAX_SIZE)
        maps = [trace.map(layer, head, size).float().cpu().numpy() for head in range(trace.layer(layer).heads)]
        return array_response({"layer": body["layer"]}, {"maps": np.stack(maps)})

    def window(self, body: dict[str, Any]) -> Response:
        """A rectangle of one map, pooled if it has more than size × size weights."""
        look = self.looks.get(body["look"])
        trace, layer = look.maps(_parse_integer(body, "layer", -1, len(look.trace) - 1))
        whole = trace.layer(layer)
        head = _parse_integer(body, "head", 0, whole.heads - 1)
        rows, columns = _parse_range(body, "rows", whole.queries), _parse_range(body, "columns", whole.keys)
        size = _parse_integer(body, "size", MIN_SIZE, MAX_SIZE)
        weights, step = map_window(trace, layer, head, rows, columns, size)
        described = {"rows": [rows.start, rows.stop], "columns": [columns.start, columns.stop], "step": step}
        return array_response(described, {"weights": weights.float().cpu().numpy()})

    def audio(self, request: Request) -> Response:
        """The recording of a look as a WAV file that every browser plays."""
        recording, file = self.looks.get(request.path_params["look"]).input.value, io.BytesIO()
        if not isinstance(recording, Audio):
            raise NotFoundError("this look has no recording")
        write_wav(file, recording)
        return Response(file.getvalue(), media_type="audio/wav")

    def compare(self, body: dict[str, Any]) -> dict[str, Any]:
        """The distances between the heads of two looks."""
        return compare(self.looks.get(body["look"]).trace, self.looks.get(body["other"]).trace).to_json()

    def sweep(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start the job that ablates each head in turn."""
        look = self.looks.get(body["look"])
        lock = look.loaded.lock

        def work(job: Job) -> dict[str, Any]:
            def progress(done: int, total: int) -> None:
                lock.release()  # between two heads, other requests may use the model
                try:
                    job.report(done=done, total=total)
                    time.sleep(YIELD_SECONDS)
                finally:
                    lock.acquire()

            with lock:
                return ablation_sweep(look.prepared.model, look.prepared.inputs, progress=progress).to_json()

        return {"job": self.jobs.start("ablation-sweep", work).id}


def _parse_text(body: dict[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {type(value).__name__}")
    return value


def _parse_integer(body: dict[str, Any], name: str, least: int, most: int) -> int:
    value = body[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


def _parse_range(body: dict[str, Any], name: str, size: int) -> range:
    value = body.get(name) or [0, size]
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(end, int) for end in value):
        raise ValueError(f"{name} must be [start, stop], got {value!r}")
    start, stop = value
    if not 0 <= start < stop <= size:
        raise ValueError(f"{name} must lie within 0 to {size}, got {value}")
    return range(start, stop)
