"""Recipe speech: streaming or offline speech recognition (CTC) of spoken digit strings.

The model learns from the words in order; no alignment is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from qkv._config import to_dict
from qkv.data.speech.augmentation import SpeechAugment
from qkv.data.speech.digit_strings import DigitStringBatches
from qkv.data.speech.mel import FeatureNormalization, Mel
from qkv.data.speech.recordings import (
    WORDS,
    DigitRecording,
    Speaker,
    SpokenDigitSplits,
    load_spoken_digits,
    load_voices,
)
from qkv.models import TranscriberConfig
from qkv.models.transcriber import ctc_greedy_decode
from qkv.training.config import CheckpointConfig, TrainConfig
from qkv.training.evaluation import eval_mode, evaluate_all, first_epoch
from qkv.training.objectives import ctc
from qkv.training.optimizers import OptimizerConfig
from qkv.training.recipes.definition import RecipeConfig, RecipeDefinition, Stage, Task, build_model
from qkv.training.schedules import ScheduleConfig

NUM_SAMPLES = 16
EVAL_BATCH_SIZE = 50
EVAL_SEED = 7
AUGMENT = SpeechAugment(
    speed=(0.85, 1.15),
    tempo=(0.8, 1.3),
    vtlp=(0.85, 1.18),
    gain_jitter=3.0,
    equalizer=6.0,
    noise=0.1,
    time_masks=1.0,
    freq_masks=2,
)


@dataclass(frozen=True)
class SpeechData:
    """Where recordings come from, and how they are joined to strings of digits.

    path: a folder of digit_speaker_take.wav, or a folder of such folders; "voices" are the bundled ones of 16 people.
    held_out_speakers: speakers for the test; see `load_spoken_digits` for who is if none is given.
    min_digits, max_digits: digits in a string. num_strings: strings per epoch. eval_strings: strings in validation;
    test_strings: in each part of the test.
    n_mels, floor, peak_decay: log-mel features (see `Mel`).
    noise: the loudest noise in every string, relative to its root mean square.
    equal_lengths: whether the strings of a training batch have equally many digits.
    augment: speech augmentation in training (SpecAugment, VTLP, speed, noise).
    """

    path: str = "voices"
    held_out_speakers: tuple[str, ...] = ()
    min_digits: int = 1
    max_digits: int = 7
    num_strings: int = 1000
    eval_strings: int = 200
    test_strings: int = 1000
    batch_size: int = 16
    n_mels: int = 40
    floor: float = 0.03
    peak_decay: float | None = 1.0
    noise: float = 0.05
    equal_lengths: bool = True
    augment: SpeechAugment = field(default_factory=lambda: AUGMENT)
    skip_bad_items: bool = False


def build(config: RecipeConfig, limit: int | None = None) -> Task:
    """Load the recordings and build the model for their features."""
    data: SpeechData = config.data
    splits = load_recordings(data)
    mel = make_mel(data, splits.sample_rate)
    train = DigitStringBatches(
        splits.train,
        mel,
        data.batch_size,
        num_strings=data.num_strings,
        digits=(data.min_digits, data.max_digits),
        noise=data.noise,
        equal_lengths=data.equal_lengths,
        augment=data.augment,
        seed=config.seed,
    )

    def make_eval_batches(recordings: list[DigitRecording], count: int) -> DigitStringBatches:
        return make_eval_strings(
            data, recordings, mel, train.normalization, count if limit is None else min(count, limit)
        )

    validation = make_eval_batches(splits.validation, data.eval_strings)
    config = replace(config, model=replace(config.model, features=data.n_mels, num_labels=len(WORDS) + 1))
    objective = ctc()

    def validate(model: nn.Module) -> dict[str, float]:
        return {
            **evaluate_all(model, validation, objective),
            "word_error_rate": word_error_rate(transcribe_strings(model, validation)),
        }

    def test(model: nn.Module) -> dict[str, float]:
        rates: dict[str, float] = {}
        for name, recordings in {"seen": splits.seen, "unseen": splits.unseen}.items():
            if recordings:
                strings = transcribe_strings(model, make_eval_batches(recordings, data.test_strings))
                groups = group_by_speaker_kind(strings, splits.speakers) if name == "unseen" else {}
                rates[f"word_error_rate_{name}"] = word_error_rate(strings)
                rates |= {f"word_error_rate_{name}_{kind}": word_error_rate(group) for kind, group in groups.items()}
        return rates

    def samples(model: nn.Module) -> list[dict[str, Any]]:
        strings = transcribe_strings(model, validation)[:NUM_SAMPLES]
        return [{"spoken": spell(string.spoken), "transcribed": spell(string.transcribed)} for string in strings]

    return Task(
        config=config,
        model=build_model(config.model, config.seed),
        stages=(Stage("train", train, objective, validate),),
        test=test,
        samples=samples,
        purpose=lambda _: {
            "task": "transcribe",
            "words": list(WORDS),
            "mel": asdict(mel),
            "mean": list(train.normalization.mean),
            "std": list(train.normalization.std),
        },
        notes=splits.notes,
    )


def make_mel(data: SpeechData, sample_rate: int) -> Mel:
    """The features of a data config."""
    return Mel(sample_rate=sample_rate, n_mels=data.n_mels, floor=data.floor, peak_decay=data.peak_decay)


def make_eval_strings(
    data: SpeechData, recordings: list[DigitRecording], mel: Mel, normalization: FeatureNormalization | None, count: int
) -> DigitStringBatches:
    """The strings of validation or test: the same in every run, without augmentation."""
    return DigitStringBatches(
        recordings,
        mel,
        EVAL_BATCH_SIZE,
        num_strings=count,
        digits=(data.min_digits, data.max_digits),
        noise=data.noise,
        normalization=normalization,
        resample=False,
        seed=EVAL_SEED,
    )


def load_recordings(data: SpeechData) -> SpokenDigitSplits:
    """Load the recordings of a data config."""
    if data.path == "voices":
        return load_voices()
    bad_items: Literal["error", "skip"] = "skip" if data.skip_bad_items else "error"
    return load_spoken_digits(data.path, held_out_speakers=data.held_out_speakers, bad_items=bad_items)


class TranscribedString(NamedTuple):
    """The labels that were spoken and those that the model wrote."""

    speaker: str
    spoken: list[int]
    transcribed: list[int]


def transcribe_strings(model: nn.Module, strings: DigitStringBatches) -> list[TranscribedString]:
    """Transcribe the strings of the first epoch."""
    found: list[TranscribedString] = []
    with eval_mode(model) as device:
        for batch in first_epoch(strings, device):
            lengths = batch["lengths"]
            token_mask = torch.arange(batch["features"].shape[1], device=device) < lengths[:, None]
            logits = model(batch["features"], token_mask)
            written = ctc_greedy_decode(logits, model.count_tokens(lengths))  # type: ignore[operator]
            counts = batch["label_lengths"].tolist()
            for row, count, transcribed in zip(batch["labels"], counts, written, strict=True):
                speaker = strings.string(0, len(found)).speaker
                found.append(TranscribedString(speaker, row[:count].tolist(), transcribed))
    return found


def word_error_rate(strings: Sequence[TranscribedString]) -> float:
    """Compute the word error rate: substitutions, insertions and deletions as a share of all spoken words.

    >>> word_error_rate([TranscribedString("ann", [1, 2, 3], [1, 3]), TranscribedString("bo", [4], [4])])
    0.25
    """
    errors = sum(edit_distance(string.spoken, string.transcribed) for string in strings)
    return errors / sum(len(string.spoken) for string in strings)


def group_by_speaker_kind(
    strings: Sequence[TranscribedString], speakers: Mapping[str, Speaker]
) -> dict[str, list[TranscribedString]]:
    """The strings by the speaker's gender, and by the most common accent of all speakers against the others.

    >>> people = {"ann": Speaker("female", "French"), "bo": Speaker("male", "French"), "cy": Speaker("male", "Danish")}
    >>> groups = group_by_speaker_kind([TranscribedString(name, [1], [1]) for name in people], people)
    >>> {kind: len(group) for kind, group in groups.items()}
    {'female': 1, 'french_accent': 2, 'male': 2, 'other_accent': 1}
    """
    accents = Counter(speaker.accent for speaker in speakers.values() if speaker.accent)
    groups: dict[str, list[TranscribedString]] = {}
    for string in strings:
        about = speakers.get(string.speaker, Speaker())
        if about.gender:
            groups.setdefault(about.gender, []).append(string)
        if about.accent:
            common = accents.most_common(1)[0][0]
            kind = f"{common.lower()}_accent" if about.accent == common else "other_accent"
            groups.setdefault(kind, []).append(string)
    return dict(sorted(groups.items()))


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the fewest substitutions, insertions and deletions that turn one sequence into the other.

    >>> edit_distance([1, 2, 3], [2, 3, 4]), edit_distance([], [5]), edit_distance([1], [1])
    (2, 1, 0)
    """
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, right in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1]


def spell(labels: Sequence[int]) -> str:
    """Spell labels as words.

    >>> spell([4, 2])
    'three one'
    """
    return " ".join(WORDS[label - 1] for label in labels)


# no dropout: it costs a quarter of a step on a CPU, and augmented strings never repeat
_SIZES: dict[str, Any] = {
    "dim": 128,
    "layers": 4,
    "heads": 4,
    "frames_per_token": 4,
    "context_frames": 8,
    "conv_channels": 16,
    "dropout": 0.0,
}
SPEECH = RecipeDefinition(
    name="speech",
    summary="Transcribe digit strings while they are spoken (--data FOLDER of wav files; without it, bundled voices).",
    data=SpeechData(),
    models={
        "streaming": TranscriberConfig(**_SIZES, chunk_size=8, left_chunks=8, lookahead_chunks=1),
        "offline": TranscriberConfig(**_SIZES),
    },
    stages={
        "train": TrainConfig(
            steps=2_800,
            optimizer=OptimizerConfig(name="muon", lr=3e-3, weight_decay=0.05, betas=(0.9, 0.98)),
            schedule=ScheduleConfig(warmup_steps=280),
            checkpoint=CheckpointConfig(
                evaluate_every=350, checkpoint_every=350, best_metric="loss", greater_is_better=False
            ),
        )
    },
    presets={
        **{f"lookahead-{n}": {"model.lookahead_chunks": n} for n in range(3)},
        "no-augment": {"data.augment": to_dict(SpeechAugment())},
    },
    build=build,
    data_fields=("features", "num_labels"),
)
