"""What a stage learns from, where the model of the stage before has a say in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from qkv._files import write_whole
from qkv.data.batches import Batches
from qkv.models import Model, folder
from qkv.training import World
from qkv.training.recipes.definition import Stage

PREPARED = "prepared.json"


def learned_from(stage: Stage, model: Model, home: Path, note: Callable[[str], None]) -> Batches:
    """The batches of a stage. What the model has to say for them is said once: it stands in the folder, whole, before
    the first step, and is read from there whenever the run goes on."""
    if stage.prepare is None or stage.prepared is None:
        return stage.batches
    prepare, path = stage.prepare, home / PREPARED

    def said() -> str:
        if not path.is_file():
            note(f"{stage.name}: the model prepares what is learned from")
            home.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(prepare(model), ensure_ascii=False, indent=1) + "\n")
        return json.dumps(folder.read_json(path, f"what {stage.name} learns from; remove it to have it made again"))

    return stage.prepared(json.loads(World.here().agreed(said)))
