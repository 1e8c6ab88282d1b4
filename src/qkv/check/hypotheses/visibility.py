"""Solve for what each query sees: the additive mask or bias under which attention gives the observed output.

Softmax attention with a bias B gives out_i = Σ_j m_ij e_ij v_j / Σ_j m_ij e_ij with e = exp(score) and m = exp(B). So
Σ_j m_ij e_ij (v_j − out_i) = 0 for every row of the batch, head and feature: m_i is the null vector of a matrix. No
list of known masks is needed, and a null vector that exists is no coincidence: there are more equations than keys.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.check.hypotheses.formula import Formula, Observation, average, full_mask

SMALL = 1e-6  # the factor of a key that is not seen
MEASURED = 1e-10  # factors above it are no rounding errors: a large bias, if no smaller one is among them
GAP = 30.0  # by how much the factors of hidden keys jump below those of visible ones; a bias falls without a jump
FILL_SEEN = (
    "tokens that are added to fill the length are not masked: their keys take part in the softmax, beside the real ones"
)
MEAN = 1e-9  # the factors of a query that sees nothing and gives the mean of all values


def solve_visibility(seen: Observation, formula: Formula, *, head: int | None = None) -> Tensor | None:
    """The factors m (t, s) with a largest one of 1 in each row; None if none give the output.

    Args:
        formula: how scores are made; its mask is not used.
        head: solve for one head alone; by default one mask serves all heads.

    Tokens that fill a length have columns after those of the keys, if any of them is seen.
    """
    kept: dict[str, Tensor] = {}

    def remember(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        kept.update(scores=scores, v=v)
        return average(scores, mask, v)

    if seen.given is not None:
        return None
    formula.but(core=remember, mask=full_mask, fills=True)(seen)
    scores, v = kept["scores"], kept["v"]
    out = seen.out.unflatten(-1, (scores.shape[1], -1)).transpose(1, 2)
    if head is not None:
        scores, v, out = (x[:, head : head + 1] for x in (scores, v, out))
    own = seen.sizes.keys
    if scores.shape[-1] > own + 1 and _same_fill(scores[..., own:].mT, v[:, :, own:]):
        scores, v = scores[..., : own + 1], v[:, :, : own + 1]  # one stands for all: they cannot be told apart
    factors = solve_factors(scores, v, out)
    return factors if factors is None or bool((factors[:, own:] > SMALL).any()) else factors[:, :own]


def _same_fill(*parts: Tensor) -> bool:
    return all(float((x - x[:, :, :1]).abs().max()) <= 1e-12 * float(x.abs().max()) for x in parts)


def solve_factors(scores: Tensor, v: Tensor, out: Tensor) -> Tensor | None:
    """The factors (t, s) of the exponentials of scores (b, h, t, s) under which values (b, h, s, d) give the output.

    A query that sees nothing has factors of 0 if its output is 0, and of MEAN if that is the mean of all values.
    """
    if out.shape[:2] != v.shape[:2] or out.shape[0] * out.shape[1] * out.shape[3] < 1.3 * scores.shape[-1] + 4:
        return None
    size = float(out.abs().max())
    nothing = [(out - none).abs().amax((0, 1, 3)) <= 1e-9 * size for none in (0.0, v.mean(2, keepdim=True))]
    if v.shape[2] > 1 and bool((blind := nothing[0] | nothing[1]).any()) and not bool(blind.all()):
        factors = torch.where(nothing[0], 0.0, MEAN)[:, None].expand(scores.shape[-2:]).to(scores.dtype).clone()
        others = solve_factors(scores[:, :, ~blind], v, out[:, :, ~blind])
        if others is None:
            return None
        factors[~blind] = others
        return factors
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    gaps = v[:, :, None] - out[:, :, :, None]  # (b, h, t, s, d)
    system = (powers[..., None] * gaps).permute(2, 0, 1, 4, 3).flatten(1, 3)  # (t, b·h·d, s)
    sizes = system.norm(dim=1, keepdim=True)
    largest = sizes.amax(-1, keepdim=True).clamp(min=1e-300)
    sizes = torch.where(sizes > 1e-12 * largest, sizes, largest)  # a query that sees one key: its gap is zero
    _, values, vectors = torch.linalg.svd(system / sizes, full_matrices=False)
    if float(values[:, -1].max()) > 1e-6 or (values.shape[1] > 1 and float(values[:, -2].min()) < 1e-4):
        return None
    factors = vectors[:, -1] / sizes[:, 0]
    factors = factors / factors.gather(1, factors.abs().argmax(1, keepdim=True))
    return None if float(factors.min()) < -1e-4 else factors.clamp(min=0)


def describe_visibility(solved: Sequence[tuple[Tensor, Tensor]], window: int | None = None) -> tuple[str, str] | None:
    """The bug family and the words for what queries see, at several lengths.

    Args:
        solved: for each length the factors (t, s) and what each query may see (t, s); columns of factors after the s
            keys are tokens that fill a length.
        window: how many keys a query may see at most.

    >>> causal = torch.ones(6, 6).tril()
    >>> ahead = torch.ones(6, 6).tril(1)
    >>> describe_visibility([(ahead, causal.bool())])
    ('mask off by one', 'all queries see one key ahead')
    >>> describe_visibility([(torch.ones(6, 6).tril(3), causal.bool())])
    ('leak', 'all queries see 3 keys ahead: the diagonal of the mask is shifted by 3')
    """
    filled = [factors[:, allowed.shape[1] :] for factors, allowed in solved]
    solved = [(_largest_one(factors[:, : allowed.shape[1]]), allowed) for factors, allowed in solved]
    seen = [(_sees(factors, allowed), allowed) for factors, allowed in solved]
    if window is not None and (wider := _other_window(seen)) is not None:
        return "window", f"queries see a window of {wider}, required: {window}"
    extra = [found & ~allowed for found, allowed in seen]
    missing = [allowed & ~found for found, allowed in seen]
    if any(bool(part.any()) for part in extra):
        soft = [factors[part] for (factors, _), part in zip(solved, extra, strict=True) if bool(part.any())]
        if not _biased(solved) and float(torch.cat(soft).max()) < 0.9:
            return "mask not −∞", f"{_common(extra, _queries)} see later keys with scores {_lowered(soft)}, not −∞"
        family, words = _describe_extra(extra, [allowed for _, allowed in seen])
        words = f"{words}{_only_short(extra)}"
        if any(bool(part.any()) for part in missing):
            words = f"{words}, and {_describe_missing(missing, [allowed for _, allowed in seen])[1]}"
        return family, words
    if any(bool((part > SMALL).any()) for part in filled):
        return "block", FILL_SEEN
    if any(bool(part.any()) for part in missing):
        blind = [~found.any(1) & allowed.any(1) for found, allowed in seen]
        if all(not bool(part[~rows].any()) for part, rows in zip(missing, blind, strict=True)):
            zero = all(
                float(factors[rows].max()) == 0 for (factors, _), rows in zip(solved, blind, strict=True) if rows.any()
            )
            who = _common([rows[:, None] for rows in blind], _queries)
            one = all(int(rows.sum()) <= 1 for rows in blind)
            if zero:
                return "truncated", f"the output of {who} is 0: {'it is' if one else 'they are'} not computed"
            return "truncated", f"{who} see{'s' if one else ''} nothing: the output is the mean of all values"
        return _describe_missing(missing, [allowed for _, allowed in seen])
    return _describe_bias(solved) if _biased(solved) else None


def _largest_one(factors: Tensor) -> Tensor:
    largest = factors.amax(1, keepdim=True)
    return torch.where(largest > SMALL, factors / largest.clamp(min=1e-300), factors)


def _biased(solved: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether keys that a query may see have different factors."""
    return any(bool((allowed & _sees(factors, allowed) & (factors < 0.999)).any()) for factors, allowed in solved)


def _sees(factors: Tensor, allowed: Tensor) -> Tensor:
    """Which keys each query sees. Factors of hidden keys are 0 but for rounding; a large bias leaves clear ones.

    A bias that falls with the distance gets as small as rounding, but it comes down without a jump.

    >>> _sees(torch.tensor([[1.0, 1e-7]]), torch.ones(1, 2).bool())
    tensor([[True, True]])
    """
    found = factors > SMALL
    faint = allowed & ~found & found.any(1, keepdim=True)
    if bool(faint.any()) and (float(factors[faint].min()) > MEASURED or not _jumps(factors, found & allowed, faint)):
        return found | faint
    return found


def _jumps(factors: Tensor, found: Tensor, faint: Tensor) -> bool:
    """Whether faint factors are clearly below all those that are found in the same query, in each that has both."""
    rows = faint.any(1) & found.any(1)
    least = factors.masked_fill(~found, torch.inf).amin(1)[rows]
    most = factors.masked_fill(~faint, 0.0).amax(1)[rows]
    return bool((least > GAP * most).all())


def _lowered(soft: Sequence[Tensor]) -> str:
    """By how much scores are lower, if all are lower by the same number."""
    gaps = -torch.cat(list(soft)).log()
    middle = float(gaps.median())
    same = float((gaps - middle).abs().max()) < 1e-3 * max(middle, 1.0)
    return f"lower by {middle:.4g}" if same else f"lower by {float(gaps.min()):.2g} to {float(gaps.max()):.2g}"


def _describe_extra(extra: Sequence[Tensor], allowed: Sequence[Tensor]) -> tuple[str, str]:
    who = _common([_with_free_queries(part, may) for part, may in zip(extra, allowed, strict=True)], _queries)
    used = [(part, may) for part, may in zip(extra, allowed, strict=True) if bool(part.any())]
    if all(torch.equal(part, part & ~may & _next_key(may)) for part, may in used):
        return "mask off by one", f"{who} see one key ahead"
    ahead = max(int(part.sum(1).max()) for part, _ in used)
    longest = max(part.shape[1] for part, _ in used)
    if ahead < longest - 2 and all(torch.equal(part, _keys_ahead(part, ahead) & ~may) for part, may in used):
        return "leak", f"all queries see {ahead} keys ahead: the diagonal of the mask is shifted by {ahead}"
    if all(torch.equal(part[part.any(1)], ~may[part.any(1)]) for part, may in used):
        whole = all(bool((part | may).all()) for part, may in used)
        words = "there is no causal mask on this path" if whole else f"{who} see every key: they are not masked"
        return ("no mask" if whole else "leak"), words
    rows = {int(part.any(1).sum()) for part, _ in used}
    if len(rows) == 1 and all(_at_end(part) for part, _ in used):
        count = rows.pop()
        first = "the first query sees" if count == 1 else f"the first {count} queries see"
        return "leak", f"{first} later keys, at the end of the sequence: a roll, or a negative index, wraps around"
    for size in range(2, 129):
        if all(torch.equal(part[part.any(1)], (~may & _same_block(may, size))[part.any(1)]) for part, may in used):
            return "leak", f"{_starts(used)} see the later keys of their own block of {size}"
    if all(bool((rows := part[part.any(1)]).eq(rows[:1]).all()) for part, _ in used):
        return "leak", f"{who} see {_common(extra, _keys)}, which they may not see"
    return "leak", f"{who} see some keys that they may not see"


def _only_short(extra: Sequence[Tensor]) -> str:
    """The longest sequence in which queries see too much, if they do so in the shorter ones only."""
    wrong = [part.shape[0] for part in extra if bool(part.any())]
    right = [part.shape[0] for part in extra if not bool(part.any()) and part.shape[0] > 1]
    if not right or max(wrong) >= min(right):
        return ""
    return f" (up to {max(wrong)} tokens at least, not at {min(right)})"


def _keys_ahead(part: Tensor, count: int) -> Tensor:
    """The next keys after the own key of each query."""
    t, s = part.shape
    distance = torch.arange(s) - (torch.arange(t) + s - t)[:, None]
    return (distance > 0) & (distance <= count)


def _at_end(part: Tensor) -> bool:
    """Whether the first queries, and only they, see too much: all keys after some one, which is behind them."""
    rows, keys = part.any(1).nonzero()[:, 0].tolist(), part.any(0).nonzero()[:, 0].tolist()
    apart = rows == list(range(len(rows))) and keys == list(range(keys[0], part.shape[1])) and keys[0] >= len(rows)
    return apart and len(rows) < part.shape[0] and bool(part[: len(rows), keys[0] :].all())


def _other_window(seen: Sequence[tuple[Tensor, Tensor]]) -> int | None:
    """The width of the window that queries see at all lengths, if it is not the one that they may see."""
    longest = max((own for own, _ in seen), key=lambda own: own.shape[1])
    width = int(longest[-1].sum())
    for own, _ in seen:
        t, s = own.shape
        distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
        if not torch.equal(own, (distance >= 0) & (distance < width)):
            return None
    return width if width < longest.shape[1] and any(not torch.equal(*pair) for pair in seen) else None


def _same_block(allowed: Tensor, size: int) -> Tensor:
    t, s = allowed.shape
    return torch.arange(s) // size == ((torch.arange(t) + s - t) // size)[:, None]


def _starts(used: Sequence[tuple[Tensor, Tensor]]) -> str:
    first = {int(part.any(1).nonzero()[0]) for part, _ in used}
    return f"queries from {first.pop()} on" if len(first) == 1 and first != {0} else "queries"


def _with_free_queries(extra: Tensor, allowed: Tensor) -> Tensor:
    """A last query that may see everything says nothing: it goes with the one before it."""
    if len(extra) > 1 and bool(allowed[-1].all()) and bool(extra[-2].any()):
        extra = extra.clone()
        extra[-1] = extra[-2]
    return extra


def _next_key(allowed: Tensor) -> Tensor:
    """The first key after those that a query may see."""
    after = torch.zeros_like(allowed)
    after[:, 1:] = allowed[:, :-1] & ~allowed[:, 1:]
    return after


def _describe_missing(missing: Sequence[Tensor], allowed: Sequence[Tensor]) -> tuple[str, str]:
    who = _common(missing, _queries)
    used = [(part, may) for part, may in zip(missing, allowed, strict=True) if bool(part.any())]
    if all(_only_own(part) for part, _ in used):
        return "mask off by one", f"{who} {'does not see its' if who.endswith('query') else 'do not see their'} own key"
    widths = {width for part, may in used for width in _window(may & ~part, part)}
    if len(widths) == 1:
        width = widths.pop()
        return "window", f"{who} see{'s' if who.endswith('query') else ''} a window of {width} keys only"
    do = "does" if who.endswith("query") else "do"
    return "truncated", f"{who} {do} not see {_common(missing, _keys)}"


def _only_own(part: Tensor) -> bool:
    t, s = part.shape
    own = torch.arange(s) == torch.arange(t)[:, None] + s - t
    return torch.equal(part, part & own)


def _window(seen: Tensor, hidden: Tensor) -> set[int]:
    """The widths of the windows of queries that do not see everything; a width of −1 if one is no window."""
    t, s = seen.shape
    found = set()
    for i in hidden.any(1).nonzero()[:, 0].tolist():
        keys = seen[i].nonzero()[:, 0].tolist()
        run = bool(keys) and keys == list(range(keys[0], keys[-1] + 1)) and keys[-1] == i + s - t
        found.add(len(keys) if run else -1)
    return found if -1 not in found else {-1, -2}


def _describe_bias(solved: Sequence[tuple[Tensor, Tensor]]) -> tuple[str, str]:
    """A bias within what queries may see; a whole number means that a key counts several times."""
    counts = [factors / factors.masked_fill(~allowed, 1.0).amin(1, keepdim=True) for factors, allowed in solved]
    whole = all(
        float((count - count.round()).masked_fill(~allowed, 0.0).abs().max()) < 1e-4 and float(count[allowed].max()) < 9
        for count, (_, allowed) in zip(counts, solved, strict=True)
    )
    if whole:
        more = [(count > 1.5) & allowed for count, (_, allowed) in zip(counts, solved, strict=True)]
        times = int(max(float(count[part].max()) for count, part in zip(counts, more, strict=True) if part.any()))
        return "block", f"{_common(more, _keys)} count{'s' if times else ''} {times} times in the softmax"
    steps = []
    for factors, allowed in solved:
        _t, _s = factors.shape
        bias = factors.clamp(min=1e-300).log()
        both = allowed[:, 1:] & allowed[:, :-1]
        steps.append((bias[:, 1:] - bias[:, :-1])[both])
    step = torch.cat(steps)
    if float((step - step.median()).abs().max()) < 1e-4:
        words = f"a bias of {float(step.median()):.4g} for each position is added to the scores"
        return "scores changed", words
    shifts = [_shifts(factors, allowed) for factors, allowed in solved]  # only differences within a row can be known
    odd = [shift.abs() > 1e-3 for shift in shifts]
    rows = max(int(part.any(1).sum()) for part in odd)
    largest = max((float(shift.flatten()[shift.abs().argmax()]) for shift in shifts), key=abs)
    where = _distance(odd) or _common(odd, _keys)
    words = f"a bias is added to the scores of {rows} queries (up to {largest:.3g}, at {where})"
    return "scores changed", words


def _distance(parts: Sequence[Tensor]) -> str:
    """The distance of keys from their queries in words, if it is the same for all; else ""."""
    found = {int(i) + part.shape[1] - part.shape[0] - int(j) for part in parts for i, j in part.nonzero()}
    if len(found) != 1:
        return ""
    distance = found.pop()
    return "their own keys" if distance == 0 else f"the keys {distance} before them"


def _shifts(factors: Tensor, allowed: Tensor) -> Tensor:
    """The bias of each key that a query sees, relative to most keys or to the last; 0 for keys not seen."""
    seen = _sees(factors, allowed) & allowed
    bias = factors.clamp(min=1e-300).log()
    middle = bias.masked_fill(~seen, torch.nan).nanmedian(1, keepdim=True).values
    last = (seen * torch.arange(1, seen.shape[1] + 1)).argmax(1, keepdim=True)
    found = [(bias - usual).masked_fill(~seen, 0.0) for usual in (middle, bias.gather(1, last))]
    return min(found, key=lambda shift: int((shift.abs() > 1e-3).sum()))


# -- sets of queries and keys in words -----------------------------------------------------------------------------


def _common(parts: Sequence[Tensor], phrases) -> str:
    """The first phrase that is right at all lengths, or else one for each of two lengths."""
    lists = [(part.shape[0], phrases(part)) for part in parts if bool(part.any())]
    for phrase in lists[0][1]:
        if all(phrase in others for _, others in lists):
            return phrase
    shown = {length: found[-1] for length, found in lists}
    return " and ".join(f"{words} (of {length} tokens)" for length, words in list(shown.items())[:2])


def _queries(part: Tensor) -> list[str]:
    return _intervals(part.any(1), "quer", ("y", "ies"))


def _keys(part: Tensor) -> list[str]:
    same = part[part.any(1)]
    if not bool((same == same[0]).all()):
        return ["some keys", *(_intervals(part.any(0), "key", ("", "s")))][-1:]
    return _intervals(part.any(0), "key", ("", "s"))


def _intervals(chosen: Tensor, stem: str, ends: tuple[str, str]) -> list[str]:
    """Phrases for a set of places, the general ones first, the numbers last."""
    places, size = chosen.nonzero()[:, 0].tolist(), len(chosen)
    one, many = (f"{stem}{end}" for end in ends)
    found = []
    if len(places) >= size - 1 and places[-1] - places[0] == len(places) - 1 and size > 2:
        found.append(f"all {many}")
    if places == [0]:
        found.append(f"the first {one}")
    if places == [size - 1]:
        found.append(f"the last {one}")
    if places == list(range(places[0], size)) and len(places) > 1:
        found += [f"{many} from {places[0]} on", f"the last {len(places)} {many}"]
    if places == list(range(places[-1] + 1)) and len(places) > 1:
        found.append(f"the first {len(places)} {many}")
    if len(places) > 2 and len({b - a for a, b in itertools.pairwise(places)}) == 1:
        step = places[1] - places[0]
        if step > 1:
            found.append(f"every {step}. {one} from {places[0]} on")
    runs = _runs(places)
    shown = ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs[:4]) + (", …" if len(runs) > 4 else "")
    found.append(f"{one if len(places) == 1 else many} {shown}")
    return found


def _runs(places: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs
