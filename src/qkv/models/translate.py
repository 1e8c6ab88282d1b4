"""From a source to the model's own target: greedy, drawn at random, or by beam search.

Axes: b batch · m source tokens · t target tokens · c model width.
"""

from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn

from qkv.models.beam import beam_search
from qkv.nn.sampling import sample


class Translator(nn.Module):
    """A model that reads a source and writes a target: it encodes, decodes, and has a cache."""

    def encode(self, source: Tensor, token_mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_token_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache, to be handed to calls of `decode` that continue one another."""
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """The longest target that the model knows positions for; None if there is no such limit."""
        return None

    @torch.no_grad()
    def generate(
        self,
        source: Int[Tensor, "b m"],
        max_new_tokens: int,
        *,
        start: int,
        stop: int,
        token_mask: Tensor | None = None,
        beams: int = 1,
        length_penalty: float = 0.6,
        temperature: float = 0.0,
        cached: bool = True,
        generator: Generator | None = None,
    ) -> Int[Tensor, "b t"]:
        """Up to `count` target tokens for each source, after the start token; ended rows are filled with `stop`.

        present: which source tokens exist.
        beams: 1 takes the likeliest token each time (or draws one, at a temperature above 0); more search.
        cached: False computes every step from scratch, with the same result.
        """
        if max_new_tokens < 1 or beams < 1:
            raise ValueError(f"count and beams are at least 1; got {max_new_tokens} and {beams}")
        if self.limit is not None and max_new_tokens > self.limit:
            raise ValueError(f"this model knows {self.limit} positions; {max_new_tokens} target tokens are too many")
        was_training = self.training
        self.eval()
        try:
            memory = self.encode(source, token_mask)
            first = torch.full((len(source),), start, device=source.device)
            if beams > 1:
                step = self._beam_step(memory, token_mask, beams, cached)
                found = beam_search(
                    step, first, beams=beams, max_new_tokens=max_new_tokens, stop=stop, length_penalty=length_penalty
                )
                return _padded([row[0][1] for row in found], max_new_tokens, stop, source.device)
            return self._write(memory, token_mask, first, max_new_tokens, stop, temperature, cached, generator)
        finally:
            self.train(was_training)

    def _write(
        self,
        memory: Tensor,
        token_mask: Tensor | None,
        first: Tensor,
        count: int,
        stop: int,
        temperature: float,
        cached: bool,
        generator: Generator | None,
    ) -> Tensor:
        cache = self.new_cache() if cached else None
        written = first[:, None]
        ended = torch.zeros_like(first, dtype=torch.bool)
        for _ in range(count):
            unread = written if cache is None else written[:, -1:]
            logits = self.decode(unread, memory, token_mask, cache=cache)[:, -1]
            new = sample(logits, temperature=temperature, generator=generator).masked_fill(ended, stop)
            ended = ended | (new == stop)
            written = torch.cat((written, new[:, None]), dim=1)
            if bool(ended.all()):
                break
        return written[:, 1:]

    def _beam_step(self, memory: Tensor, token_mask: Tensor | None, beams: int, cached: bool):
        """One step of the beam search: each source's memory stands once for each beam."""
        memory = memory.repeat_interleave(beams, dim=0)
        token_mask = None if token_mask is None else token_mask.repeat_interleave(beams, dim=0)
        cache = self.new_cache() if cached else None
        written: list[Tensor] = []

        def step(tokens: Tensor, parents: Tensor | None) -> Tensor:
            if parents is not None:
                written[:] = [before.index_select(0, parents) for before in written]
                if cache is not None:
                    cache.reorder(parents)
            written.append(tokens)
            unread = tokens[:, None] if cache is not None else torch.stack(written, dim=1)
            return self.decode(unread, memory, token_mask, cache=cache)[:, -1]

        return step


def _padded(sentences: list[list[int]], count: int, stop: int, device: torch.device) -> Tensor:
    """One row for each sentence, ended by `stop` where it ended before `count` tokens."""
    longest = min(max(len(sentence) for sentence in sentences) + 1, count)
    rows = [sentence + [stop] * (longest - len(sentence)) for sentence in sentences]
    return torch.tensor(rows, device=device)
