"""Recordings of spoken digits: a folder of WAV files or the bundled voices, split by speaker."""

import hashlib
import io
import json
import lzma
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.data.files import BadItemLog, BadItems, describe_error
from qkv.data.speech.transform_codec import BLOCK, decode
from qkv.data.speech.wav import read_audio

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FILE_NAME = re.compile(r"(\d)_([A-Za-z][\w-]*?)_(\d+)\.wav")
SAMPLE_RATE = 8000  # of the bundled voices
MIN_SPEAKERS_TO_SPLIT = 16  # with fewer, too few would be left to train on
PART_NAMES = {"train": "training", "validation": "validation", "seen": "test"}


@dataclass(frozen=True)
class DigitRecording:
    """One recording of one digit."""

    samples: Tensor
    digit: int
    speaker: str
    take: int


@dataclass(frozen=True)
class Speaker:
    """What is known about a speaker; "" where nothing is."""

    gender: str = ""
    accent: str = ""

    @classmethod
    def from_json(cls, about: Mapping[str, object]) -> "Speaker":
        """Read `{"gender": …, "accent": …}`, however it is capitalized."""
        gender, accent = (str(about.get(key, "")).strip().capitalize() for key in ("gender", "accent"))
        return cls(gender.lower(), accent)


@dataclass(frozen=True)
class SpokenDigitSplits:
    """Recordings by part. `seen` and `unseen` are for test: speakers of the training data, and held-out speakers."""

    train: list[DigitRecording]
    validation: list[DigitRecording]
    seen: list[DigitRecording]
    unseen: list[DigitRecording]
    sample_rate: int
    notes: tuple[str, ...] = ()
    speakers: Mapping[str, Speaker] = field(default_factory=dict)


def load_spoken_digits(
    folder: str | Path, *, held_out_speakers: tuple[str, ...] = (), bad_items: BadItems = "error"
) -> SpokenDigitSplits:
    """Read `{digit}_{speaker}_{take}.wav` from a folder, or from all folders in it that have such files.

    With at least 16 speakers, validation and test are other people than training: a quarter of the speakers for test
    and an eighth for validation, balanced over gender and accent. `NAME.json` beside the folder NAME says what
    these are: `{"ann": {"gender": "female", "accent": "French"}}`. Of the training speakers, the first tenth of the
    takes of each digit is for test, too. With fewer speakers, takes 0–4 are for test, 5–9 for validation.

    held_out_speakers: speakers for the test; by default those drawn, or the last one in alphabetical order if there
        are fewer than 16.
    """
    folder = Path(folder)
    paths = _recording_paths(folder)
    if not paths:
        raise ValueError(f"{folder}: expected a folder of WAV files called digit_speaker_take.wav")
    log, rates, found = BadItemLog("recordings", bad_items), set(), []
    for path in paths:
        match = FILE_NAME.fullmatch(path.name)
        if match is None:
            log.add(path, "its name is not digit_speaker_take.wav")
            continue
        try:
            audio = read_audio(path)
        except (ValueError, OSError) as error:
            log.add(path, describe_error(error).removeprefix(f"{path} "))
            continue
        rates.add(audio.sample_rate)
        found.append(DigitRecording(audio.samples, int(match[1]), match[2], int(match[3])))
    notes = log.finish(len(paths))
    if len(rates) != 1:
        raise ValueError(f"{folder}: expected one sample rate, got {', '.join(f'{r} Hz' for r in sorted(rates))}")
    names = sorted({recording.speaker for recording in found})
    if unknown := sorted(set(held_out_speakers) - set(names)):
        raise ValueError(f"there is no speaker {unknown[0]!r}; there are {', '.join(names)}")
    speakers = read_speakers({path.parent for path in paths}, names)
    if len(names) >= MIN_SPEAKERS_TO_SPLIT:
        splits = split_speakers(found, speakers, rates.pop(), held_out_speakers, notes)
    else:
        held_out = held_out_speakers or (tuple(names[-1:]) if len(names) > 1 else ())
        trained = [name for name in names if name not in held_out]
        notes += (f"training speakers: {', '.join(trained)}; held out: {', '.join(held_out)}",)
        splits = split_by_take(found, held_out, rates.pop(), notes)
    for part in ("train", "validation", "seen"):
        if not getattr(splits, part):
            raise ValueError(
                f"no recordings are left for {PART_NAMES[part]} of {len(names)} speakers, "
                f"{len(held_out_speakers)} of them held out; expected at least {MIN_SPEAKERS_TO_SPLIT} speakers, or "
                "takes 0–4 for test, 5–9 for validation and others for training"
            )
    return splits


def _recording_paths(folder: Path) -> list[Path]:
    """The WAV files of the folder, or of the folders in it that have files called digit_speaker_take.wav."""
    if not folder.is_dir():
        return []
    if own := sorted(folder.glob("*.wav")):
        return own
    inner = [sorted(path.glob("*.wav")) for path in sorted(folder.iterdir()) if path.is_dir()]
    return [path for paths in inner if any(FILE_NAME.fullmatch(path.name) for path in paths) for path in paths]


def read_speakers(folders: Iterable[Path], names: Sequence[str]) -> dict[str, Speaker]:
    """What `NAME.json` beside each folder NAME says of these speakers."""
    speakers = dict.fromkeys(names, Speaker())
    for folder in folders:
        file = folder.resolve().with_name(f"{folder.resolve().name}.json")
        if not file.is_file():
            continue
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            speakers |= {name: Speaker.from_json(about) for name, about in table.items() if name in speakers}
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f'{file}: expected {{"speaker": {{"gender": …, "accent": …}}}}, got {describe_error(error)}'
            ) from None
    return speakers


def split_speakers(
    recordings: list[DigitRecording],
    speakers: Mapping[str, Speaker],
    sample_rate: int,
    held_out_speakers: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> SpokenDigitSplits:
    """Split by speaker: a quarter of each gender for test and an eighth for validation, both rounded up, the others
    for training. Within a gender, the most common accent and the others are drawn in proportion.

    Who is drawn depends on the names only.
    """
    accents = Counter(speaker.accent for speaker in speakers.values() if speaker.accent)
    common = accents.most_common(1)[0][0] if accents else ""
    test, validation = set(held_out_speakers), set[str]()
    for gender in sorted({speaker.gender for speaker in speakers.values()}):
        free = [name for name in speakers if speakers[name].gender == gender and name not in test]
        by_accent = [[name for name in free if (speakers[name].accent == common) == same] for same in (True, False)]
        order = _mix_evenly(by_accent)
        num_test = 0 if held_out_speakers else -(-len(order) // 4)
        test |= set(order[:num_test])
        validation |= set(order[num_test : num_test + -(-len(order) // 8)])
    takes = _rank_takes(recordings)
    parts: dict[str, list[DigitRecording]] = {"train": [], "validation": [], "seen": [], "unseen": []}
    for recording in recordings:
        rank, count = takes[recording.speaker, recording.digit, recording.take]
        part = "seen" if rank < -(-count // 10) else "train"
        if recording.speaker in test:
            part = "unseen"
        elif recording.speaker in validation:
            part = "validation"
        parts[part].append(recording)
    trained = set(speakers) - test - validation
    people = {"training": trained, "validation": validation, "test": test}
    notes += tuple(f"{part}: {_describe_people(names, speakers)}" for part, names in people.items())
    return SpokenDigitSplits(**parts, sample_rate=sample_rate, notes=notes, speakers=speakers)


def _mix_evenly(groups: Sequence[Sequence[str]]) -> list[str]:
    """The names of all groups in an order in which every stretch has about the same share of each group."""
    placed = []
    for group in groups:
        shuffled = sorted(group, key=lambda name: hashlib.sha256(name.encode()).digest())
        placed += [((place + 0.5) / len(shuffled), name) for place, name in enumerate(shuffled)]
    return [name for _, name in sorted(placed)]


def _rank_takes(recordings: list[DigitRecording]) -> dict[tuple[str, int, int], tuple[int, int]]:
    """For each recording: its place among the takes of that digit by that speaker, and their number."""
    takes: dict[tuple[str, int], list[int]] = {}
    for recording in recordings:
        takes.setdefault((recording.speaker, recording.digit), []).append(recording.take)
    return {
        (*key, take): (rank, len(numbers))
        for key, numbers in takes.items()
        for rank, take in enumerate(sorted(numbers))
    }


def _describe_people(names: set[str], speakers: Mapping[str, Speaker]) -> str:
    genders = Counter(speakers[name].gender for name in names if speakers[name].gender)
    counts = ", ".join(f"{count} {gender}" for gender, count in sorted(genders.items()))
    return f"{len(names)} speakers{f' ({counts})' if counts else ''}: {', '.join(sorted(names))}"


def split_by_take(
    recordings: list[DigitRecording],
    held_out_speakers: tuple[str, ...],
    sample_rate: int,
    notes: tuple[str, ...] = (),
) -> SpokenDigitSplits:
    """Split recordings by take (0–4 test, 5–9 validation, others training); held-out speakers are `unseen` only."""
    known = [recording for recording in recordings if recording.speaker not in held_out_speakers]
    return SpokenDigitSplits(
        train=[recording for recording in known if recording.take >= 10],
        validation=[recording for recording in known if 5 <= recording.take < 10],
        seen=[recording for recording in known if recording.take < 5],
        unseen=[recording for recording in recordings if recording.speaker in held_out_speakers],
        sample_rate=sample_rate,
        notes=notes,
    )


def load_voices() -> SpokenDigitSplits:
    """The bundled recordings of 16 people, from AudioMNIST (`voices/README.md`).

    >>> parts = load_voices()
    >>> [len(part) for part in (parts.train, parts.validation, parts.seen, parts.unseen)]
    [160, 90, 80, 150]
    """
    arrays = _read_voices()
    codes = torch.from_numpy(np.ascontiguousarray(arrays["codes"].T))
    lengths = arrays["lengths"].tolist()
    blocks = [math.ceil(length / BLOCK) + 1 for length in lengths]
    samples = [decode(part, length) for part, length in zip(codes.split(blocks), lengths, strict=True)]
    labels = (arrays[name].tolist() for name in ("digits", "speakers", "takes"))
    recordings = [DigitRecording(*parts) for parts in zip(samples, *labels, strict=True)]
    people = json.loads(str(arrays["people"]))
    return split_speakers(recordings, {name: Speaker.from_json(about) for name, about in people.items()}, SAMPLE_RATE)


@cache
def _read_voices() -> dict[str, np.ndarray]:
    packed = files("qkv.data.speech").joinpath("voices", "voices.npz.xz").read_bytes()
    return dict(np.load(io.BytesIO(lzma.decompress(packed)), allow_pickle=False))
