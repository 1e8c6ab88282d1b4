"""Spoken digits: single recordings, and strings of them joined at random with pauses, for CTC.

Axes: b batch · t frames · f bands · n labels.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.batches import Batch, drawn, generator_for
from qkv.data.disguise import Disguise, between
from qkv.data.mel import FeatureScale, Mel, filterbank
from qkv.data.problems import BadItems, Problems, one_line
from qkv.data.wav import read_sound

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
BLANK = 0  # CTC's; digit d is label d + 1
STRINGS = 11  # the stream of randomness that joins recordings
BANDS = 13  # … that changes their bands
PACE = 15  # … that sets the tempo of a batch
SIZES = 14  # … that says how many digits the strings of a batch have
NAME = re.compile(r"(\d)_([A-Za-z][\w-]*?)_(\d+)\.wav")


@dataclass(frozen=True)
class Spoken:
    """One recording of one digit."""

    samples: Tensor
    digit: int
    speaker: str
    take: int


@dataclass(frozen=True)
class SpokenParts:
    """Recordings by part. Speakers that were left out are in `unseen` alone; `seen` are others' takes, kept apart."""

    train: list[Spoken]
    validation: list[Spoken]
    seen: list[Spoken]
    unseen: list[Spoken]
    rate: int
    notes: tuple[str, ...] = ()


def read_spoken(folder: str | Path, *, left_out: tuple[str, ...] = (), bad_items: BadItems = "refuse") -> SpokenParts:
    """A folder of `{digit}_{speaker}_{take}.wav`. Takes 0–4 are for test, 5–9 for validation, the others for training.

    left_out: speakers that are not trained on at all; none: the last in alphabetical order, if there are several.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.wav")) if folder.is_dir() else []
    if not paths:
        raise ValueError(f"{folder}: expected a folder of wav files called digit_speaker_number.wav")
    problems, rates, found = Problems("recordings", bad_items), set(), []
    for path in paths:
        named = NAME.fullmatch(path.name)
        if named is None:
            problems.add(path, "its name is not digit_speaker_number.wav")
            continue
        try:
            sound = read_sound(path)
        except (ValueError, OSError) as error:
            problems.add(path, one_line(error).removeprefix(f"{path} "))
            continue
        rates.add(sound.rate)
        found.append(Spoken(sound.samples, int(named[1]), named[2], int(named[3])))
    notes = problems.settle(len(paths))
    if len(rates) != 1:
        raise ValueError(f"{folder}: recordings have one rate; got {', '.join(f'{r} Hz' for r in sorted(rates))}")
    return _parted(found, left_out, rates.pop(), notes)


def _parted(found: list[Spoken], left_out: tuple[str, ...], rate: int, notes: tuple[str, ...]) -> SpokenParts:
    speakers = sorted({spoken.speaker for spoken in found})
    if unknown := sorted(set(left_out) - set(speakers)):
        raise ValueError(f"there is no speaker {unknown[0]!r}; there are {', '.join(speakers)}")
    left_out = left_out or (tuple(speakers[-1:]) if len(speakers) > 1 else ())
    kept = [spoken for spoken in found if spoken.speaker not in left_out]
    parts = (
        [spoken for spoken in kept if spoken.take >= 10],
        [spoken for spoken in kept if 5 <= spoken.take < 10],
        [spoken for spoken in kept if spoken.take < 5],
    )
    for name, part in zip(
        ("training (takes from 10 on)", "validation (takes 5–9)", "test (takes 0–4)"), parts, strict=True
    ):
        if not part:
            raise ValueError(f"no recordings are left for {name}, of speakers {', '.join(speakers)} less {left_out}")
    notes += (
        f"speakers trained on: {', '.join(s for s in speakers if s not in left_out)}; left out: {', '.join(left_out)}",
    )
    return SpokenParts(*parts, [spoken for spoken in found if spoken.speaker in left_out], rate, notes)


class SpokenStrings:
    """`features` (b, t, f), `lengths` (b,), `labels` (b, n) and `label_lengths` (b,) of digit strings joined at random.

    A string is of one speaker: digits drawn at random, pauses between them, a little noise. Frames are scaled by
    fixed numbers (`scale`), so that a stream gives the same.

    scale: mean and deviation of the bands, from the first strings of training; that of the training data for others.
    strings: how many an epoch has. digits: fewest and most in a string. pause: shortest and longest, in seconds.
    noise: the loudest hiss, as a share of full volume; each string has its own.
    fresh: whether every epoch has strings of its own; False, as for validation, repeats those of epoch 0.
    alike: whether the strings of a batch have equally many digits, so that little of it is padding.
    disguise: how far sounds and bands are changed; for training only.
    others: more recordings, of which a `share` of the strings is made; digits of one string may be of several voices,
        if these have one name.
    """

    def __init__(
        self,
        recordings: list[Spoken],
        mel: Mel,
        rows: int,
        *,
        scale: FeatureScale | None = None,
        strings: int = 1000,
        digits: tuple[int, int] = (1, 7),
        pause: tuple[float, float] = (0.05, 0.4),
        noise: float = 0.003,
        seed: int = 0,
        fresh: bool = True,
        alike: bool = False,
        disguise: Disguise | None = None,
        others: Sequence[Spoken] = (),
        share: float = 0.0,
    ) -> None:
        if not recordings or rows < 1 or strings < 1:
            raise ValueError(f"expected recordings, rows and strings; got {len(recordings)}, {rows} and {strings}")
        if not 1 <= digits[0] <= digits[1] or not 0 <= pause[0] <= pause[1] or noise < 0:
            raise ValueError(
                f"digits and pause run from less to more, noise is 0 or more; got {digits}, {pause}, {noise}"
            )
        if not 0 <= share <= 1 or (share and not others):
            raise ValueError(
                f"share is from 0 to 1, and above 0 there are others; got {share} and {len(others)} recordings"
            )
        self.mel, self.rows, self.strings, self.seed, self.fresh = mel, rows, strings, seed, fresh
        self.digits, self.pause, self.noise, self.alike = digits, pause, noise, alike
        self.disguise = disguise or Disguise()
        self.voices, self.other_voices, self.share = by_speaker(recordings), by_speaker(others), share
        if scale is None:
            scale = FeatureScale.of([mel(self.string(0, number)[0]) for number in range(min(strings, 100))])
        self.scale = scale

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        return -(-self.strings // self.rows)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        if not 0 <= index < self.count(epoch):
            raise IndexError(f"this epoch has batches 0 … {self.count(epoch) - 1}; got {index}")
        numbers = range(index * self.rows, min((index + 1) * self.rows, self.strings))
        made = [self.string(epoch, number) for number in numbers]
        mel = self.disguise.pace(self.mel, generator_for(self.seed, PACE, epoch if self.fresh else 0, index))
        lengths = torch.tensor([mel.frames(len(samples)) for samples, _ in made])
        labels = [torch.tensor([digit + 1 for digit in digits]) for _, digits in made]
        pad = torch.nn.utils.rnn.pad_sequence
        sounds = pad([samples for samples, _ in made], batch_first=True)
        features = self.features(mel, sounds, lengths, epoch, numbers)
        present = torch.arange(features.shape[1]) < lengths[:, None]
        return {
            "features": features.masked_fill_(~present[..., None], 0.0),
            "lengths": lengths,
            "labels": pad(labels, batch_first=True, padding_value=BLANK),
            "label_lengths": torch.tensor([len(row) for row in labels]),
        }

    def features(self, mel: Mel, samples: Tensor, lengths: Tensor, epoch: int, numbers: range) -> Tensor:
        """The scaled bands of strings, disguised; what is not heard is as the mean."""
        banks, unheard = [], []
        for number, length in zip(numbers, lengths.tolist(), strict=True):
            generator = generator_for(self.seed, BANDS, epoch if self.fresh else 0, number)
            bank = filterbank(mel.rate, mel.size, mel.bands, self.disguise.stretch(generator))
            banks.append(bank * self.disguise.tint(mel.bands, generator))
            unheard.append(self.disguise.unheard(length, mel.bands, mel.hop, generator))
        features = self.scale(mel.logarithm(mel.energy(samples) @ torch.stack(banks)))
        for row, (times, bands) in zip(features, unheard, strict=True):
            for stretch in times:
                row[stretch.start : stretch.stop] = 0.0
            for stretch in bands:
                row[:, stretch.start : stretch.stop] = 0.0
        return features

    def string(self, epoch: int, number: int) -> tuple[Tensor, list[int]]:
        """The sound of one string, and its digits."""
        epoch = epoch if self.fresh else 0
        generator = generator_for(self.seed, STRINGS, epoch, number)
        other = self.share and between(0.0, 1.0, generator) < self.share
        voices = self.other_voices if other else self.voices
        voice = voices[drawn(0, len(voices) - 1, generator)]
        sizes = generator_for(self.seed, SIZES, epoch, number // self.rows) if self.alike else generator
        chosen = [voice[drawn(0, len(voice) - 1, generator)] for _ in range(drawn(*self.digits, sizes))]
        shortest, longest = (round(seconds * self.mel.rate) for seconds in self.pause)
        pieces = [torch.zeros(drawn(shortest, longest, generator))]
        for spoken in chosen:
            sound = self.disguise.recording(spoken.samples, generator)
            pieces += [sound, torch.zeros(drawn(shortest, longest, generator))]
        samples = self.disguise.string(torch.cat(pieces), generator)
        hiss = self.noise * float(torch.rand((), generator=generator))
        samples = samples + hiss * torch.randn(len(samples), generator=generator)
        short = self.mel.samples - len(samples)
        return torch.nn.functional.pad(samples, (0, max(short, 0))), [spoken.digit for spoken in chosen]


def by_speaker(recordings: Sequence[Spoken]) -> list[list[Spoken]]:
    """The recordings of each speaker, speakers by name."""
    found: dict[str, list[Spoken]] = {}
    for spoken in recordings:
        found.setdefault(spoken.speaker, []).append(spoken)
    return [found[name] for name in sorted(found)]
