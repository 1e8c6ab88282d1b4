"""Writing on: a language model's own words, one token at a time.

Axes: b batch · t tokens · c model width.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from qkv.nn.context import checked_present
from qkv.nn.sampling import sample


class LanguageModel(nn.Module):
    """A model that predicts the next token of a text: it has hidden states, a head that reads them, perhaps a cache."""

    head: nn.Module

    def hidden_states(
        self, tokens: Tensor, token_mask: Tensor | None = None, cache: Any = None
    ) -> Float[Tensor, "b t c"]:
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache for this model, to be handed to calls that continue one another; None if it has none."""
        return None

    def decoder(self, cache: Any, room: int) -> Callable[[Tensor], Tensor] | None:
        """A faster way to read `room` more tokens (b,), one a call, after those in the cache; None if there is none."""
        return None

    @property
    def limit(self) -> int | None:
        """The longest sequence that the model knows positions for; None if there is no such limit."""
        return None

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "b t"],
        max_new_tokens: int,
        *,
        token_mask: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        stop: int | None = None,
        cached: bool = True,
        generator: Generator | None = None,
    ) -> Int[Tensor, "b n"]:
        """The tokens, followed by `count` more that the model draws from its own predictions.

        present: which of the given tokens exist; shorter texts are padded on the left.
        temperature: 0 takes the likeliest token each time; higher is bolder. top_k, top_p and min_p cut the tail.
        stop: a token that ends a text; after it the row is filled with it, and when all rows have ended so does this.
        cached: False computes every step from scratch, with the same result.
        """
        if max_new_tokens < 0:
            raise ValueError(f"count is a number of tokens, 0 or more; got {max_new_tokens}")
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"generation continues (batch, tokens) with at least one token; got {tuple(tokens.shape)}")
        token_mask = checked_present(token_mask, tokens)
        if token_mask is not None and not bool(token_mask[:, -1].all()):
            raise ValueError("generation continues the last token, so it must be present: pad on the left")
        longest = tokens.shape[1] if token_mask is None else int(token_mask.sum(-1).max())
        if self.limit is not None and max_new_tokens and longest + max_new_tokens - 1 > self.limit:
            raise ValueError(
                f"this model knows {self.limit} positions; {longest} tokens and {max_new_tokens} more are too many: at most "
                f"{max(self.limit - longest + 1, 0)} can be added"
            )
        was_training = self.training
        self.eval()
        try:
            return self._write_on(
                tokens, max_new_tokens, token_mask, stop, cached, temperature, top_k, top_p, min_p, generator
            )
        finally:
            self.train(was_training)

    def _write_on(
        self,
        tokens: Tensor,
        count: int,
        token_mask: Tensor | None,
        stop: int | None,
        cached: bool,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        min_p: float | None,
        generator: Generator | None,
    ) -> Tensor:
        cache = self.new_cache() if cached else None
        written, flags, read = tokens, token_mask, tokens
        ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        decoder: Callable[[Tensor], Tensor] | None = None
        for step in range(count):
            if decoder is not None:
                logits = decoder(read[:, 0])
            else:
                logits = self.head(self.hidden_states(written if cache is None else read, flags, cache)[:, -1])
                decoder = None if cache is None or token_mask is not None or step else self.decoder(cache, count - 1)
            new = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, generator=generator)
            if stop is not None:
                new = new.masked_fill(ended, stop)
                ended = ended | (new == stop)
            read = new[:, None]
            written = torch.cat((written, read), dim=1)
            if cache is not None:
                flags = None  # what is new is always present
            elif flags is not None:
                flags = torch.cat((flags, torch.ones_like(read, dtype=torch.bool)), dim=1)
            if bool(ended.all()):
                break
        return written
