"""Bundle a finished run with qkv: store its model small, test it as stored, and write its model card."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv import __version__
from qkv._files import atomic_folder
from qkv.checkpoints import load
from qkv.checkpoints.bundled import CARD, HOME, sha256
from qkv.models.folder import CONFIG, EXTRA_FILES, WEIGHTS, save
from qkv.training.recipes import get_recipe
from qkv.training.runs import RECIPE_FILE, evaluate_task, open_run

SAMPLE = "sample.wav"  # an example recording, for a speech model
BUNDLED_FILES = (CONFIG, WEIGHTS, *EXTRA_FILES, RECIPE_FILE, SAMPLE, CARD)


@dataclass(frozen=True)
class CardInfo:
    """The parts of a model card that no run contains.

    summary: one sentence. command: how the run was made. data, license: what it was trained on, and under which terms
    that is available. sample: an example file of that data.
    """

    summary: str
    command: str
    data: str
    license: str
    sample: Path | None = None


def bundle_run(run: str | Path, name: str, info: CardInfo, *, home: Path = HOME) -> dict[str, Any]:
    """Write the model of a run to its folder among the bundled models; return its card.

    Matrices are stored as int8 with a scale for each row; the metrics of the card are measured on the model as stored.
    """
    opened = open_run(run)
    if not opened.finished:
        raise ValueError(f"{run} is not finished; only a finished run can be bundled")
    with atomic_folder(home / name, BUNDLED_FILES) as scratch:
        save(opened.model, scratch, int8=True)
        stored = load(scratch)
        (scratch / RECIPE_FILE).write_bytes((opened.folder / RECIPE_FILE).read_bytes())
        if info.sample is not None:
            (scratch / SAMPLE).write_bytes(info.sample.read_bytes())
        result = evaluate_task(get_recipe(opened.config.recipe).build(opened.config, None), stored)
        card = {
            "name": f"qkv:{name}",
            **{key: value for key, value in asdict(info).items() if key != "sample"},
            "recipe": opened.config.recipe,
            "seed": opened.config.seed,
            "parameters": stored.num_parameters,
            "seconds": round(opened.seconds, 1),
            "metrics": {
                part: {key: round(value, 4) for key, value in metrics.items() if isinstance(value, int | float)}
                for part, metrics in result.items()
            },
            "qkv": __version__,
            "stored": "int8 with a scale for each row",
            "sha256": {path.name: sha256(path) for path in sorted(scratch.iterdir())},
        }
        (scratch / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return card
