"""Bugs of positions: rotary positions (RoPE), ALiBi, and the residuals that something adds to the output.

Axes: b batch · h heads · t positions · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import (
    Design,
    Formula,
    Observation,
    Role,
    Rotary,
    alibi_bias,
    alibi_slopes,
    distances,
    frequencies,
    rotate,
    rotate_by,
)
from qkv.check.hypotheses.hypothesis import BLOCKS, Hypothesis

BASES = (100.0, 1000.0, 10_000.0, 100_000.0, 500_000.0, 1e6)
Places = Callable[[Tensor, Role], Tensor]


def position_bugs(design: Design, sizes: Sequence[int] = BLOCKS, *, elsewhere: bool = False) -> Iterator[Hypothesis]:
    """Every known bug of a design's positions; sizes: of tables. elsewhere: the design is right in other calls."""
    if design.rotary != "none":
        yield from _rotary_bugs(design, sizes, elsewhere)
    if design.alibi:
        yield from _alibi_bugs(design, sizes)


def _rotary_bugs(design: Design, sizes: Sequence[int], elsewhere: bool) -> Iterator[Hypothesis]:
    right, pairing, base = design.formula, design.rotary, design.base
    name = "rotary"
    whole = partial(rotate, pairing=pairing, base=base, dims=design.rotary_dim)

    def only(roles: str) -> Formula:
        return right.but(rotate=lambda x, p, role: whole(x, p, "q") if role in roles else x)

    def moved(places: Places) -> Formula:
        return right.but(rotate=lambda x, p, role: whole(x, places(p, role), role))

    def within(change: Callable[[Tensor, Tensor], Tensor]) -> Formula:
        """Queries and keys changed in their rotated dims: all, or the first ones."""

        def rotate_part(x: Tensor, p: Tensor, role: Role) -> Tensor:
            dims = x.shape[-1] if design.rotary_dim is None else design.rotary_dim
            return x if role == "v" else torch.cat((change(x[..., :dims], p), x[..., dims:]), dim=-1)

        return right.but(rotate=rotate_part)

    def turned(angles: Callable[[Tensor, int], Tensor]) -> Formula:
        return within(lambda x, p: rotate_by(x, angles(p, x.shape[-1]), pairing))

    yield Hypothesis(name, "only queries are rotated", only("q"))
    yield Hypothesis(name, "only keys are rotated", only("k"))
    yield Hypothesis(name, "neither queries nor keys are rotated", only(""))
    yield Hypothesis(name, "values are rotated too", only("qkv"))
    if design.rotary_dim is not None:
        words = f"all of the head dim is rotated, not only its first {design.rotary_dim} dims"
        yield Hypothesis(name, words, right.but(rotate=partial(rotate, pairing=pairing, base=base)))
    for other_base in BASES if elsewhere else ():  # alone, another base is a design
        if other_base != base:
            words = f"the base of the frequencies is {other_base:g}, elsewhere {base:g}"
            turn = partial(rotate, pairing=pairing, base=other_base, dims=design.rotary_dim)
            yield Hypothesis(name, words, right.but(rotate=turn))
    yield Hypothesis(name, "queries and keys are rotated twice", moved(lambda p, role: 2 * p))
    for role, what in (("k", "keys"), ("q", "queries")):
        one = partial(_move_one, role=role)
        yield Hypothesis(name, f"{what} are rotated twice", moved(partial(one, move=lambda p: 2 * p)))
        yield Hypothesis(
            name, f"{what} are rotated the other way: the sign of the sine", moved(partial(one, move=lambda p: -p))
        )
        for step, words in ((1, "further"), (-1, "earlier")):
            words = f"{what} are rotated as if they were one position {words}"
            yield Hypothesis(name, words, moved(partial(one, move=lambda p, step=step: p + step)))
        other: Rotary = "interleaved" if pairing == "halves" else "halves"
        pair_other = partial(rotate, pairing=other, base=base, dims=design.rotary_dim)
        formula = right.but(
            rotate=lambda x, p, got, role=role, pair_other=pair_other: (
                pair_other(x, p, got) if got == role else whole(x, p, got)
            )
        )
        yield Hypothesis(name, f"{what} are paired as {other}, the others as {pairing}", formula)
    for dtype in (torch.bfloat16, torch.float16):
        words = str(dtype).removeprefix("torch.")
        low = lambda p, role, dtype=dtype: p.to(dtype).double()  # noqa: E731
        yield Hypothesis(name, f"positions are computed in {words}: large ones are rounded", moved(low))
        angles = lambda p, d, dtype=dtype: (p.double()[:, None] * frequencies(d, base)).to(dtype).double()  # noqa: E731
        yield Hypothesis(name, f"angles are computed in {words}", turned(angles))
        both = lambda p, d, dtype=dtype: (p.to(dtype)[:, None] * frequencies(d, base).to(dtype)).double()  # noqa: E731
        yield Hypothesis(name, f"angles are computed in {words}", turned(both))
        table = within(lambda x, p, dtype=dtype: _rounded_table(x, p, pairing, base, dtype))
        yield Hypothesis(name, f"sine and cosine are rounded to {words}", table)
    for size in (size for size in sizes if size >= 8):
        wrapped = lambda p, role, size=size: p % size  # noqa: E731
        yield Hypothesis(name, f"positions restart after {size} tokens", moved(wrapped))
        stopped = lambda p, role, size=size: p.clamp(max=size - 1)  # noqa: E731
        yield Hypothesis(name, f"positions stop growing after {size} tokens", moved(stopped))
    stretched = lambda p, role: p / max(len(p), 1)  # noqa: E731
    yield Hypothesis(name, "angles depend on the sequence length, not on the position alone", moved(stretched))
    reverse = lambda p, role: p.flip(0)  # noqa: E731
    yield Hypothesis(name, "positions are counted from the end", moved(reverse))
    half = within(lambda x, p: _half_rotated(x, p, pairing, base))
    yield Hypothesis(name, "only half of the head dim is rotated", half)
    wrong = {
        "frequencies are base^(−i/d) instead of base^(−2i/d)": lambda p, d: (
            p.double()[:, None] * base ** (-torch.arange(d // 2, dtype=torch.float64) / d)
        ),
        "frequencies are base^(−4i/d): the index is doubled twice": lambda p, d: (
            p.double()[:, None] * base ** (-2 * torch.arange(0, d, 2, dtype=torch.float64) / d)
        ),
        "frequencies grow with the index: the sign of the exponent": lambda p, d: (
            p.double()[:, None] / frequencies(d, base)
        ),
        "frequencies are in reverse order": lambda p, d: p.double()[:, None] * frequencies(d, base).flip(0),
        "all pairs are rotated with the same frequency": lambda p, d: p.double()[:, None].expand(-1, d // 2),
    }
    for words, angles in wrong.items():
        yield Hypothesis(name, words, turned(angles))
    mixed = within(lambda x, p: _mismatched(x, p, pairing, base))
    words = "angles are laid out in pairs (i, i + 1), but features are rotated in pairs (i, i + d/2)"
    if pairing == "interleaved":
        words = "angles are laid out in pairs (i, i + d/2), but features are rotated in pairs (i, i + 1)"
    yield Hypothesis(name, words, mixed)
    by_head = within(lambda x, p: _by_head(x, pairing, base))
    yield Hypothesis(name, "positions run over the heads, not over the tokens: two axes are swapped", by_head)
    sign = within(lambda x, p: _missing_minus(x, p, pairing, base))
    yield Hypothesis(name, "the minus sign of the rotation is missing", sign)


def _move_one(places: Tensor, got: Role, role: str, move: Callable[[Tensor], Tensor]) -> Tensor:
    return move(places) if got == role else places


def _rounded_table(x: Tensor, places: Tensor, pairing: str, base: float, dtype: torch.dtype) -> Tensor:
    angles = places.double()[:, None] * frequencies(x.shape[-1], base)
    cos, sin = (table.to(dtype).to(x) for table in (angles.cos(), angles.sin()))
    if pairing == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def _mismatched(x: Tensor, places: Tensor, pairing: str, base: float) -> Tensor:
    """Features paired in one way, with angles laid out for the other."""
    angles = (places.double()[:, None] * frequencies(x.shape[-1], base)).to(x)
    if pairing == "halves":
        angles = angles.repeat_interleave(2, -1)
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
    else:
        angles = torch.cat((angles, angles), -1)
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return x * angles.cos() + turned * angles.sin()


def _missing_minus(x: Tensor, places: Tensor, pairing: str, base: float) -> Tensor:
    angles = (places.double()[:, None] * frequencies(x.shape[-1], base)).to(x)
    cos, sin = angles.cos(), angles.sin()
    if pairing == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos + b * sin, b * cos + a * sin), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos + b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def _half_rotated(x: Tensor, places: Tensor, pairing: str, base: float) -> Tensor:
    half = x.shape[-1] // 2
    if half % 2:
        return x
    return torch.cat((rotate(x[..., :half], places, "q", pairing, base), x[..., half:]), dim=-1)  # pyright: ignore


def _by_head(x: Tensor, pairing: str, base: float) -> Tensor:
    places = torch.arange(x.shape[1])
    return rotate(x.transpose(1, 2), places, "q", pairing, base).transpose(1, 2)  # pyright: ignore[reportArgumentType]


def _alibi_bugs(design: Design, sizes: Sequence[int]) -> Iterator[Hypothesis]:
    right, name = design.formula, "alibi"
    slopes = {
        "slopes begin one step too early": lambda h: alibi_slopes(h) * 2.0 ** (8 / h),
        "slopes begin one step too late": lambda h: alibi_slopes(h) * 2.0 ** (-8 / h),
        "the sign of the slopes is flipped: distant keys get more weight": lambda h: -alibi_slopes(h),
        "slopes are in reverse order": lambda h: alibi_slopes(h).flip(0),
        "all heads have the slope of the first": lambda h: alibi_slopes(h)[:1].expand(h),
        "slopes are 2^(−i), whatever the number of heads": lambda h: 2.0 ** -torch.arange(1.0, h + 1).double(),
        "the bias is missing": lambda h: 0 * alibi_slopes(h),
        "slopes are half as large": lambda h: alibi_slopes(h) / 2,
    }
    for words, function in slopes.items():
        yield Hypothesis(name, words, right.but(bias=partial(alibi_bias, slopes=function)))
    for size in sizes:
        if size >= 4:
            for most in (size - 1, size):
                words = f"the bias stops growing: distances are clamped at {most}"
                yield Hypothesis(name, words, right.but(bias=partial(_clamped_bias, most=most)))
            for words, counted in _short_tables(size).items():
                yield Hypothesis(name, words, right.but(bias=partial(_counted_bias, counted=counted)))
    shifted = lambda x: x - alibi_slopes(x.shape[1]).to(x)[:, None, None] * (distances(x) ** 2)  # noqa: E731
    yield Hypothesis(name, "the bias grows with the square of the distance", right.but(bias=shifted))


def _short_tables(size: int) -> dict[str, Callable[[Tensor, Tensor, int], Tensor]]:
    """Biases made for a number of positions: from the places of queries (t, 1) and keys (1, s) to distances."""
    return {
        f"the bias is made for {size} positions: keys that are {size} or more behind a query get no bias": (
            lambda i, j, s: (i - j) * (i - j < size)
        ),
        f"the bias is made for {size} positions: keys before the last {size} of the sequence get no bias": (
            lambda i, j, s: (s - 1 - j) * (s - 1 - j < size)
        ),
        f"the bias is made for {size} positions: keys after the first {size} all get the same bias": (
            lambda i, j, s: -j.clamp(max=size - 1)
        ),
        f"the bias is made for {size} positions: keys after the first {size} get no bias": (
            lambda i, j, s: (size - 1 - j) * (j < size)
        ),
        f"distances wrap: in the bias they start again after {size}": lambda i, j, s: (i - j) % size,
        f"positions wrap: in the bias they start again after {size}": lambda i, j, s: i % size - j % size,
    }


def _counted_bias(scores: Tensor, counted: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    t, s = scores.shape[-2:]
    distance = counted(torch.arange(t)[:, None] + s - t, torch.arange(s)[None], s)
    return scores - alibi_slopes(scores.shape[1]).to(scores)[:, None, None] * distance.to(scores)


def _clamped_bias(scores: Tensor, most: int) -> Tensor:
    return scores - alibi_slopes(scores.shape[1]).to(scores)[:, None, None] * distances(scores).clamp(max=most)


def find_residual(design: Design, seen: Observation) -> tuple[str, str, float] | None:
    """What is added to the right output, if it is a multiple of something known: family, words and the factor."""
    expected = design.formula(seen)
    if expected.shape != seen.out.shape:
        return None
    rest = seen.out - expected
    heads = seen.sizes.heads
    candidates: dict[tuple[str, str], Tensor] = {("softmax replaced", "the output is scaled"): expected}
    if seen.v.shape == seen.out.shape:
        v = seen.v
        candidates |= {
            ("leak", "the mean of the values over the whole sequence is added"): v.mean(1, keepdim=True).expand_as(v),
            ("leak", "the mean of the outputs over the whole sequence is added"): expected.mean(1, keepdim=True)
            .expand_as(v),
            ("leak", "the last token's value is added everywhere"): v[:, -1:].expand_as(v),
            ("leak", "the next token's value is added"): v.roll(-1, 1),
            ("heads mixed", "the mean over the heads is added"): expected.unflatten(-1, (heads, -1))
            .mean(2, keepdim=True).expand(-1, -1, heads, -1).flatten(2),
        }  # fmt: skip
        if len(v) > 1:
            candidates |= {
                ("batch mixed", "the mean of the values over the batch is added"): v.mean(0, keepdim=True).expand_as(v),
                ("batch mixed", "the mean of the outputs over the batch is added"): expected.mean(0, keepdim=True)
                .expand_as(v),
            }  # fmt: skip
    for (family, words), part in candidates.items():
        total = float((part * part).sum())
        if total == 0:
            continue
        factor = float((rest * part).sum()) / total
        if abs(factor) > 1e-6 and seen.fits(expected + factor * part):
            return family, words, factor
    return None
