"""Beam search: keep the k most likely beginnings, extend each, keep the k most likely again.

Axes: b batch · k beams · v vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

Step = Callable[[Tensor, Tensor | None], Tensor]
DEAD = float("-inf")  # total log-probability of a beam that has no continuation


@dataclass
class BeamRow:
    """The search of one row of the batch.

    Args:
        sentences, totals: the live beams and their log-probabilities.
        parents: the beam of the step before that each live beam extends.
        finished: the best k sentences that have ended, with their scores, best first.
    """

    num_beams: int
    stop_token: int
    length_penalty: float
    sentences: list[list[int]]
    totals: list[float]
    parents: list[int]
    finished: list[tuple[float, list[int]]] = field(default_factory=list)

    def score(self, total: float, length: int) -> float:
        return total / ((5 + length) / 6) ** self.length_penalty

    def finish(self, score: float, sentence: list[int]) -> None:
        self.finished = sorted([*self.finished, (score, sentence)], key=lambda pair: -pair[0])[: self.num_beams]

    def can_improve(self, max_length: int) -> bool:
        """Whether a live beam could still enter the finished sentences."""
        best = self.score(max(self.totals), max_length)
        return len(self.finished) < self.num_beams or best > self.finished[-1][0]

    def extend(self, candidates: list[tuple[float, int, int]], length: int) -> None:
        """Extend by (total, parent, token), best first: those that stop are finished, the best others stay live."""
        live: list[tuple[float, int, list[int]]] = []
        for total, parent, token in candidates:
            if total == DEAD:
                continue
            if token == self.stop_token:
                self.finish(self.score(total, length), self.sentences[parent])
            elif len(live) < self.num_beams:
                live.append((total, parent, [*self.sentences[parent], token]))
        while len(live) < self.num_beams:  # fewer continuations than beams
            live.append((DEAD, 0, self.sentences[0]))
        self.totals, self.parents, self.sentences = ([*part] for part in zip(*live, strict=True))

    def finish_unended(self, max_length: int) -> None:
        """Finish the live beams that reached the maximum length."""
        for total, sentence in zip(self.totals, self.sentences, strict=True):
            if total > DEAD and len(sentence) == max_length:
                self.finish(self.score(total, max_length), sentence)


def beam_search(
    step: Step,
    start: Int[Tensor, " b"],
    *,
    num_beams: int,
    max_new_tokens: int,
    stop_token: int,
    length_penalty: float = 0.6,
) -> list[list[tuple[float, list[int]]]]:
    """Find the best sentences of each row.

    Args:
        step: step(tokens, parents) gives logits (b·k, v) after the last tokens (b·k,); `parents` are the rows of the
            call before that each row extends, None at first.
        length_penalty: a sentence of n tokens scores log p / ((5 + n) / 6)^length_penalty.
    Returns:
        For each row up to `num_beams` pairs (score, sentence), best first, without the stop token.
    """
    if num_beams < 1 or max_new_tokens < 1 or length_penalty < 0:
        raise ValueError(
            f"num_beams and max_new_tokens must be at least 1, length_penalty at least 0, got {num_beams}, "
            f"{max_new_tokens} and {length_penalty}"
        )
    first = [0.0, *[DEAD] * (num_beams - 1)]  # all beams begin alike: only the first may fork
    rows = [
        BeamRow(num_beams, stop_token, length_penalty, [[] for _ in range(num_beams)], list(first), [0] * num_beams)
        for _ in range(len(start))
    ]
    tokens, parents = start.repeat_interleave(num_beams), None
    for length in range(1, max_new_tokens + 1):
        logits = step(tokens, parents)
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        vocab_size = log_p.shape[-1]
        totals = torch.tensor([row.totals for row in rows], device=log_p.device, dtype=log_p.dtype)
        sums = totals[..., None] + log_p.view(len(rows), num_beams, vocab_size)
        best, index = sums.flatten(1).topk(min(2 * num_beams, num_beams * vocab_size), dim=-1)
        for row, row_totals, row_index in zip(rows, best.tolist(), index.tolist(), strict=True):
            pairs = zip(row_totals, row_index, strict=True)
            row.extend([(total, place // vocab_size, place % vocab_size) for total, place in pairs], length)
        if not any(row.can_improve(max_new_tokens) for row in rows):
            break
        parents = [number * num_beams + parent for number, row in enumerate(rows) for parent in row.parents]
        parents = torch.tensor(parents, device=start.device)
        last = [(sentence or [stop_token])[-1] for row in rows for sentence in row.sentences]
        tokens = torch.tensor(last, device=start.device)
    for row in rows:
        row.finish_unended(max_new_tokens)
    return [row.finished for row in rows]
