"""A run's checkpoints: `checkpoints/step-00001234/`, each whole or not there; the newest whole one is taken.

A checkpoint is written beside its place, file by file, each brought to the disk, the manifest of checksums last; then
one rename puts it there. A process killed at any instant leaves older checkpoints as they were and at most an orphan
that the next start sweeps away.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from qkv._files import to_disk
from qkv.training.manifest import Writer, damage
from qkv.training.metrics_log import FULL

FOLDER = "checkpoints"
NAMED = re.compile(r"step-(\d{8,})")


class Store:
    """The checkpoints of one run; used by one process at a time (see `lock`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def place(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or not, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self.folder.iterdir() if (found := NAMED.fullmatch(path.name)))

    def save(self, step: int, write: Callable[[Writer], None]) -> Path:
        """Let `write` fill a checkpoint, then put it into its place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.place(step)
        scratch = self.folder / f".{place.name}.writing"
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            writer = Writer(scratch)
            write(writer)
            writer.manifest()
            to_disk(scratch)
            if place.exists():
                os.rename(place, self.folder / f".{place.name}.replaced")
            os.rename(scratch, place)
            to_disk(self.folder)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise self._explained(error, step) from error
        self._sweep_hidden()
        return place

    def newest(self, note: Callable[[str], None]) -> Path | None:
        """The newest checkpoint that is whole; what is not is set aside, with a note."""
        for step in reversed(self.steps()):
            place = self.place(step)
            wrong = damage(place)
            if wrong is None:
                return place
            aside = place.with_name(f"damaged-{place.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(place, aside)
            note(f"{place} is not taken: {wrong}. It is set aside as {aside.name}; the one before it is tried")
        return None

    def sweep(self) -> None:
        """Remove what a killed process left half written, and put back what it was about to replace."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob(".step-*.replaced"):
            place = path.with_name(path.name[1:].removesuffix(".replaced"))
            if not place.exists():
                os.rename(path, place)
        self._sweep_hidden()

    def prune(self, keep_last: int, best: int | None) -> None:
        """Keep the last few and the best."""
        steps = self.steps()
        for step in steps[:-keep_last]:
            if step != best:
                gone = self.folder / f".step-{step:08d}.old"
                os.rename(self.place(step), gone)  # so that a half-removed one is an orphan, not a damaged one
                shutil.rmtree(gone, ignore_errors=True)

    def _sweep_hidden(self) -> None:
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _explained(self, error: OSError, step: int) -> OSError:
        whole = [f"the one of step {before} is whole" for before in self.steps()[-1:]]
        kept = (whole or ["there is none before it"])[0]
        why = "the disk is full" if error.errno in FULL else (error.strerror or str(error))
        return OSError(
            error.errno,
            f"the checkpoint of step {step} could not be written: {why}. {kept[0].upper()}{kept[1:]}; make room and "
            "start again to go on from it",
            str(self.folder),
        )
