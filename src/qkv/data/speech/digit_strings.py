"""Batches of spoken digit strings for CTC: recordings of one speaker joined at random with pauses.

Axes: b batch · t frames · f mel bands · n labels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.batches import Batch, generator_for, randint_inclusive
from qkv.data.speech.augmentation import SpeechAugment, root_mean_square, uniform
from qkv.data.speech.mel import FeatureNormalization, Mel, mel_filterbank
from qkv.data.speech.recordings import DigitRecording

BLANK = 0  # CTC's; digit d is label d + 1
STRING_STREAM, FEATURE_STREAM, COUNT_STREAM, TEMPO_STREAM = 11, 13, 14, 15  # of randomness
NORMALIZATION_STRINGS = 100  # strings from which the normalization is computed


class DigitString(NamedTuple):
    """The samples of a string, its digits, and who speaks it."""

    samples: Tensor
    digits: list[int]
    speaker: str


class DigitStringBatches:
    """Batches of `features` (b, t, f), `lengths` (b,), `labels` (b, n) and `label_lengths` (b,).

    A string is of one speaker: random digits, pauses between them, a little noise. Features are normalized by fixed
    numbers, so that a stream gives the same.

    Args:
        normalization: of the features; computed from the first training strings if not given.
        num_strings: strings per epoch. digits: fewest and most in a string. pause: shortest and longest, in seconds.
        noise: the loudest white noise, relative to the string's root mean square; each string has its own level.
        resample: draw new strings every epoch; False, for validation, repeats those of epoch 0.
        equal_lengths: give the strings of a batch equally many digits, so that there is little padding.
        augment: for training only.
    """

    def __init__(
        self,
        recordings: list[DigitRecording],
        mel: Mel,
        batch_size: int,
        *,
        normalization: FeatureNormalization | None = None,
        num_strings: int = 1000,
        digits: tuple[int, int] = (1, 7),
        pause: tuple[float, float] = (0.05, 0.4),
        noise: float = 0.003,
        seed: int = 0,
        resample: bool = True,
        equal_lengths: bool = False,
        augment: SpeechAugment | None = None,
    ) -> None:
        if not recordings or batch_size < 1 or num_strings < 1:
            raise ValueError(
                f"expected recordings, and batch_size and num_strings of at least 1, got {len(recordings)} recordings, "
                f"{batch_size} and {num_strings}"
            )
        if not 1 <= digits[0] <= digits[1] or not 0 <= pause[0] <= pause[1] or noise < 0:
            raise ValueError(
                f"digits and pause must be (low, high) and noise at least 0, got {digits}, {pause} and {noise}"
            )
        self.mel, self.batch_size, self.num_strings, self.seed = mel, batch_size, num_strings, seed
        self.digits, self.pause, self.noise = digits, pause, noise
        self.resample, self.equal_lengths = resample, equal_lengths
        self.augment = augment or SpeechAugment()
        self.voices = _group_by_speaker(recordings)
        if normalization is None:
            first = range(min(num_strings, NORMALIZATION_STRINGS))
            normalization = FeatureNormalization.from_features(
                [mel(self.string(0, number).samples) for number in first]
            )
        self.normalization = normalization

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        return -(-self.num_strings // self.batch_size)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        if not 0 <= index < self.num_batches(epoch):
            raise IndexError(f"this epoch has batches 0 … {self.num_batches(epoch) - 1}, got index {index}")
        epoch = epoch if self.resample else 0
        numbers = range(index * self.batch_size, min((index + 1) * self.batch_size, self.num_strings))
        strings = [self.string(epoch, number) for number in numbers]
        mel = self.augment.sample_tempo(self.mel, generator_for(self.seed, TEMPO_STREAM, epoch, index))
        lengths = torch.tensor([mel.num_frames(len(string.samples)) for string in strings])
        labels = [torch.tensor([digit + 1 for digit in string.digits]) for string in strings]
        pad = torch.nn.utils.rnn.pad_sequence
        samples = pad([string.samples for string in strings], batch_first=True)
        features = self._features(mel, samples, lengths, epoch, numbers)
        inside = torch.arange(features.shape[1]) < lengths[:, None]
        return {
            "features": features.masked_fill_(~inside[..., None], 0.0),
            "lengths": lengths,
            "labels": pad(labels, batch_first=True, padding_value=BLANK),
            "label_lengths": torch.tensor([len(row) for row in labels]),
        }

    def _features(self, mel: Mel, samples: Tensor, lengths: Tensor, epoch: int, numbers: range) -> Tensor:
        """Normalized and augmented features; masked ones are 0, the mean."""
        filterbanks, masks = [], []
        for number, length in zip(numbers, lengths.tolist(), strict=True):
            generator = generator_for(self.seed, FEATURE_STREAM, epoch, number)
            warp = self.augment.sample_warp(generator)
            filterbank = mel_filterbank(mel.sample_rate, mel.fft_size, mel.n_mels, warp)
            filterbanks.append(filterbank * self.augment.sample_equalizer(mel.n_mels, generator))
            masks.append(self.augment.sample_masks(length, mel.n_mels, mel.hop, generator))
        features = self.normalization(mel.log_energy(mel.power(samples) @ torch.stack(filterbanks)))
        for row, (time_masks, freq_masks) in zip(features, masks, strict=True):
            for mask in time_masks:
                row[mask.start : mask.stop] = 0.0
            for mask in freq_masks:
                row[:, mask.start : mask.stop] = 0.0
        return features

    def string(self, epoch: int, number: int) -> DigitString:
        """The string of that number."""
        epoch = epoch if self.resample else 0
        generator = generator_for(self.seed, STRING_STREAM, epoch, number)
        voice = self.voices[randint_inclusive(0, len(self.voices) - 1, generator)]
        count_generator = generator
        if self.equal_lengths:
            count_generator = generator_for(self.seed, COUNT_STREAM, epoch, number // self.batch_size)
        count = randint_inclusive(*self.digits, count_generator)
        chosen = [voice[randint_inclusive(0, len(voice) - 1, generator)] for _ in range(count)]
        shortest, longest = (round(seconds * self.mel.sample_rate) for seconds in self.pause)
        pieces = [torch.zeros(randint_inclusive(shortest, longest, generator))]
        for recording in chosen:
            samples = self.augment.augment_recording(recording.samples, generator)
            pieces += [samples, torch.zeros(randint_inclusive(shortest, longest, generator))]
        samples = self.augment.augment_string(torch.cat(pieces), generator)
        level = self.noise * root_mean_square(samples) * uniform(0.0, 1.0, generator)
        samples = samples + level * torch.randn(len(samples), generator=generator)
        missing = max(self.mel.window_size - len(samples), 0)  # to fill at least one frame
        digits = [recording.digit for recording in chosen]
        return DigitString(torch.nn.functional.pad(samples, (0, missing)), digits, chosen[0].speaker)


def _group_by_speaker(recordings: Sequence[DigitRecording]) -> list[list[DigitRecording]]:
    """The recordings of each speaker, speakers in alphabetical order."""
    groups: dict[str, list[DigitRecording]] = {}
    for recording in recordings:
        groups.setdefault(recording.speaker, []).append(recording)
    return [groups[name] for name in sorted(groups)]
