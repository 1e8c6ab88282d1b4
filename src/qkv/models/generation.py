"""Text generation: greedy, sampling and beam search, with a KV cache, for language models and encoder-decoders.

Axes: b batch · m source tokens · t tokens · c model dim · v vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from qkv.models.beam_search import beam_search
from qkv.nn.prepare_masks import check_token_mask
from qkv.nn.sampling import sample

Sampler = Callable[[Tensor], Tensor]  # logits (b, v) -> tokens (b,)


class LanguageModel(nn.Module):
    """A model that predicts the next token: it has hidden states, a head that reads them, and possibly a cache."""

    head: nn.Module

    def hidden_states(
        self, tokens: Tensor, token_mask: Tensor | None = None, cache: Any = None
    ) -> Float[Tensor, "b t c"]:
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache to pass to successive calls; None if the model has none."""
        return None

    def prompt_decoder(self, tokens: Tensor, max_new_tokens: int) -> Callable[[Tensor], Tensor] | None:
        """A faster way to read the prompt (b, t) and the tokens that follow; None if there is none."""
        return None

    def fast_decoder(self, cache: Any, max_tokens: int) -> Callable[[Tensor], Tensor] | None:
        """A faster step after the cached tokens: one token (b,) per call, at most max_tokens; None if there is none."""
        return None

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None is without limit."""
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
        stop_token: int | None = None,
        use_cache: bool = True,
        generator: Generator | None = None,
    ) -> Int[Tensor, "b n"]:
        """Continue the tokens by up to `max_new_tokens` tokens.

        Args:
            token_mask: (b, t), True for real tokens; pad shorter texts on the left.
            temperature: 0 is greedy; higher is more random. top_k, top_p and min_p remove unlikely tokens.
            stop_token: ends a text; the rest of its row is filled with it. Generation ends when all rows have ended.
            use_cache: False computes every step from scratch, with the same result.
        Returns:
            The given tokens followed by the new ones.
        """
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be 0 or more, got {max_new_tokens}")
        if not isinstance(tokens, Tensor):
            raise ValueError(
                f"tokens must be a tensor (batch, tokens), got a {type(tokens).__name__}; for one text: "
                "torch.tensor([ids])"
            )
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must be (batch, tokens) with at least one token, got {tuple(tokens.shape)}")
        token_mask = check_token_mask(token_mask, tokens)
        if token_mask is not None and not bool(token_mask[:, -1].all()):
            raise ValueError("the last token of each row must be real to be continued: pad on the left")
        longest = tokens.shape[1] if token_mask is None else int(token_mask.sum(-1).max())
        limit = self.max_positions
        if limit is not None and max_new_tokens and longest + max_new_tokens - 1 > limit:
            raise ValueError(
                f"this model has {limit} positions; {longest} tokens and {max_new_tokens} more are too many: at most "
                f"{max(limit - longest + 1, 0)} can be added"
            )
        sampler = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, generator=generator)
        with eval_mode(self):
            return self._generate(tokens, max_new_tokens, token_mask, stop_token, use_cache, sampler)

    def _generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        token_mask: Tensor | None,
        stop_token: int | None,
        use_cache: bool,
        sampler: Sampler,
    ) -> Tensor:
        cache = self.new_cache() if use_cache else None
        padded = token_mask is not None
        unread = tokens
        ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        fast_decoder: Callable[[Tensor], Tensor] | None = None
        if cache is not None and not padded:
            fast_decoder = self.prompt_decoder(tokens, max_new_tokens)
        for step in range(max_new_tokens):
            if fast_decoder is not None:
                logits = fast_decoder(unread if step == 0 else unread[:, 0])
            else:
                inputs = tokens if cache is None else unread
                logits = self.head(self.hidden_states(inputs, token_mask, cache)[:, -1])
                if step == 0 and cache is not None and not padded:
                    fast_decoder = self.fast_decoder(cache, max_new_tokens - 1)
            new = sampler(logits)
            if stop_token is not None:
                new = new.masked_fill(ended, stop_token)
                ended = ended | (new == stop_token)
            unread = new[:, None]
            tokens = torch.cat((tokens, unread), dim=1)
            if cache is not None:
                token_mask = None  # new tokens are all real
            elif token_mask is not None:
                token_mask = torch.cat((token_mask, torch.ones_like(unread, dtype=torch.bool)), dim=1)
            if bool(ended.all()):
                break
        return tokens


class Translator(nn.Module):
    """An encoder-decoder: it encodes a source, decodes a target, and has a cache."""

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
        """An empty cache to pass to successive calls of `decode`."""
        raise NotImplementedError

    @property
    def max_positions(self) -> int | None:
        """The longest target that the model has positions for; None is without limit."""
        return None

    @torch.no_grad()
    def generate(
        self,
        source: Int[Tensor, "b m"],
        max_new_tokens: int,
        *,
        start_token: int,
        stop_token: int,
        token_mask: Tensor | None = None,
        num_beams: int = 1,
        length_penalty: float = 0.6,
        temperature: float = 0.0,
        use_cache: bool = True,
        generator: Generator | None = None,
    ) -> Int[Tensor, "b t"]:
        """Generate up to `max_new_tokens` target tokens for each source, after the start token.

        Args:
            token_mask: (b, m), True for real source tokens.
            num_beams: 1 is greedy (or sampling, at a temperature above 0); more is beam search.
            length_penalty: length-penalty exponent of the beam search.
            use_cache: False computes every step from scratch, with the same result.
        Returns:
            The target tokens without the start token; rows that have ended are filled with `stop_token`.
        """
        if max_new_tokens < 1 or num_beams < 1:
            raise ValueError(f"max_new_tokens and num_beams must be at least 1, got {max_new_tokens} and {num_beams}")
        if self.max_positions is not None and max_new_tokens > self.max_positions:
            raise ValueError(
                f"this model has {self.max_positions} positions; {max_new_tokens} target tokens are too many"
            )
        with eval_mode(self):
            memory = self.encode(source, token_mask)
            start = torch.full((len(source),), start_token, device=source.device)
            if num_beams == 1:
                sampler = partial(sample, temperature=temperature, generator=generator)
                return self._generate(memory, token_mask, start, max_new_tokens, stop_token, use_cache, sampler)
            found = beam_search(
                self._make_beam_step(memory, token_mask, num_beams, use_cache),
                start,
                num_beams=num_beams,
                max_new_tokens=max_new_tokens,
                stop_token=stop_token,
                length_penalty=length_penalty,
            )
            return _pad_sentences([row[0][1] for row in found], max_new_tokens, stop_token, source.device)

    def _generate(
        self,
        memory: Tensor,
        token_mask: Tensor | None,
        start: Tensor,
        max_new_tokens: int,
        stop_token: int,
        use_cache: bool,
        sampler: Sampler,
    ) -> Tensor:
        cache = self.new_cache() if use_cache else None
        target = start[:, None]
        ended = torch.zeros_like(start, dtype=torch.bool)
        for _ in range(max_new_tokens):
            unread = target if cache is None else target[:, -1:]
            logits = self.decode(unread, memory, token_mask, cache=cache)[:, -1]
            new = sampler(logits).masked_fill(ended, stop_token)
            ended = ended | (new == stop_token)
            target = torch.cat((target, new[:, None]), dim=1)
            if bool(ended.all()):
                break
        return target[:, 1:]

    def _make_beam_step(
        self, memory: Tensor, token_mask: Tensor | None, num_beams: int, use_cache: bool
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        """The step function of the beam search; each source's memory is repeated for each beam."""
        memory = memory.repeat_interleave(num_beams, dim=0)
        token_mask = None if token_mask is None else token_mask.repeat_interleave(num_beams, dim=0)
        cache = self.new_cache() if use_cache else None
        history: list[Tensor] = []

        def step(tokens: Tensor, parents: Tensor | None) -> Tensor:
            if parents is not None:
                history[:] = [earlier.index_select(0, parents) for earlier in history]
                if cache is not None:
                    cache.reorder(parents)
            history.append(tokens)
            unread = tokens[:, None] if cache is not None else torch.stack(history, dim=1)
            return self.decode(unread, memory, token_mask, cache=cache)[:, -1]

        return step


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and back into its mode at the end."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _pad_sentences(sentences: list[list[int]], max_new_tokens: int, stop_token: int, device: torch.device) -> Tensor:
    """One row per sentence, ended by `stop_token` where it is shorter than `max_new_tokens`."""
    longest = min(max(len(sentence) for sentence in sentences) + 1, max_new_tokens)
    rows = [sentence + [stop_token] * (longest - len(sentence)) for sentence in sentences]
    return torch.tensor(rows, device=device)
