"""Running text as language-model windows: each token is predicted from those before it in its window.

Axes: b batch · t tokens.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import Batch, generator_for
from qkv.data.order import batch_rows, epoch_order
from qkv.data.reading import read_text

OFFSET = 4  # the stream of randomness that says where windows begin


def read_texts(paths: str | Path | Sequence[str | Path], validation: float = 0.1) -> tuple[str, str]:
    """The text of some files, for training and for validation: each file's last part, cut at the end of a line.

    A folder stands for the .txt files in it.
    """
    if not 0 < validation < 1:
        raise ValueError(f"the part kept for validation is a share between 0 and 1; got {validation}")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [file for path in given for file in (sorted(Path(path).glob("*.txt")) if Path(path).is_dir() else [path])]
    if not files:
        raise ValueError(f"there is no text file in {', '.join(map(str, given)) or 'an empty list'}")
    cut = [_tail_cut(read_text(file), validation) for file in files]
    return "\n".join(head for head, _ in cut), "\n".join(tail for _, tail in cut)


def _tail_cut(text: str, share: float) -> tuple[str, str]:
    place = min(max(int(len(text) * (1 - share)), 1), len(text) - 1)
    line = text.find("\n", place, min(place + 1000, len(text) - 1))  # at the end of a line, if one is near
    place = line + 1 if line >= 0 else place
    return text[:place], text[place:]


class TextWindows:
    """`tokens`, `targets` (b, t): a window of running text and the same one further; `scored` is True where text is.

    Shuffled, as for training, every epoch cuts the text anew from a random first place, so that no token always
    stands at the same place of a window; the few tokens before it and after the last whole window wait for another
    epoch. In order, as for validation, every token but the first is scored exactly once.
    """

    def __init__(
        self, ids: Int64[Tensor, " n"], length: int, rows: int, *, seed: int = 0, shuffled: bool = True
    ) -> None:
        if length < 1 or rows < 1:
            raise ValueError(f"windows have a length and a number of rows, 1 or more; got {length} and {rows}")
        if len(ids) < (length + 1 if shuffled else 2):
            raise ValueError(
                f"this text has {len(ids)} tokens; windows of {length} and their next token need {length + 1}: take a "
                "longer text or a smaller length"
            )
        self.ids, self.length, self.rows, self.seed, self.shuffled = ids, length, rows, seed, shuffled

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        return -(-self._windows(epoch)[1] // self.rows)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        first, windows = self._windows(epoch)
        order = epoch_order(windows, self.seed, epoch, shuffled=self.shuffled)
        starts = first + batch_rows(order, self.rows, index) * self.length
        places = starts[:, None] + torch.arange(self.length)
        scored = places + 1 < len(self.ids)
        last = len(self.ids) - 1
        return {
            "tokens": self.ids[places.clamp(max=last)],
            "targets": self.ids[(places + 1).clamp(max=last)],
            "scored": scored,
        }

    def _windows(self, epoch: int) -> tuple[int, int]:
        """Where the first window begins, and how many there are."""
        steps = len(self.ids) - 1  # predictions that the text offers
        if not self.shuffled:
            return 0, -(-steps // self.length)
        spare = min(self.length, steps - self.length + 1)
        first = int(torch.randint(0, spare, (), generator=generator_for(self.seed, OFFSET, epoch)))
        return first, (steps - first) // self.length
