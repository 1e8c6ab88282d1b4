"""Shapes: the lengths, batch sizes and dtypes that checks sweep, and a log of the shapes at which each check ran.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import describe_error

# one token, odd and even, one above each power of two, where blocks, pages, tables and fast paths begin, and a
# length at which the last block is nearly full
LENGTHS = (1, 2, 3, 13, 17, 33, 65, 92, 129, 257)
LONG_LENGTHS = (513, 1025, 2049, 4096)  # with thorough
ONE_ROW = 300  # longer sequences run one at a time
SECONDS_PER_CALL = 0.25  # a length at which one call would take longer is left out
THOROUGH_SECONDS_PER_CALL = 30.0


@dataclass(frozen=True)
class Options:
    """What a check is asked to do beyond the default.

    Args:
        thorough: add lengths up to 4,096, drawn shapes and strides.
        seed: of all inputs; the same seed replays the same shapes and values.
        dtype: the dtype to test in; by default float64 where it runs, and the lower ones beside it.
        device: where to run it.
    """

    thorough: bool = False
    seed: int = 0
    dtype: torch.dtype | None = None
    device: str = "cpu"


def make_options(thorough: bool, seed: int, dtype: torch.dtype | str | None, device: str) -> Options:
    """Options from what a user says; a ValueError names what is wrong."""
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise ValueError(f"dtype must be float32, bfloat16 or float16; got {dtype!r}")
        dtype = found
    try:
        torch.zeros(1, device=device)
    except Exception as error:
        raise ValueError(f"the device {device!r} cannot be used here: {describe_error(error)}") from None
    return Options(thorough, seed, dtype, device)


def on_device(impl: Implementation, device: str) -> Implementation:
    """The same implementation on a device; inputs are moved there, outputs come back."""
    if device == "cpu":
        return impl
    if impl.module is not None:
        impl.module.to(device)
    run, cached, attention = impl.run, impl.run_cached, impl.attention

    def move(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device)

    def run_there(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return run(x.to(device), move(token_mask)).cpu()

    def attend_there(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        assert attention is not None
        return attention(q.to(device), k.to(device), v.to(device), move(mask), causal=causal).cpu()

    return replace(
        impl,
        how=f"{impl.how}, on {device}",
        run=run_there,
        run_cached=None if cached is None else lambda pieces: cached([piece.to(device) for piece in pieces]).cpu(),
        attention=None if attention is None else attend_there,
        source=None if impl.source is None else on_device(impl.source, device),
    )


LARGE_BATCH = 16


def limit_batch(impl: Implementation) -> Implementation:
    """The same implementation; where it takes few rows only (buffers of a fixed size), larger batches run in parts."""
    x = impl.random_input(LARGE_BATCH, impl.length, Generator().manual_seed(57))
    most = LARGE_BATCH
    while most > 1:
        try:
            impl.run(x[:most])
            break
        except Exception:  # too many rows, or something that the checks will report
            most //= 2
    if most in (1, LARGE_BATCH):
        return impl
    run, limit = impl.run, most

    def run_in_parts(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if len(x) <= limit:
            return run(x, token_mask)
        masks = [None] * len(x) if token_mask is None else list(token_mask.split(limit))
        return torch.cat([run(part, mask) for part, mask in zip(x.split(limit), masks, strict=False)])

    return replace(impl, run=run_in_parts)


@dataclass(frozen=True)
class Sweep:
    """One input and the outputs of its beginnings: f(x[:, :t]) for every length t that runs.

    Args:
        x: (2, t, …), as long as the longest.
        outs: from the length to the output.
        refused: lengths at which the call raises, and the error.
        slow: lengths left out because a call takes too long.
    """

    x: Tensor
    outs: dict[int, Tensor]
    refused: dict[int, Exception] = field(default_factory=dict)
    slow: tuple[int, ...] = ()

    @property
    def lengths(self) -> list[int]:
        return list(self.outs)

    def up_to(self, limit: int) -> list[int]:
        """The lengths that run and are at most `limit`."""
        return [length for length in self.outs if length <= limit]

    def longest(self, limit: int = 1 << 30) -> int:
        """The longest length that runs, at most `limit`."""
        return max(self.up_to(limit), default=max(self.outs))

    def only(self, *lengths: int) -> list[int]:
        """Those of the given lengths that run; if none does, the longest."""
        return [length for length in lengths if length in self.outs] or [self.longest()]


def run_lengths(
    impl: Implementation, contract: Contract, options: Options | None = None, longest: int | None = None
) -> Sweep:
    """Run the beginnings of one sequence at every length of the sweep that it takes, up to `longest`."""
    options = options or Options()
    limit = THOROUGH_SECONDS_PER_CALL if options.thorough else SECONDS_PER_CALL
    wanted = {*LENGTHS, impl.length, *(LONG_LENGTHS if options.thorough else ())}
    if contract.window is not None:  # only sequences that are longer than a window show it
        wanted |= {contract.window, contract.window + 1, 2 * contract.window + 1}
    wanted = {length for length in wanted if longest is None or length <= max(longest, impl.length)}
    declared = declared_length(impl)
    if declared is not None:
        wanted = {min(length, declared) for length in wanted}
    lengths = sorted({replace(impl, max_length=None).nearest_length(length) for length in wanted})
    x = impl.random_input(2, max(lengths), Generator().manual_seed(options.seed + 44))
    outs, refused, slow = _try_lengths(impl, x, lengths, limit)
    if not outs:  # not even its own length: whatever raises there is reported by the other checks
        return Sweep(x[:, : impl.length], {impl.length: impl.run(x[:, : impl.length])}, refused)
    outs = dict(sorted(outs.items()))
    return Sweep(x[:, : max(outs)], outs, refused, tuple(slow))


def _try_lengths(
    impl: Implementation, x: Tensor, lengths: Sequence[int], limit: float
) -> tuple[dict[int, Tensor], dict[int, Exception], list[int]]:
    outs: dict[int, Tensor] = {}
    refused: dict[int, Exception] = {}
    slow: list[int] = []
    previous, seconds = 0, 0.0
    for length in lengths:
        if previous >= impl.length and seconds * (length / previous) ** 2 > limit:
            seconds = min(seconds, _timed(impl, x[:, :previous])[1])  # it may have been interrupted
            if seconds * (length / previous) ** 2 > limit:
                slow.append(length)
                continue
        try:
            rows = x if length <= ONE_ROW else x[:1]  # long ones are large
            outs[length], seconds = _timed(impl, rows[:, :length])
            previous = length
        except Exception as error:
            refused[length] = error
    return outs, refused, slow


def _timed(impl: Implementation, x: Tensor) -> tuple[Tensor, float]:
    """The output and the processor time of a call: on a busy machine it is left out no sooner."""
    start = time.process_time()
    return impl.run(x), time.process_time() - start


def declared_length(impl: Implementation) -> int | None:
    """The longest sequence of a model of transformers; beyond it, positions may change by design."""
    config = getattr(impl.module, "config", None)
    if not hasattr(config, "model_type"):
        return None
    holders = [config, getattr(config, "text_config", None), getattr(config, "decoder", None)]
    names = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions", "n_ctx")
    found = [getattr(holder, name, None) for holder in holders for name in names]
    return min((size for size in found if type(size) is int and size >= impl.length), default=None)


def describe_lengths(sweep: Sweep) -> str:
    """Lengths that could not be tested, in words; empty if all could."""
    words = []
    if sweep.refused:
        first = next(iter(sweep.refused))
        lengths = ", ".join(map(str, sweep.refused))
        words.append(f"lengths {lengths} are refused ({describe_error(sweep.refused[first])})")
    if sweep.slow:
        words.append(f"lengths {', '.join(map(str, sweep.slow))} are left out: a call takes too long")
    return "; ".join(words)


PROBES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 257, 300)


def describe_condition(is_right: Callable[[int], bool | None], longest: int = 1 << 30) -> str:
    """For which lengths something is wrong, in words; empty if for all.

    Args:
        is_right: whether it is right at a length; None if it cannot be tried there.

    >>> describe_condition(lambda n: n <= 40), describe_condition(lambda n: n % 2 == 0)
    ('from 41 tokens on', 'for odd lengths')
    """
    judged = {length: right for length in PROBES if length <= longest and (right := is_right(length)) is not None}
    bad, good = ([length for length, right in judged.items() if right is wanted] for wanted in (False, True))
    if not good or not bad:
        return ""
    if bad == [1]:
        return "for a single token"
    first = min(bad)
    below = [length for length in good if length < first]
    if all(length < first for length in good):
        return f"from {_first_wrong(is_right, max(below), first)} tokens on"
    if max(bad) < min(good):
        return f"up to {max(bad)} tokens"
    if max(below, default=0) > 8:
        first = _first_wrong(is_right, max(below), first)
    from_there = f" from {first} tokens on" if max(below, default=0) > 8 else ""
    above = [length for length in good if length > first] if from_there else [n for n in good if n > 1]
    for size in (first - 1, 2, 3, 4, 8, 16, 32, 64, 128):
        if size < 2:
            continue
        if all(n % size for n in bad) and not any(n % size for n in above if n > (first if from_there else size)):
            return ("for odd lengths" if size == 2 else f"for lengths that are not multiples of {size}") + from_there
        if not any(n % size for n in bad) and all(n % size for n in above):
            return ("for even lengths" if size == 2 else f"for lengths that are multiples of {size}") + from_there
    return f"for lengths such as {', '.join(map(str, bad[:4]))}, not for {', '.join(map(str, good[-3:]))}"


def _first_wrong(is_right: Callable[[int], bool | None], right: int, wrong: int) -> int:
    """The first wrong length between one that is right and one that is wrong, by bisection."""
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (middle, wrong) if is_right(middle) else (right, middle)
    return wrong


# -- the log of shapes -------------------------------------------------------------------------------------------------


class ShapeLog:
    """Keeps the shapes at which an implementation is called, so that a report can state them."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []

    def watch(self, impl: Implementation) -> Implementation:
        """The same implementation; every call is noted."""
        run, cached, attention = impl.run, impl.run_cached, impl.attention

        def watched_run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
            self._note(b=x.shape[0], t=x.shape[1], dtype=_dtype_of(impl, x))
            return run(x, token_mask)

        def watched_cache(pieces: Sequence[Tensor]) -> Tensor:
            assert cached is not None
            length = sum(piece.shape[1] for piece in pieces)
            self._note(b=pieces[0].shape[0], t=length, dtype=_dtype_of(impl, pieces[0]), pieces=len(pieces))
            return cached(pieces)

        watched = replace(impl, run=watched_run, run_cached=None if cached is None else watched_cache)
        if attention is not None:
            watched = replace(watched, attention=self._watch_attention(attention))
        if impl.source is not None:
            watched = replace(watched, source=self.watch(impl.source))
        return watched

    def _watch_attention(self, attention: Callable[..., Tensor]) -> Any:
        def watched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
            self._note(b=q.shape[0], h=q.shape[1], t=q.shape[2], s=k.shape[2], d=q.shape[3], dtype=q.dtype)
            return attention(q, k, v, mask, causal=causal)

        vars(watched)["function"] = getattr(attention, "function", None)  # names and globals are clues
        return watched

    def _note(self, **sizes: Any) -> None:
        self._calls.append(sizes)

    def __len__(self) -> int:
        return len(self._calls)

    def since(self, start: int, shared: int = 0) -> str:
        """The calls from number `start` on, and the first `shared` ones, in words."""
        return describe_shapes([*self._calls[:shared], *self._calls[start:]])


def _dtype_of(impl: Implementation, x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else impl.dtype


def describe_shapes(calls: Iterable[dict[str, Any]]) -> str:
    """Sizes of calls in words, axis by axis.

    >>> describe_shapes([dict(b=2, t=1, dtype=torch.float64), dict(b=2, t=3, dtype=torch.float64)])
    'b 2 · t 1, 3 · float64'
    """
    values: dict[str, set[Any]] = {}
    for call in calls:
        for axis, size in call.items():
            values.setdefault(axis, set()).add(size)
    parts = [f"{axis} {_numbers(values[axis])}" for axis in ("b", "h", "t", "s", "d") if axis in values]
    if values.get("s") == values.get("t") and "s" in values:
        parts = [part for part in parts if not part.startswith("s ")]
    if "pieces" in values:
        parts.append(f"in {_numbers(values['pieces'])} pieces")
    parts += sorted(str(dtype).removeprefix("torch.") for dtype in values.get("dtype", ()))
    return " · ".join(parts)


def _numbers(values: set[int]) -> str:
    """Sorted numbers; a run of four or more is shortened to its ends.

    >>> _numbers({1, 2, 3, 4, 9})
    '1–4, 9'
    """
    if len(values) > 16:
        return f"{min(values)} to {max(values)} ({len(values)} sizes)"
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    short = [[f"{run[0]}–{run[-1]}"] if len(run) > 3 else [str(value) for value in run] for run in runs]
    return ", ".join(word for words in short for word in words)
