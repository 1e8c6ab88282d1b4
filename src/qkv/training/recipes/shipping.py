"""From a finished run to a model that comes with qkv: small, tested again as it is stored, with a card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv import __version__
from qkv._folders import whole_folder
from qkv.checkpoints import load
from qkv.checkpoints.bundled import CARD, HOME, digest
from qkv.models.folder import COMPANIONS, CONFIG, WEIGHTS
from qkv.training.recipes.registry import system
from qkv.training.runs import MODEL, RECIPE, Run, open_run

SAMPLE = "sample.wav"  # a recording to begin with, for a model that hears
OWN = (CONFIG, WEIGHTS, *COMPANIONS, RECIPE, SAMPLE, CARD)


@dataclass(frozen=True)
class About:
    """What a card says that no run knows.

    summary: one sentence. command: how the run was made. data, licence: what it was trained on, and under which terms
    that is given. sample: a file to begin with, of that data.
    """

    summary: str
    command: str
    data: str
    licence: str
    sample: Path | None = None


def ship(run: str | Path, name: str, about: About, *, half: bool = False, home: Path = HOME) -> dict[str, Any]:
    """Write the model of a run to its folder among those that come with qkv; return its card.

    half: store the parameters in half precision; `qkv.load` makes single precision of them again. What the card says of
    the model is measured on what is stored.
    """
    opened = open_run(run)
    if not opened.finished:
        raise ValueError(f"{run} is not finished; only a finished run can be shipped")
    model = load(opened.folder / MODEL)
    with whole_folder(home / name, OWN) as scratch:
        (model.half() if half else model).save(scratch)
        stored = load(scratch).float()
        (scratch / RECIPE).write_bytes((opened.folder / RECIPE).read_bytes())
        if about.sample is not None:
            (scratch / SAMPLE).write_bytes(about.sample.read_bytes())
        card = _card(name, opened, about, stored.num_parameters, _tested(opened, stored)) | {
            "stored": "float16" if half else "float32",
            "sha256": {path.name: digest(path) for path in sorted(scratch.iterdir())},
        }
        (scratch / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return card


def _card(name: str, run: Run, about: About, parameters: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: value for key, value in asdict(about).items() if key != "sample"}
    return {
        "name": f"qkv:{name}",
        **told,
        "recipe": run.recipe.system,
        "seed": run.recipe.seed,
        "parameters": parameters,
        "seconds": round(run.seconds, 1),
        "metrics": metrics,
        "qkv": __version__,
    }


def _tested(run: Run, model: Any) -> dict[str, dict[str, float]]:
    """The numbers of validation and test, of the model as it is stored."""
    task = system(run.recipe.system).build(run.recipe)
    validate = task.stages[-1].validate
    found = {"validation": {} if validate is None else validate(model), "test": task.test(model)}
    return {
        part: {name: round(value, 4) for name, value in numbers.items() if isinstance(value, int | float)}
        for part, numbers in found.items()
    }
