"""API of the Runs page: list runs, read their curves, compare, sample, start, stop and resume them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from qkv._config import find_differences, to_toml
from qkv._files import read_limited
from qkv._workers import Worker
from qkv.studio.jobs import Job
from qkv.studio.responses import NotFoundError, get_route, post_route
from qkv.studio.run_files import (
    FileStamp,
    Rows,
    file_stamp,
    limit_cell,
    limit_rows,
    newest_checkpoint,
    printable_name,
    read_samples,
    read_series,
)
from qkv.studio.run_processes import RunProcesses, train_command
from qkv.studio.server import Studio
from qkv.training import Run, open_run
from qkv.training.lock import lock_holder
from qkv.training.metrics import finite_or_none
from qkv.training.recipes import RECIPES, get_recipe
from qkv.training.report import format_metric
from qkv.training.run_state import RESUMABLE, STATUS_FILE, UNFINISHED, read_status
from qkv.training.runs import RECIPE_FILE, REPORT_FILE

READ_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    OSError,
    RecursionError,
)  # of damaged runs
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # a report may be anything
MAX_REPORT_BYTES = 64 * 2**20
MAX_COMPARED = 12  # runs
MAX_CHECKPOINTS = 24  # checkpoints of a run whose samples are remembered
MAX_SAMPLED_RUNS = 8  # runs whose samples are remembered


def routes(studio: Studio) -> list[BaseRoute]:
    """The routes of the Runs page."""
    api = RunsApi(studio)
    return [
        get_route("/api/runs", lambda request: api.list()),
        get_route("/api/runs/recipes", lambda request: list_recipes()),
        get_route("/api/runs/compare", api.compare),
        get_route("/api/runs/run/{run}", api.details),
        get_route("/api/runs/samples/{run}", api.samples),
        get_route("/api/runs/report/{run}", api.report),
        post_route("/api/runs/sample", lambda body: api.sampler.start(api.folder(str(body["run"])))),
        post_route("/api/runs/start", api.processes.start),
        post_route("/api/runs/stop", api.stop),
        post_route("/api/runs/resume", api.resume),
    ]


class RunsApi:
    """The handlers of the Runs page."""

    def __init__(self, studio: Studio) -> None:
        self.runs, self.processes, self.sampler = studio.runs, RunProcesses(studio.runs), CheckpointSampler(studio)
        self._cache: dict[str, tuple[FileStamp, Run | str]] = {}  # by name

    def folders(self) -> dict[str, Path]:
        """Run folders by name, newest first; nothing else can be requested."""
        if not self.runs.is_dir():
            return {}
        found = (path.parent for path in self.runs.glob(f"*/{RECIPE_FILE}"))
        order = sorted(found, key=lambda folder: (-file_stamp(folder / RECIPE_FILE)[0][0], folder.name))
        return {printable_name(folder): folder for folder in order if not folder.name.startswith(".")}

    def folder(self, name: str) -> Path:
        folders = self.folders()
        if name not in folders:
            raise NotFoundError(f"there is no run {name!r} in {self.runs}")
        return folders[name]

    def read(self, folder: Path) -> Run | str:
        """The run in a folder, or what is wrong with it; read again when its files change."""
        stamp = file_stamp(folder / RECIPE_FILE, folder / STATUS_FILE)
        cached = self._cache.get(folder.name)
        if cached is None or cached[0] != stamp:
            try:
                run: Run | str = open_run(folder)
            except READ_ERRORS as problem:
                run = _describe_damage(problem)
            cached = self._cache[folder.name] = (stamp, run)
        return cached[1]

    def list(self) -> dict[str, Any]:
        """All runs, newest first, and those that are starting."""
        starting = self.processes.starting()
        return {
            "folder": str(self.runs),
            "runs": [self.summary(folder) for folder in self.folders().values()],
            "starting": [{"id": name} for name in starting],
            "problem": self.processes.problem,
        }

    def summary(self, folder: Path) -> dict[str, Any]:
        """One run in a few fields; a damaged folder says so and does not hide the others."""
        run = self.read(folder)
        if isinstance(run, str):
            return {"id": printable_name(folder), "state": "unreadable", "problem": run}
        try:
            return self._summary(folder, run)
        except READ_ERRORS as problem:
            return {"id": printable_name(folder), "state": "unreadable", "problem": _describe_damage(problem)}

    def _summary(self, folder: Path, run: Run) -> dict[str, Any]:
        progress = run.progress
        own = self.processes.is_running(folder)
        state = run.state
        if own and state in RESUMABLE:  # its process is loading the data
            state = "training"
        error = _last_error(self.processes.log_tail(folder)) or read_status(folder).get("error", "")
        if state == "unfinished":
            error = error or UNFINISHED
        return {
            "id": printable_name(folder),
            "state": state,
            "own": own,
            "recipe": run.config.recipe,
            "model": run.config.model_kind,
            "seed": run.config.seed,
            "parameters": run.parameters,
            "step": progress.step,
            "steps": sum(stage.steps for stage in run.config.stages.values()),
            "seconds": finite_or_none(run.seconds) or progress.seconds,
            "results": list_results(run),
            "error": str(error) if state in RESUMABLE else "",
        }

    def details(self, request: Request) -> dict[str, Any]:
        """A run, with its curves after the given marks (?mark.STAGE=...)."""
        folder = self.folder(request.path_params["run"])
        run, summary = self.read(folder), self.summary(folder)
        if isinstance(run, str) or summary["state"] == "unreadable":
            return {**summary, "stages": {}}
        stages = run.stage_folders
        marks = {name: request.query_params.get(f"mark.{name}", "") for name in stages}
        return {
            **summary,
            "stages": {name: read_series(each, marks[name]) for name, each in stages.items()},
            "checkpoint": newest_checkpoint(stages),
            "toml": to_toml(run.config.to_table()),
            "report": (folder / REPORT_FILE).is_file() and not (folder / REPORT_FILE).is_symlink(),
            "notes": [str(note) for note in run.notes],
            "command": train_command("--config", str(folder / RECIPE_FILE), "--folder", f"{folder}-again"),
            "python": (
                "from qkv.training import open_run, run_recipe\n"
                f"run = open_run({str(folder)!r})\n"
                f"again = run_recipe(run.config, folder={f'{folder}-again'!r})"
            ),
        }

    def compare(self, request: Request) -> dict[str, Any]:
        """The settings in which runs differ (?run=A&run=B)."""
        folders = [self.folder(name) for name in request.query_params.getlist("run")[:MAX_COMPARED]]
        runs = [(folder, run) for folder in folders if not isinstance(run := self.read(folder), str)]
        paths = [str(folder) for folder, _ in runs]
        differences = find_differences([run.config.to_table() for _, run in runs])
        return {
            "runs": [folder.name for folder, _ in runs],
            "settings": [
                {"name": name, "values": [limit_cell(value) for value in values]}
                for name, values in differences.items()
            ],
            "command": shlex.join(["qkv", "runs", *paths]),
            "python": (
                "from qkv.training import open_run\n"
                f"for run in [open_run(folder) for folder in {paths!r}]:\n"
                "    print(run.result, run.config.to_table())"
            ),
        }

    def samples(self, request: Request) -> dict[str, Any]:
        """What a run's model does: at the end, and at the checkpoints that were sampled."""
        folder = self.folder(request.path_params["run"])
        return {"samples": read_samples(folder), "checkpoints": self.sampler.samples(folder)}

    def report(self, request: Request) -> Response:
        """A run's HTML report, sandboxed."""
        path = self.folder(request.path_params["run"]) / REPORT_FILE
        if path.is_symlink():
            raise NotFoundError(f"{REPORT_FILE} of this run is a symbolic link, which the studio does not follow")
        if not path.is_file():
            raise NotFoundError("this run has no report yet: it is written when the run finishes")
        content = read_limited(path, MAX_REPORT_BYTES, follow_link=False)
        return HTMLResponse(content, headers={"content-security-policy": REPORT_POLICY})

    def stop(self, body: dict[str, Any]) -> dict[str, Any]:
        """Stop a run at its next step."""
        name = str(body["run"])
        if name in self.processes.starting():
            self.processes.stop(self.runs / name, None)
            return {"stopping": name}
        folder = self.folder(name)
        run = self.read(folder)
        stages = [] if isinstance(run, str) else run.stage_folders.values()
        holders = [holder for each in (folder, *stages) if (holder := lock_holder(each))]
        self.processes.stop(folder, holders[0] if holders else None, stages)
        return {"stopping": name}

    def resume(self, body: dict[str, Any]) -> dict[str, Any]:
        """Resume a stopped run."""
        folder = self.folder(str(body["run"]))
        state = self.summary(folder)["state"]
        if state not in RESUMABLE:
            raise ValueError(f"{folder.name} is {state}; only a stopped, failed or unfinished run can be resumed")
        return self.processes.resume(folder)


class CheckpointSampler:
    """Samples of runs that are training. A worker process reads a run's data once, and each checkpoint on request."""

    def __init__(self, studio: Studio) -> None:
        self.jobs = studio.jobs
        self.worker = Worker("qkv.studio.tasks:sample_checkpoint")
        studio.on_stop.append(self.worker.close)
        self._samples: dict[tuple[str, FileStamp], dict[str, dict[str, Any]]] = {}  # by run, by checkpoint

    def samples(self, folder: Path) -> list[dict[str, Any]]:
        """The samples of a run's checkpoints, oldest first."""
        return list(self._samples.get(_run_key(folder), {}).values())

    def start(self, folder: Path) -> dict[str, str]:
        """Start the job that samples the newest checkpoint."""
        key = _run_key(folder)

        def work(job: Job) -> list[dict[str, Any]]:
            request = {"folder": str(folder.resolve())}
            for message in self.worker.request(request, cancelled=job.cancel.is_set):
                if isinstance(message.get("samples"), list):
                    self._store(key, str(message["stage"]), int(message["step"]), limit_rows(message["samples"]))
            return self.samples(folder)

        return {"job": self.jobs.start("samples", work).id}

    def _store(self, key: tuple[str, FileStamp], stage: str, step: int, rows: Rows) -> None:
        checkpoints = self._samples.setdefault(key, {})
        name = f"{stage} {step}"
        checkpoints[name] = {"checkpoint": name, "stage": stage, "step": step, "samples": rows}
        for old in list(checkpoints)[:-MAX_CHECKPOINTS]:
            del checkpoints[old]
        for old in list(self._samples)[:-MAX_SAMPLED_RUNS]:
            del self._samples[old]


def list_recipes() -> list[dict[str, Any]]:
    """The recipes that can be trained."""
    return [
        {
            "name": recipe.name,
            "summary": recipe.summary,
            "models": list(recipe.models),
            "presets": list(recipe.presets),
            "steps": sum(stage.steps for stage in recipe.stages.values()),
        }
        for recipe in map(get_recipe, RECIPES)
    ]


def list_results(run: Run) -> list[dict[str, Any]]:
    """The final metrics of a run."""
    return [
        {
            "part": part,
            "name": name.replace("_", " "),
            "value": finite_or_none(value),
            "text": format_metric(name, value),
        }
        for part, numbers in run.result.items()
        for name, value in numbers.items()
        if isinstance(value, int | float)
    ]


def _run_key(folder: Path) -> tuple[str, FileStamp]:
    """Identifies a run, and not another one that got its name later."""
    return folder.name, file_stamp(folder / RECIPE_FILE)


def _describe_damage(problem: Exception) -> str:
    return f"its files cannot be read: {problem}" if isinstance(problem, AttributeError | TypeError) else str(problem)


def _last_error(log: str) -> str:
    """The error message at the end of a log, if there is one."""
    last = log.splitlines()[-1] if log else ""
    return last.removeprefix("qkv: ") if last.startswith("qkv: ") else ""
