"""Beam search: keep the k likeliest beginnings, extend each, keep the k likeliest again.

Axes: b batch · k beams · v vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

Step = Callable[[Tensor, Tensor | None], Tensor]


@dataclass
class Finished:
    """The best k sentences of one row that have ended, with their score for each length."""

    beams: int
    found: list[tuple[float, list[int]]] = field(default_factory=list)

    def add(self, score: float, sentence: list[int]) -> None:
        self.found = sorted([*self.found, (score, sentence)], key=lambda pair: -pair[0])[: self.beams]

    def could_admit(self, score: float) -> bool:
        """Whether a sentence with this score would still enter."""
        return len(self.found) < self.beams or score > self.found[-1][0]


def beam_search(
    step: Step, start: Int[Tensor, " b"], *, beams: int, max_new_tokens: int, stop: int, length_penalty: float = 0.6
) -> list[list[tuple[float, list[int]]]]:
    """For each row of the batch its best sentences with their scores, best first; the stop token is left off.

    step(tokens, parents) gives logits (b·k, v) for the last tokens (b·k,); `parents` says which of the rows of
    the call before each continues, None at first. A sentence of n tokens scores log p / ((5 + n) / 6)^penalty.
    """
    if beams < 1 or max_new_tokens < 1 or length_penalty < 0:
        raise ValueError(
            f"beams and count are at least 1, length_penalty at least 0; got {beams}, {max_new_tokens} and {length_penalty}"
        )
    rows = len(start)
    finished = [Finished(beams) for _ in range(rows)]
    tokens, parents = start.repeat_interleave(beams), None
    sentences = [[[] for _ in range(beams)] for _ in range(rows)]
    totals = torch.full((rows, beams), float("-inf"), device=start.device)
    totals[:, 0] = 0.0  # all beams begin alike: only the first may fork
    for length in range(1, max_new_tokens + 1):
        logits = step(tokens, parents)
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        vocab_size = log_p.shape[-1]
        sums = totals.to(log_p)[..., None] + log_p.view(rows, beams, vocab_size)
        best, index = sums.flatten(1).topk(min(2 * beams, beams * vocab_size), dim=-1)
        kept = [
            _extend(
                finished[row],
                sentences[row],
                best[row],
                index[row],
                vocab_size,
                stop,
                beams,
                length,
                length_penalty,
            )
            for row in range(rows)
        ]
        sentences = [[sentence for _, _, sentence in row] for row in kept]
        totals = torch.tensor([[total for total, _, _ in row] for row in kept], device=start.device, dtype=log_p.dtype)
        parents = torch.tensor([r * beams + parent for r, row in enumerate(kept) for _, parent, _ in row])
        parents = parents.to(start.device)
        tokens = torch.tensor([(s or [stop])[-1] for row in sentences for s in row], device=start.device)
        if not any(
            finished[row].could_admit(float(totals[row].max()) / _penalty(max_new_tokens, length_penalty))
            for row in range(rows)
        ):
            break
    for row in range(rows):  # what has not ended by now stands as it is
        for total, sentence in zip(totals[row].tolist(), sentences[row], strict=True):
            if total > float("-inf") and len(sentence) == max_new_tokens:
                finished[row].add(total / _penalty(max_new_tokens, length_penalty), sentence)
    return [row.found for row in finished]


def _extend(
    finished: Finished,
    sentences: list[list[int]],
    best: Float[Tensor, " n"],
    index: Int[Tensor, " n"],
    vocab_size: int,
    stop: int,
    beams: int,
    length: int,
    length_penalty: float,
) -> list[tuple[float, int, list[int]]]:
    """Sort one row's candidates: those that end are finished, the best others go on as (total, parent, sentence)."""
    going = []
    for total, place in zip(best.tolist(), index.tolist(), strict=True):
        parent, token = divmod(place, vocab_size)
        if total == float("-inf"):
            continue
        if token == stop:
            finished.add(total / _penalty(length, length_penalty), sentences[parent])
        elif len(going) < beams:
            going.append((total, parent, [*sentences[parent], token]))
    while len(going) < beams:  # fewer continuations than beams: the rest is dead
        going.append((float("-inf"), 0, sentences[0]))
    return going


def _penalty(length: int, power: float) -> float:
    return ((5 + length) / 6) ** power
