"""Make the models that come with qkv: python bench/ship.py NAME [RUN]

The run is trained by the command that is written here if it is not there or not finished; a run with other settings is
refused. Its model is then stored under src/qkv/hub/shipped/NAME, tested again as it is stored, and gets its card.
"""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.training.recipes.shipping import About, ship
from qkv.training.runs import train


@dataclass(frozen=True)
class Model:
    """One model: how it is trained, and what its card says."""

    recipe: str
    summary: str
    data: str
    licence: str
    changes: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    half: bool = False
    sample: str | None = None

    @property
    def command(self) -> str:
        """The same for the terminal."""
        words = ["qkv", "train", self.recipe]
        for name, value in self.changes.items():
            words += ["--data", str(value)] if name == "data.path" else ["--set", f"{name}={value}"]
        return shlex.join(words + ([] if self.steps is None else ["--steps", str(self.steps)]))


SPOKEN = "../shared/data/spoken-digits"
MODELS = {
    "digits": Model(
        recipe="vit-digits",
        summary="A vision transformer that reads handwritten digits of 8 × 8 pixels.",
        data="Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository",
        licence="CC BY 4.0",
    ),
    "shakespeare": Model(
        recipe="gpt-text",
        summary="A GPT that writes on, character by character, as Shakespeare's plays do.",
        data="Plays of William Shakespeare, as they ship with qkv",
        licence="public domain",
        changes={
            "model.dim": 128,
            "model.layers": 4,
            "model.heads": 4,
            "data.length": 128,
            "train.optimiser.name": "muon",
        },
        steps=2500,
        half=True,
    ),
    "biographies": Model(
        recipe="birthplaces",
        summary="A GPT that read machine-made biographies and answers where people were born.",
        data="Biographies and questions made by qkv itself (src/qkv/data/biographies.py)",
        licence="Apache-2.0, as qkv",
        half=True,
    ),
    "spoken-digits": Model(
        recipe="speech",
        summary="A transcriber that writes spoken digits down while it hears them.",
        data="Free Spoken Digit Dataset, Z. Jackson and others, 8 kHz recordings of the ten digits; half of "
        "the strings are said by the machine-made voices that ship with qkv",
        licence="CC BY-SA 4.0",
        changes={"data.path": SPOKEN},
        half=True,
        sample=f"{SPOKEN}/7_yweweler_3.wav",
    ),
}


def main(name: str, folder: Path) -> None:
    if name not in MODELS:
        sys.exit(f"there is no model {name!r}; there are {', '.join(MODELS)}")
    model = MODELS[name]
    run = train(model.recipe, model.changes, folder=folder, steps=model.steps, note=print)
    if not run.finished:
        sys.exit(f"{folder} was stopped before its end; the same command goes on with it")
    sample = None if model.sample is None else Path(model.sample)
    about = About(model.summary, model.command, model.data, model.licence, sample)
    card = ship(folder, name, about, half=model.half)
    print(f"{card['name']}: {card['parameters']:,} parameters, {card['metrics']}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) == 3 else f"runs/shipped-{sys.argv[1]}"))
