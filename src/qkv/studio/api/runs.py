"""The Runs room: what was trained and what trains now, its curves, two runs beside each other, and new ones."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from qkv.studio.answers import UnknownError, asking, reading
from qkv.studio.journals import last_step, since
from qkv.studio.samples import Sampled, cell, newest, written
from qkv.studio.stamps import Stamp, stamp
from qkv.studio.state import Studio
from qkv.studio.training import Training, command
from qkv.training.lock import holder
from qkv.training.metrics_log import plain
from qkv.training.recipes import SYSTEMS, Run, open_run, system
from qkv.training.recipes.plain import differing, to_toml
from qkv.training.recipes.report import figure
from qkv.training.runs import RECIPE, REPORT, STATUS

ODD = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, OSError)  # what a spoilt file leads to
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # a file may come from anywhere


class Room:
    """What the room's answers share."""

    def __init__(self, studio: Studio) -> None:
        self.runs, self.training, self.sampled = studio.runs, Training(studio.runs), Sampled(studio)
        self._known: dict[str, tuple[Stamp, Run | str]] = {}  # by name: when its files were written, what they say

    def places(self) -> dict[str, Path]:
        """Runs by name: nothing else can be asked for."""
        if not self.runs.is_dir():
            return {}
        found = (path.parent for path in self.runs.glob(f"*/{RECIPE}"))
        return {place.name: place for place in sorted(found, key=_order) if not place.name.startswith(".")}

    def place(self, name: str) -> Path:
        places = self.places()
        if name not in places:
            raise UnknownError(f"there is no run {name!r} in {self.runs}")
        return places[name]

    def read(self, place: Path) -> Run | str:
        """A run as its folder tells it, or what is wrong with the folder; read again when its files have changed."""
        written = stamp(place / RECIPE, place / STATUS)
        kept = self._known.get(place.name)
        if kept is None or kept[0] != written:
            try:
                found: Run | str = open_run(place)
            except ODD as problem:
                found = _unread(problem)
            kept = self._known[place.name] = (written, found)
        return kept[1]

    def listed(self) -> dict[str, Any]:
        """All runs, newest first; and what is being begun."""
        beginning = self.training.beginning()
        return {
            "folder": str(self.runs),
            "runs": [self.described(place) for place in self.places().values()],
            "beginning": [{"id": name} for name in beginning],
            "problem": self.training.problem,
        }

    def described(self, place: Path) -> dict[str, Any]:
        """A run in a line; one whose files hold something odd says so, and the others are listed all the same."""
        run = self.read(place)
        if isinstance(run, str):
            return {"id": place.name, "state": "unreadable", "problem": run}
        try:
            return self._described(place, run)
        except ODD as problem:
            return {"id": place.name, "state": "unreadable", "problem": _unread(problem)}

    def _described(self, place: Path, run: Run) -> dict[str, Any]:
        stages = [(name, stage_place(run, name)) for name in run.recipe.stages]
        steps = [last_step(folder) for _, folder in stages]
        here = self.training.running(place)
        running = here or any(holder(folder) for _, folder in stages)
        state = "finished" if run.finished else "running" if running else "stopped"
        return {
            "id": place.name,
            "state": state,
            "here": here,
            "recipe": run.recipe.system,
            "model": run.recipe.kind,
            "seed": run.recipe.seed,
            "parameters": run.parameters,
            "step": sum(step for step, _ in steps),
            "steps": sum(settings.steps for settings in run.recipe.stages.values()),
            "seconds": plain(run.seconds) or sum(seconds for _, seconds in steps),
            "figures": figures(run),
            "said": _complaint(self.training.said(place)) if state == "stopped" else "",
        }

    def one(self, request: Request) -> dict[str, Any]:
        """A run, with what its curves gained after the marks that are given (?mark.STAGE=…)."""
        place = self.place(request.path_params["run"])
        run = self.read(place)
        described = self.described(place)
        if isinstance(run, str) or described["state"] == "unreadable":
            return {**described, "stages": {}}
        stages = {
            name: since(stage_place(run, name), request.query_params.get(f"mark.{name}", ""))
            for name in run.recipe.stages
        }
        return {
            **described,
            "stages": stages,
            "checkpoint": newest({name: stage_place(run, name) for name in run.recipe.stages}),
            "toml": to_toml(run.recipe.to_table()),
            "report": (place / REPORT).is_file(),
            "notes": [str(note) for note in run.notes],
            "again": command("--config", str(place / RECIPE), "--folder", f"{place}-again"),
            "python": again_in_python(place),
        }

    def compared(self, request: Request) -> dict[str, Any]:
        """In which settings runs differ (?run=A&run=B)."""
        places = [self.place(name) for name in request.query_params.getlist("run")[:12]]
        runs = [(place, run) for place in places if not isinstance(run := self.read(place), str)]
        found = differing([run.recipe.to_table() for _, run in runs])
        return {
            "runs": [place.name for place, _ in runs],
            "settings": [{"name": name, "values": [cell(value) for value in values]} for name, values in found.items()],
            "command": shlex.join(["qkv", "runs", *(str(place) for place, _ in runs)]),
            "python": compared_in_python([place for place, _ in runs]),
        }

    def samples(self, request: Request) -> dict[str, Any]:
        """What a run's model does: at the end, and at the checkpoints that were looked at."""
        place = self.place(request.path_params["run"])
        return {"samples": written(place), "seen": self.sampled.seen(place)}

    def report(self, request: Request) -> Response:
        """A run's report, as a page that can do nothing."""
        path = self.place(request.path_params["run"]) / REPORT
        if not path.is_file():
            raise UnknownError("a run has its report when it is finished")
        return HTMLResponse(path.read_bytes(), headers={"content-security-policy": REPORT_POLICY})

    def stop(self, asked: dict[str, Any]) -> dict[str, Any]:
        """End a run at its next step."""
        name = str(asked["run"])
        if name in self.training.beginning():
            self.training.stop(self.runs / name, None)
            return {"stopping": name}
        place = self.place(name)
        run = self.read(place)
        folders = [] if isinstance(run, str) else [stage_place(run, stage) for stage in run.recipe.stages]
        self.training.stop(place, next((found for folder in folders if (found := holder(folder))), None))
        return {"stopping": name}

    def resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Go on with a run."""
        place = self.place(str(asked["run"]))
        state = self.described(place)["state"]
        if state != "stopped":
            raise ValueError(f"{place.name} is {state}; a run that was stopped can be gone on with")
        return self.training.resume(place)


def routes(studio: Studio) -> list[BaseRoute]:
    """What the runs room answers."""
    room = Room(studio)
    return [
        reading("/api/runs", lambda request: room.listed()),
        reading("/api/runs/recipes", lambda request: recipes()),
        reading("/api/runs/compare", room.compared),
        reading("/api/runs/run/{run}", room.one),
        reading("/api/runs/samples/{run}", room.samples),
        reading("/api/runs/report/{run}", room.report),
        asking("/api/runs/sample", lambda asked: room.sampled.ask(room.place(str(asked["run"])))),
        asking("/api/runs/start", room.training.start),
        asking("/api/runs/stop", room.stop),
        asking("/api/runs/resume", room.resume),
    ]


def recipes() -> list[dict[str, Any]]:
    """What can be trained."""
    known = [system(name) for name in SYSTEMS]
    return [
        {
            "name": each.name,
            "summary": each.summary,
            "models": list(each.models),
            "presets": list(each.presets),
            "steps": sum(settings.steps for settings in each.stages.values()),
        }
        for each in known
    ]


def stage_place(run: Run, stage: str) -> Path:
    """Where a stage keeps its metrics."""
    return run.folder if len(run.recipe.stages) == 1 else run.folder / stage


def figures(run: Run) -> list[dict[str, Any]]:
    """The numbers that a run ended with."""
    return [
        {"part": part, "name": name.replace("_", " "), "value": plain(value), "shown": figure(name, value)}
        for part, numbers in run.result.items()
        for name, value in numbers.items()
        if isinstance(value, int | float)
    ]


def again_in_python(place: Path) -> str:
    return (
        "from qkv import recipes\n"
        f"run = recipes.open_run({str(place)!r})\n"
        f"again = recipes.train(run.recipe, folder={f'{place}-again'!r})"
    )


def compared_in_python(places: list[Path]) -> str:
    return (
        "from qkv import recipes\n"
        "from qkv.training.recipes.plain import differing\n"
        f"runs = [recipes.open_run(place) for place in {[str(place) for place in places]!r}]\n"
        "print([run.result for run in runs], differing([run.recipe.to_table() for run in runs]))"
    )


def _order(place: Path) -> tuple[float, str]:
    return -(place / RECIPE).stat().st_mtime, place.name


def _unread(problem: Exception) -> str:
    return f"its files cannot be read: {problem}" if isinstance(problem, AttributeError | TypeError) else str(problem)


def _complaint(text: str) -> str:
    """What a process ended with, if it was an error's sentence."""
    last = text.splitlines()[-1] if text else ""
    return last.removeprefix("qkv: ") if last.startswith("qkv: ") else ""
