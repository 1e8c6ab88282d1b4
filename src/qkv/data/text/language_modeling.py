"""Running text for language modeling: text files, the bundled Shakespeare, and fixed-length windows as batches.

Axes: b batch · t tokens.
"""

import lzma
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import Batch, batch_indices, epoch_order, generator_for
from qkv.data.files import read_text

OFFSET_STREAM = 4  # of randomness


def load_shakespeare() -> tuple[str, str]:
    """The bundled Shakespeare (public domain; `shakespeare/README.md`): 90 % for training, 10 % held out.

    >>> train, held_out = load_shakespeare()
    >>> len(train) + len(held_out), train[:14]
    (1115394, 'First Citizen:')
    """
    packed = files("qkv.data.text").joinpath("shakespeare", "shakespeare.txt.xz").read_bytes()
    text = lzma.decompress(packed).decode("utf-8")
    cut = text.index("\n\n", len(text) * 9 // 10) + 2
    return text[:cut], text[cut:]


def read_texts(paths: str | Path | Sequence[str | Path], validation: float = 0.1) -> tuple[str, str]:
    """Read text files; return training and validation text. Validation is the end of each file, cut at a line end.

    A folder stands for the .txt files in it.
    """
    if not 0 < validation < 1:
        raise ValueError(f"the validation fraction must be between 0 and 1, got {validation}")
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    found = [file for path in paths for file in (sorted(Path(path).glob("*.txt")) if Path(path).is_dir() else [path])]
    if not found:
        raise ValueError(f"there is no text file in {', '.join(map(str, paths)) or 'an empty list'}")
    parts = [_split_off_end(read_text(file), validation) for file in found]
    return "\n".join(head for head, _ in parts), "\n".join(tail for _, tail in parts)


def _split_off_end(text: str, fraction: float) -> tuple[str, str]:
    cut = min(max(int(len(text) * (1 - fraction)), 1), len(text) - 1)
    line_end = text.find("\n", cut, min(cut + 1000, len(text) - 1))
    cut = line_end + 1 if line_end >= 0 else cut
    return text[:cut], text[cut:]


class TextWindows:
    """Batches of `tokens` and `targets` (b, t): a window of running text and the same shifted by one.

    `loss_mask` (b, t) is True where there is text. With shuffle, for training, every epoch cuts the text from another
    random offset, so that no token is always at the same position; the few tokens before the offset and after the
    last whole window are left out of that epoch. In order, for validation, every token but the first is predicted
    exactly once.

    Args:
        ids: token ids of the whole text (n,).
        length: tokens in a window.
    """

    def __init__(
        self, ids: Int64[Tensor, " n"], length: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        if length < 1 or batch_size < 1:
            raise ValueError(f"length and batch_size must be at least 1, got {length} and {batch_size}")
        if len(ids) < (length + 1 if shuffle else 2):
            raise ValueError(
                f"the text has {len(ids)} tokens, but a window of {length} and its next token need {length + 1}: use a "
                "longer text or a smaller length"
            )
        self.ids, self.length, self.batch_size, self.seed, self.shuffle = ids, length, batch_size, seed, shuffle

    def num_batches(self, epoch: int) -> int:
        """Number of batches in the epoch."""
        return -(-self._windows(epoch)[1] // self.batch_size)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that index."""
        offset, windows = self._windows(epoch)
        order = epoch_order(windows, self.seed, epoch, shuffle=self.shuffle)
        starts = offset + batch_indices(order, self.batch_size, index) * self.length
        places = starts[:, None] + torch.arange(self.length)
        last = len(self.ids) - 1
        return {
            "tokens": self.ids[places.clamp(max=last)],
            "targets": self.ids[(places + 1).clamp(max=last)],
            "loss_mask": places < last,
        }

    def _windows(self, epoch: int) -> tuple[int, int]:
        """Where the first window begins, and the number of windows."""
        predictions = len(self.ids) - 1
        if not self.shuffle:
            return 0, -(-predictions // self.length)
        offsets = min(self.length, predictions - self.length + 1)
        offset = int(torch.randint(0, offsets, (), generator=generator_for(self.seed, OFFSET_STREAM, epoch)))
        return offset, (predictions - offset) // self.length
