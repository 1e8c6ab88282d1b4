"""The one loop. It knows nothing of the model: data gives batches, an objective scores them, settings say the rest.

A step ends at a boundary, where in this order a log line is written, the model is evaluated, and a checkpoint saved.
Whatever kills the process, the run goes on from a boundary, and every number after it is the one it would have been.
"""

import json
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

from torch import nn

from qkv.data.batches import Batches
from qkv.training.activation_checkpointing import recomputed
from qkv.training.callbacks import Outcome, Report
from qkv.training.checkpointing import Store
from qkv.training.config import Settings
from qkv.training.distributed import World
from qkv.training.interrupts import Interrupts
from qkv.training.loader import load
from qkv.training.lock import claimed
from qkv.training.memory import keep_freed
from qkv.training.meter import Meter
from qkv.training.metrics_log import NAME as JOURNAL
from qkv.training.metrics_log import Journal
from qkv.training.score import Objective
from qkv.training.snapshot import environment
from qkv.training.state import Run

Evaluate = Callable[[nn.Module], dict[str, float]]
Resume = Literal["auto", "never", "always"]


def train(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    settings: Settings,
    folder: str | Path,
    *,
    evaluate: Evaluate | None = None,
    report: Report | None = None,
    resume: Resume = "auto",
) -> Outcome:
    """Train a model in place; `folder` gets metrics.jsonl and checkpoints.

    evaluate: numbers of the model in eval mode, with the average of its weights if there is one; see
        `evaluation.over`. It is called by every process.
    resume: "auto" goes on from the newest whole checkpoint, or begins; "always" needs one; "never" needs a new folder.
    SIGTERM and SIGINT end the run at the next boundary, with a checkpoint; the outcome says so. A loss or gradient
    that is not finite is a `NotFiniteError`, raised before the update.
    """
    world, folder = World.here(), Path(folder)
    keep_freed()
    settings = Settings.from_dict(json.loads(world.text(json.dumps(settings.as_dict()))))  # all by the first one's
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        world.agreed(lambda: stack.enter_context(claimed(folder)) or "")
        stack.enter_context(recomputed(model, settings.recompute))
        run = Run(model, objective, settings, world)
        session = Session(run, batches, folder, evaluate, report or Report(), interrupts)
        stack.callback(session.report.close)
        session.begin(resume, stack)
        return session.go()


class Session:
    """One process's part in a run, from begin to end."""

    def __init__(
        self,
        run: Run,
        batches: Batches,
        folder: Path,
        evaluate: Evaluate | None,
        report: Report,
        interrupts: Interrupts,
    ) -> None:
        self.run, self.batches, self.folder, self.evaluate = run, batches, folder, evaluate
        self.settings, self.world, self.model = run.settings, run.world, run.model
        self.report = report if self.world.first else Report()
        self.interrupts, self.store = interrupts, Store(folder)
        self.saved: int | None = None  # the step of the newest checkpoint

    def begin(self, resume: Resume, stack: ExitStack) -> None:
        """Find the checkpoint to go on from, if there is one, and become it."""
        chosen = self.world.agreed(lambda: self._found(resume))
        state = self.run.restore(Path(chosen), self.batches) if chosen else {}
        self.saved = self.run.step if chosen else None
        journal = None
        if self.world.first:
            journal = Journal(self.folder, state.get("journal_end", 0))
            stack.callback(journal.close)
            for text in differences(state, self.run, journal.missing):
                self.report.note(text)
        self.report.begin(self.run.step, self.settings.steps)
        self.meter = Meter(self.run, journal, self.report)

    def go(self) -> Outcome:
        """Steps until the last, or until asked to stop."""
        run, settings = self.run, self.settings
        if run.step > settings.steps:
            raise ValueError(f"{self.folder} has made {run.step} steps already; steps={settings.steps} asks for fewer")
        left = (settings.steps - run.step) * settings.accumulate
        stop = False
        self.model.train()
        with closing(load(self.batches, run.position, left, settings.workers)) as source:
            while run.step < settings.steps and not stop:
                placed = [next(source) for _ in range(settings.accumulate)]
                stop = run.advance(placed, self.interrupts.asked is not None)
                stop = stop or (self.world.size == 1 and self.interrupts.asked is not None)
                self._boundary(stop)
        self.model.eval()
        return self._outcome()

    def _boundary(self, stop: bool) -> None:
        """What is done between two steps."""
        run, saving = self.run, self.settings.saving
        last = run.step == self.settings.steps
        if run.step % saving.log_every == 0 or last:
            self.meter.log()
        better = False
        if self.evaluate is not None and (last or (saving.evaluate_every and run.step % saving.evaluate_every == 0)):
            better = self._evaluated(self.evaluate)
        due = saving.checkpoint_every and run.step % saving.checkpoint_every == 0
        if last or stop or due or better:
            self._save()

    def _evaluated(self, evaluate: Evaluate) -> bool:
        """Evaluate; return whether it is the best so far."""
        run, best = self.run, self.settings.saving.best
        with run.to_evaluate():
            found = {name: float(value) for name, value in evaluate(self.model).items()}
        run.numbers = json.loads(self.world.text(json.dumps(found)))  # all processes judge by the same numbers
        self.meter.evaluated(run.numbers)
        if not best:
            return False
        if best not in run.numbers:
            raise ValueError(f"saving.best={best!r} is not among what evaluation gives: {', '.join(run.numbers)}")
        value = run.numbers[best]
        sign = 1 if self.settings.saving.larger else -1
        better = math.isfinite(value) and (run.best is None or sign * value > sign * run.best[1])
        if better:
            run.best = (run.step, value)
        return better

    def _save(self) -> None:
        """A checkpoint of this boundary; older ones are removed once it is whole."""
        run, saving = self.run, self.settings.saving
        snapshot = run.snapshot(self.meter.end(), self.batches)

        def write() -> str:
            place = self.store.save(run.step, snapshot.write)
            self.store.prune(saving.keep_last, run.best[0] if run.best else None)
            return str(place)

        place = self.world.agreed(write)
        self.saved = run.step
        self.report.saved(run.step, Path(place))
        self.meter.restart()

    def _found(self, resume: Resume) -> str:
        """The checkpoint to go on from; "" to begin."""
        if resume not in ("auto", "never", "always"):
            raise ValueError(f"resume is auto, never or always; got {resume!r}")
        self.store.sweep()
        if resume == "never" and (self.store.steps() or (self.folder / JOURNAL).exists()):
            raise ValueError(
                f"{self.folder} holds a run already; go on with it by resume='auto', or choose a new folder"
            )
        newest = self.store.newest(self.report.note)
        if newest is None and resume == "always":
            raise ValueError(f"{self.folder} has no whole checkpoint to go on from; resume='auto' would begin")
        return "" if newest is None else str(newest)

    def _outcome(self) -> Outcome:
        run = self.run
        finished, asked = run.step == self.settings.steps, self.interrupts.asked
        best = run.best if run.best and self.store.place(run.best[0]).exists() else None
        outcome = Outcome(
            folder=self.folder,
            step=run.step,
            steps=self.settings.steps,
            finished=finished,
            stopped=self.world.text(asked or "") or None if finished else asked or "another process",
            seconds=run.seconds,
            checkpoint=None if self.saved is None else self.store.place(self.saved),
            best=None if best is None else self.store.place(best[0]),
            best_value=None if best is None else best[1],
            evaluation=run.numbers,
        )
        self.report.end(outcome)
        return outcome


def differences(state: dict[str, Any], run: Run, missing: int) -> list[str]:
    """What a person should know of how the run goes on otherwise than it began."""
    if not state:
        return []
    notes = []
    if missing:
        notes.append(f"{JOURNAL} lacks {missing} bytes that the checkpoint has seen: its first lines are lost")
    flat = _flat(state.get("settings", {})), _flat(run.settings.as_dict())
    changed = [f"{name} {flat[0].get(name)} → {now}" for name, now in flat[1].items() if flat[0].get(name) != now]
    if changed := [text for text in changed if not text.startswith(("workers ", "saving."))]:
        notes.append(f"settings have changed since the checkpoint: {', '.join(changed)}")
    here, then = environment(run.computer.device, run.world.size), state.get("environment", {})
    if other := [f"{name} {then.get(name)} → {now}" for name, now in here.items() if then.get(name) != now]:
        notes.append(f"the run goes on elsewhere than it began, so its last digits may differ: {', '.join(other)}")
    return notes


def _flat(plain: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in plain.items():
        found |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found
