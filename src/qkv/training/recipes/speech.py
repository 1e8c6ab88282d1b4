"""Speech: a transcriber hears strings of digits and writes them down, with a look-ahead of so many chunks, or offline.

It learns by CTC: no word's time is given, only the words in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from qkv._config import to_plain
from qkv.data.disguise import Disguise
from qkv.data.mel import Mel
from qkv.data.spoken import WORDS, Spoken, SpokenParts, SpokenStrings, read_spoken
from qkv.models import TranscriberConfig
from qkv.models.transcriber import read_out
from qkv.training import Optimiser, Saving, Schedule, Settings, ctc
from qkv.training.recipes.building import drawn
from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.measure import epoch_of, judging, measured

SHOWN = 16
DISGUISE = Disguise(
    speed=(0.85, 1.15),
    tempo=(0.8, 1.3),
    warp=(0.85, 1.18),
    gain=(-28.0, 2.0),
    wobble=3.0,
    colour=6.0,
    hiss=0.1,
    time_masks=1.0,
    band_masks=2,
)


@dataclass(frozen=True)
class SpeechData:
    """Where recordings come from, and how they are joined.

    path: a folder of digit_speaker_number.wav; "tones" are machine-made digits.
    left_out: speakers that are not trained on; the last by name if none is given.
    fewest, most: digits in a string. strings: how many an epoch has; judged: how many validation and test have.
    bands, floor, fade: of the log-mel features (see Mel).
    noise: the loudest hiss in every string, as a share of full volume.
    alike: whether the strings of a training batch have equally many digits.
    disguise: how voices are changed in training.
    machines: the share of training strings that machine-made voices say, in English (see `machine_voices`): 0 for
        recordings in another language; tones have none.
    """

    path: str = "tones"
    left_out: tuple[str, ...] = ()
    fewest: int = 1
    most: int = 7
    strings: int = 1000
    judged: int = 200
    batch: int = 16
    bands: int = 40
    floor: float = 0.03
    fade: float | None = 1.0
    noise: float = 0.003
    alike: bool = True
    disguise: Disguise = field(default_factory=lambda: DISGUISE)
    machines: float = 0.5
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.machines <= 1:
            raise ValueError(f"data.machines is a share of the training strings, from 0 to 1; got {self.machines}")


def build(recipe: Recipe) -> Task:
    """Read the recordings, build the model for their features."""
    data: SpeechData = recipe.data
    parts = opened(data)
    mel = Mel(rate=parts.rate, bands=data.bands, floor=data.floor, fade=data.fade)
    joined: dict[str, Any] = {"digits": (data.fewest, data.most), "noise": data.noise}
    changed: dict[str, Any] = {
        "alike": data.alike,
        "disguise": data.disguise,
        "seed": recipe.seed,
        **others(data, parts),
    }
    train = SpokenStrings(parts.train, mel, data.batch, strings=data.strings, **changed, **joined)
    apart = {**joined, "scale": train.scale, "strings": data.judged, "fresh": False, "seed": 7}
    validation = SpokenStrings(parts.validation, mel, 50, **apart)
    config = replace(recipe.model, features=data.bands, labels=len(WORDS) + 1)

    def test(model: nn.Module) -> dict[str, float]:
        sets = {"seen": parts.seen, "unseen": parts.unseen}
        judged = {name: SpokenStrings(found, mel, 50, **apart) for name, found in sets.items() if found}
        return {f"word_error_rate_{name}": word_errors(model, strings) for name, strings in judged.items()}

    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=(
            Stage(
                "train",
                train,
                ctc(),
                lambda model: {
                    **measured(model, validation, ctc()),
                    "word_error_rate": word_errors(model, validation),
                },
            ),
        ),
        test=test,
        samples=lambda model: _samples(model, validation),
        purpose=lambda _: {
            "task": "transcribe",
            "words": list(WORDS),
            "mel": asdict(mel),
            "mean": list(train.scale.mean),
            "deviation": list(train.scale.deviation),
        },
        notes=parts.notes,
    )


def opened(data: SpeechData) -> SpokenParts:
    """The recordings that the settings name."""
    if data.path == "tones":
        from qkv.data.tones import tone_digits

        return tone_digits()
    return read_spoken(data.path, left_out=data.left_out, bad_items="skip" if data.skip_bad else "refuse")


def others(data: SpeechData, parts: SpokenParts) -> dict[str, Any]:
    """Whose voices are heard in training besides the recordings', as loud as these in the mean, and how often."""
    if not data.machines or data.path == "tones":
        return {}
    from qkv.data.voices import machine_voices

    voices = machine_voices(parts.rate)
    ratio = loudness(parts.train) / loudness(voices)
    return {
        "others": [replace(spoken, samples=ratio * spoken.samples) for spoken in voices],
        "share": data.machines,
    }


def loudness(recordings: Sequence[Spoken]) -> float:
    """The root of the mean square of each recording's samples; the mean of all recordings."""
    return sum(float(spoken.samples.square().mean().sqrt()) for spoken in recordings) / len(recordings)


def heard(model: nn.Module, strings: SpokenStrings) -> list[tuple[list[int], list[int]]]:
    """What was said and what the model wrote down, in labels, string by string."""
    pairs: list[tuple[list[int], list[int]]] = []
    with judging(model) as device:
        for batch in epoch_of(strings, device):
            lengths = batch["lengths"]
            present = torch.arange(batch["features"].shape[1], device=device) < lengths[:, None]
            written = read_out(model(batch["features"], present), model.frames(lengths))  # type: ignore[operator]
            counts = batch["label_lengths"].tolist()
            pairs += [(row[:n].tolist(), w) for row, n, w in zip(batch["labels"], counts, written, strict=True)]
    return pairs


def word_errors(model: nn.Module, strings: SpokenStrings) -> float:
    """Words to be changed, added or left out to get what was said, as a share of all words said."""
    pairs = heard(model, strings)
    return sum(distance(said, written) for said, written in pairs) / sum(len(said) for said, _ in pairs)


def distance(one: Sequence[int], other: Sequence[int]) -> int:
    """The fewest changes, insertions and deletions that turn one sequence into the other.

    >>> distance([1, 2, 3], [2, 3, 4]), distance([], [5]), distance([1], [1])
    (2, 1, 0)
    """
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def spelled(labels: Sequence[int]) -> str:
    """
    >>> spelled([4, 2])
    'three one'
    """
    return " ".join(WORDS[label - 1] for label in labels)


def _samples(model: nn.Module, strings: SpokenStrings) -> list[dict[str, Any]]:
    return [{"said": spelled(said), "written": spelled(written)} for said, written in heard(model, strings)[:SHOWN]]


# no dropout: its bits cost a quarter of a step on a CPU, and disguised voices are never heard twice
_SIZES: dict[str, Any] = {
    "width": 128,
    "layers": 4,
    "heads": 4,
    "stack": 4,
    "context": 8,
    "channels": 16,
    "dropout": 0.0,
}
SPEECH = System(
    name="speech",
    summary="Digit strings transcribed while they are spoken (--data FOLDER of wavs; without, machine-made tones).",
    data=SpeechData(),
    models={
        "streaming": TranscriberConfig(**_SIZES, chunk_size=8, left_chunks=8, ahead=1),
        "offline": TranscriberConfig(**_SIZES),
    },
    stages={
        "train": Settings(
            steps=2_800,
            optimiser=Optimiser(name="muon", lr=3e-3, weight_decay=0.05, betas=(0.9, 0.98)),
            schedule=Schedule(warmup=280),
            saving=Saving(evaluate_every=350, checkpoint_every=350, best="loss", larger=False),
        )
    },
    presets={
        **{f"ahead-{n}": {"model.ahead": n} for n in range(3)},
        "undisguised": {"data.disguise": to_plain(Disguise())},
    },
    build=build,
    fills=("features", "labels"),
)
