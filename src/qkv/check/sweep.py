"""Check every architecture of the installed transformers in worker processes; an interrupted sweep resumes."""

from __future__ import annotations

import json
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from qkv import __version__
from qkv._workers import CancelledError, Worker, WorkerDiedError, WorkerError, WorkerTimeoutError
from qkv.check.calling.hugging_face import build_small, import_transformers
from qkv.check.run import run

Outcome = Literal["sound", "alarm", "not built", "not called", "too slow", "died"]

TASK = "qkv.check.sweep:check_architecture"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class SweepRow:
    """The result of one architecture.

    Args:
        passed: the number of findings that pass.
        findings: by verdict (fail, warn, inconclusive), each check with its evidence.
        reason: why it could not be checked.
    """

    name: str
    family: str
    outcome: Outcome
    kind: str = ""
    how: str = ""
    passed: int = 0
    findings: dict[str, list[str]] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class SweepResult:
    """All rows, sorted by name, and the versions of transformers, torch and qkv."""

    versions: dict[str, str]
    rows: tuple[SweepRow, ...]

    @property
    def ok(self) -> bool:
        """Whether no architecture fails a check."""
        return all(row.outcome != "alarm" for row in self.rows)

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "versions": self.versions, "rows": [asdict(row) for row in self.rows]}


def sweep(
    names: dict[str, str],
    folder: Path,
    *,
    num_workers: int = 2,
    time_limit: float = 60.0,
    on_result: Callable[[SweepRow, int, int], None] = lambda row, done, count: None,
) -> SweepResult:
    """Check the architectures `names` (name: family); each result is saved in `folder` as it comes.

    Args:
        num_workers: the number of processes.
        time_limit: seconds that one architecture may take.
        on_result: called with each result, the number of results so far and the number of architectures.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    versions = installed_versions()
    file = folder / f"transformers-{versions['transformers']}.jsonl"
    rows = {name: row for name, row in load_results(file, versions).items() if name in names}
    waiting = [(name, family) for name, family in names.items() if name not in rows]
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        if file.stat().st_size == 0:
            lines.write(json.dumps(versions) + "\n")
        for row in _check_in_workers(waiting, num_workers, time_limit):
            lines.write(json.dumps(asdict(row)) + "\n")
            lines.flush()
            rows[row.name] = row
            on_result(row, len(rows), len(names))
    return SweepResult(versions, tuple(rows[name] for name in sorted(rows)))


def installed_versions() -> dict[str, str]:
    """The versions of what is checked and what checks it."""
    return {
        "transformers": import_transformers().__version__,
        "torch": torch.__version__,
        "qkv": __version__,
    }


def load_results(file: Path, versions: dict[str, str]) -> dict[str, SweepRow]:
    """The results of an earlier sweep of the same versions; a file of other versions is renamed to .old.jsonl."""
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if not lines or _parse(lines[0]) != versions:
        file.replace(file.with_suffix(".old.jsonl"))
        return {}
    whole = [line for line in lines if line.endswith("\n") and _parse(line) is not None]
    if len(whole) < len(lines):  # the last line was cut off when the sweep was interrupted
        part = file.with_suffix(".part")
        part.write_text("".join(whole), encoding="utf-8")
        part.replace(file)
    known = {part.name for part in fields(SweepRow)}
    rows = [SweepRow(**{name: value for name, value in _parse(line).items() if name in known}) for line in whole[1:]]
    return {row.name: row for row in rows}


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _check_in_workers(waiting: list[tuple[str, str]], num_workers: int, time_limit: float) -> Iterator[SweepRow]:
    """Results as they come; a worker that hangs or dies is replaced, and costs one result."""
    tasks: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    results: queue.SimpleQueue[SweepRow | None] = queue.SimpleQueue()
    for task in waiting:
        tasks.put(task)
    workers = [Worker(TASK, env=ENVIRONMENT) for _ in range(num_workers)]

    def serve(worker: Worker) -> None:
        try:
            while True:
                results.put(_request(worker, *tasks.get_nowait(), time_limit))
        except (queue.Empty, CancelledError):
            pass
        finally:
            worker.close()
            results.put(None)

    for worker in workers:
        threading.Thread(target=serve, args=(worker,), daemon=True).start()
    try:
        running = num_workers
        while running:
            row = results.get()
            if row is None:
                running -= 1
            else:
                yield row
    finally:
        for worker in workers:
            worker.close()


def _request(worker: Worker, name: str, family: str, time_limit: float) -> SweepRow:
    row: SweepRow | None = None
    try:
        for message in worker.request([name, family], time_limit=time_limit):
            if "row" in message:
                row = SweepRow(**message["row"])
    except WorkerTimeoutError:
        return SweepRow(name, family, "too slow", reason=f"no answer within {time_limit:g} s", seconds=time_limit)
    except WorkerDiedError as error:
        return SweepRow(name, family, "died", reason=f"its process ended with exit code {error.exit_code}")
    except WorkerError as error:
        return SweepRow(name, family, "died", reason=str(error))
    return row or SweepRow(name, family, "died", reason="its process sent no result")


def check_architecture(request: list[str], send: Callable[..., None]) -> None:
    """The task of a worker: check one architecture, given as [name, family], and send its row."""
    torch.set_num_threads(1)
    name, family = request
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = _check_one(name, family)
    send(row={**row, "seconds": time.perf_counter() - start})


def _check_one(name: str, family: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "family": family}
    try:
        build_small(name)
    except Exception as error:
        return row | {"outcome": "not built", "reason": _reason(error)}
    try:
        report = run(f"hf:{name}")
    except Exception as error:
        return row | {"outcome": "not called", "reason": _reason(error)}
    findings: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.verdict in ("fail", "warn", "inconclusive"):
            findings.setdefault(finding.verdict, []).append(f"{finding.check}: {finding.evidence}")
    return row | {
        "outcome": "sound" if report.ok else "alarm",
        "kind": report.kind,
        "how": report.how,
        "passed": sum(finding.verdict == "pass" for finding in report.findings),
        "findings": findings,
    }


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
