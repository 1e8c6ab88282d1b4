"""Train and store the bundled models: python bench/bundle_models.py NAME [RUN]

Trains the run with the settings below if it does not exist or is not finished; a run with other settings is refused.
The model is then stored in src/qkv/checkpoints/bundled/NAME, tested as it is stored, and gets its card.
"""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.training.bundling import CardInfo, bundle_run
from qkv.training.runs import run_recipe


@dataclass(frozen=True)
class BundledModel:
    """How one bundled model is trained, and what its card says."""

    recipe: str
    summary: str
    data: str
    license: str
    overrides: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    sample: str | None = None

    @property
    def command(self) -> str:
        """The command that trains the same model."""
        words = ["qkv", "train", self.recipe]
        for name, value in self.overrides.items():
            written = str(value).lower() if isinstance(value, bool) else str(value)  # as in TOML
            words += ["--data", written] if name == "data.path" else ["--set", f"{name}={written}"]
        return shlex.join(words + ([] if self.steps is None else ["--steps", str(self.steps)]))


SHARED = "../shared/data"
MODELS = {
    "digits": BundledModel(
        recipe="vit-digits",
        summary="A vision transformer that classifies handwritten digits of 8 × 8 pixels.",
        data="Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository",
        license="CC BY 4.0",
    ),
    "shakespeare": BundledModel(
        recipe="gpt-text",
        summary="A character-level GPT that continues text in the style of Shakespeare's plays.",
        data="Plays of William Shakespeare, bundled with qkv",
        license="public domain",
        overrides={
            "model.dim": 128,
            "model.layers": 4,
            "model.heads": 4,
            "data.max_length": 128,
            "train.optimizer.name": "muon",
        },
        steps=2500,
    ),
    "biographies": BundledModel(
        recipe="birthplaces",
        summary="A GPT trained on synthetic biographies that answers where people were born.",
        data="Synthetic biographies and questions made by qkv (src/qkv/data/text/biographies.py)",
        license="Apache-2.0, as qkv",
    ),
    "spoken-digits": BundledModel(
        recipe="speech",
        summary="A streaming transcriber of spoken digits.",
        data="AudioMNIST, S. Becker and others (MIT), and the Free Spoken Digit Dataset, Z. Jackson and others "
        "(CC BY-SA 4.0): the ten digits by 30 people, 8 kHz",
        license="CC BY-SA 4.0",
        overrides={"data.path": SHARED, "train.disable_malloc_trim": True},
        sample=f"{SHARED}/audiomnist/7_s47_3.wav",  # a speaker of the test
    ),
}


def main(name: str, folder: Path) -> None:
    if name not in MODELS:
        sys.exit(f"there is no model {name!r}; there are {', '.join(MODELS)}")
    model = MODELS[name]
    run = run_recipe(model.recipe, model.overrides, folder=folder, steps=model.steps, on_note=print)
    if not run.finished:
        sys.exit(f"{folder} was stopped before its end; run the same command to resume it")
    sample = None if model.sample is None else Path(model.sample)
    info = CardInfo(model.summary, model.command, model.data, model.license, sample)
    card = bundle_run(folder, name, info)
    print(f"{card['name']}: {card['parameters']:,} parameters, {card['metrics']}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) == 3 else f"runs/bundled-{sys.argv[1]}"))
