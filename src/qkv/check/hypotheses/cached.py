"""Identify the bug of a KV cache by simulation: what each piece of a sequence reads of it, and at which positions.

The projections of each piece are recorded. A hypothesis says into which slots of the cache a piece writes its keys and
values, which slots it reads, what its mask hides and by which positions keys and queries are rotated. It must give the
outputs of all pieces: single steps, a prefill and chunks. Where none does, what the pieces see is solved from their
outputs.

Axes: b batch · h heads · t queries of a piece · s slots that it reads · d head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.hypotheses.cache_plans import MORE, CachePlan, Piece, Places, cache_plans, right_places, wrong_places
from qkv.check.hypotheses.cached_paths import Path, describe_pieces, observe_piece, wrong_paths
from qkv.check.hypotheses.formula import Design, Formula, Observation, Sizes, alibi_slopes, average, causal_mask
from qkv.check.hypotheses.identify import find_design
from qkv.check.hypotheses.input_positions import find_place
from qkv.check.hypotheses.observe import TOLERANCES, Layout, observe_module, read_projections, record_pieces
from qkv.check.hypotheses.observed import Identified, Observed
from qkv.check.hypotheses.ring_plans import ring_plans
from qkv.check.hypotheses.search import EXACT, FAINT
from qkv.check.hypotheses.visibility import SMALL, solve_factors
from qkv.check.implementation import Implementation
from qkv.check.tracing.readings import record_run

BATCHES = (8, 4, 2)  # the first that runs: each row gives equations
MOST_PAIRS = 200  # pairs of a key and a value that are solved for at once


@dataclass(frozen=True, eq=False)
class SeenPiece:
    """A piece, the features of all tokens up to its end, and its output (b, h, t, d).

    earlier: keys and values of another sequence that ran through the cache before.
    """

    piece: Piece
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    sizes: Sizes
    tolerance: float
    earlier: tuple[Tensor, Tensor]

    def fits(self, found: Tensor) -> bool:
        size = float(self.out.abs().max()) or 1.0
        return bool(found.isfinite().all()) and float((found - self.out).abs().max()) <= self.tolerance * size


# -- outputs -----------------------------------------------------------------------------------------------------------


def candidates(seen: SeenPiece, design: Design, places: Places) -> tuple[Tensor, Tensor]:
    """The scores (b, h, t, s) and values (b, h, s, d) of what a piece may read.

    First come the tokens of the sequence, then an empty slot, the tokens of the earlier sequence, and the tokens of the
    sequence with keys and values swapped.
    """
    formula, sizes = design.formula, seen.sizes
    q_places, k_places = places(seen.piece)
    q = _queries(formula, seen, q_places)
    k, v = _keys(formula, seen.k, seen.v, sizes, k_places)
    old_k, old_v = _keys(formula, *seen.earlier, sizes, torch.arange(seen.earlier[0].shape[1]))
    k, v = torch.cat((k, 0 * k[:, :, :1], old_k, v), 2), torch.cat((v, 0 * v[:, :, :1], old_v, k), 2)
    k, v = formula.share(k, sizes.heads, "k"), formula.share(v, sizes.heads, "v")
    scores = formula.scores(q, k, formula.scale(sizes))
    if design.alibi:
        distances = torch.zeros(scores.shape[-2:])
        distances[:, : len(k_places)] = q_places[:, None] - k_places
        scores = scores - alibi_slopes(sizes.heads)[:, None, None] * distances
    return scores, v


def _queries(formula: Formula, seen: SeenPiece, at: Tensor) -> Tensor:
    q = formula.split(seen.q, seen.sizes.heads, "q")
    return formula.rotate(formula.inputs(q, q, q)[0], at, "q")


def _keys(formula: Formula, k: Tensor, v: Tensor, sizes: Sizes, at: Tensor) -> tuple[Tensor, Tensor]:
    k, v = formula.split(k, sizes.kv_heads, "k"), formula.split(v, sizes.kv_heads, "v")
    _, k, v = formula.inputs(k, k, v)
    return formula.rotate(k, at, "k"), formula.rotate(v, at, "v")


def simulate_path(seen: SeenPiece, design: Design, path: Path) -> Tensor:
    """The output of a piece if some pieces take a path of their own."""
    piece, sizes, places = seen.piece, seen.sizes, torch.arange(seen.piece.end)
    formula = path.formula if path.takes(piece) else design.formula
    q = _queries(formula, seen, piece.queries)
    usual, other = (_keys(one, seen.k, seen.v, sizes, places) for one in (design.formula, path.formula))
    chosen = path.of_tokens(piece)[:, None]
    k, v = (torch.where(chosen, theirs, ours) for ours, theirs in zip(usual, other, strict=True))
    k, v = formula.share(k, sizes.heads, "k"), formula.share(v, sizes.heads, "v")
    whole = Sizes(sizes.batch, sizes.heads, sizes.kv_heads, piece.size, piece.end, sizes.head_dim)
    scores = formula.bias(formula.scores(q, k, formula.scale(whole)))
    return formula.core(scores, causal_mask(whole, design.window), v)


def _simulate_by_index(seen: SeenPiece, design: Design, plan: CachePlan) -> Tensor:
    """The output of a piece whose keys have the positions of the places in which they are read."""
    tokens, mask = plan(seen.piece, design.window)
    start = seen.piece.end - len(tokens)
    q = _queries(design.formula, seen, seen.piece.queries)
    k, v = seen.k[:, tokens], seen.v[:, tokens]
    k, v = _keys(design.formula, k, v, seen.sizes, torch.arange(start, seen.piece.end))
    k, v = design.formula.share(k, seen.sizes.heads, "k"), design.formula.share(v, seen.sizes.heads, "v")
    scores = design.formula.bias(design.formula.scores(q, k, design.formula.scale(seen.sizes)))
    return average(scores, mask, v)


def simulate(seen: SeenPiece, design: Design, places: Places, plan: CachePlan, *, dirty: bool = False) -> Tensor:
    """The output of a piece under a hypothesis."""
    if plan.by_index:
        return _simulate_by_index(seen, design, plan)
    scores, v = candidates(seen, design, places)
    tokens, mask = plan(seen.piece, design.window, dirty=dirty)
    return average(scores[..., tokens], mask, v[:, :, tokens])


# -- the search --------------------------------------------------------------------------------------------------------


def identify_cache_bug(impl: Implementation, contract: Contract, ways: Sequence[Sequence[int]]) -> Identified | None:
    """The bug of a cache, if one hypothesis gives the outputs of all pieces; None if it cannot be read.

    Args:
        ways: sizes of the pieces of some sequences, of which some differ from the whole.
    """
    if impl.module is None or impl.run_cached is None or not impl.aligned:
        return None
    first: Layout | None = None
    for group in observe_module(impl):
        for layout, observer in group:
            observed = Observed(observer)
            design = find_design(observed, impl, contract)
            limit = max(TOLERANCES[impl.dtype], observed.least)
            seen = [] if design is None else [one for sizes in ways for one in _read_pieces(impl, layout, sizes, limit)]
            if not seen or design is None or not design.causal:
                continue
            found = _search(seen, design)
            if found is not None:
                return replace(found, where=layout.name)
            first = first or layout
            break
    return None if first is None else _find_input_positions(impl, first, ways)


def _read_pieces(impl: Implementation, layout: Layout, sizes: Sequence[int], tolerance: float) -> list[SeenPiece]:
    """The pieces of a sequence, after a longer one ran through the cache at once; [] if they cannot be read."""
    longer = sum(sizes) + MORE
    for rows in BATCHES:
        generator = torch.Generator().manual_seed(81)
        runs: list[list[Observation]] = []
        for lengths in ((longer,), tuple(sizes)):
            pieces = impl.random_input(rows, sum(lengths), generator).split(lengths, dim=1)
            recorded = zip(lengths, record_pieces(impl, pieces), strict=False)
            read = [read_projections(layout, made, out, rows, size, tolerance) for size, (made, out) in recorded]
            runs.append([one for one in read if one is not None])
        if len(runs[1]) == len(sizes):
            earlier = runs[0] or runs[1]
            old = torch.cat([one.k for one in earlier], 1), torch.cat([one.v for one in earlier], 1)
            return list(_join(runs[1], old, tuple(sizes)))
    return []


def _join(seen: list[Observation], old: tuple[Tensor, Tensor], sizes: tuple[int, ...]) -> Iterator[SeenPiece]:
    for number, own in enumerate(seen):
        k, v = (torch.cat([getattr(one, name) for one in seen[: number + 1]], 1) for name in ("k", "v"))
        out = own.out.unflatten(-1, (own.sizes.heads, -1)).transpose(1, 2)
        yield SeenPiece(Piece(number, sizes), own.q, k, v, out, own.sizes, own.tolerance, old)


def _search(seen: list[SeenPiece], design: Design) -> Identified | None:
    """The bug of one attention; its family is None if no hypothesis fits. None if it is right."""
    right = CachePlan()
    wrong = [one for one in seen if not one.fits(simulate(one, design, right_places, right))]
    if not wrong:
        return None
    wrong.sort(key=lambda one: one.piece.end)
    lengths = _likely_lengths(wrong[0].piece)
    windows = [] if design.window is None else [design.window, design.window - 1]
    rings = [size for size in dict.fromkeys((*windows, *lengths)) if size > 1]
    plans = [
        (family, words, right_places, plan) for family, words, plan in chain(cache_plans(lengths), ring_plans(rings))
    ]
    if design.rotary != "none" or design.alibi:
        plans += [("positions with cache", words, places, right) for words, places in wrong_places(lengths)]
    order = [*wrong, *(one for one in seen if one not in wrong)]
    for (family, words, places, plan), dirty in product(plans, (False, True)):
        if all(one.fits(simulate(one, design, places, plan, dirty=dirty)) for one in order):
            return Identified(family, words, cases=len(seen))
    found = _search_paths(order, design)
    when = describe_pieces([one.piece for one in wrong], [one.piece for one in seen if one not in wrong])
    if found is None and when:
        found = _search_some(wrong, design, plans, when)
    if found is not None:
        return found
    rotates = design.rotary != "none" or design.alibi
    for words, places in [("", right_places), *(wrong_places(lengths) if rotates else ())]:
        found = _solve([*wrong[:2], wrong[-1]], design, places)
        if found is not None:
            (family, seen_words) = found
            if words and family == "cache order":
                words = f"{seen_words}; and {words}"
            elif words:
                family, words = "positions with cache", f"{words}; and {seen_words}"
            return Identified(family, words or seen_words, cases=len(wrong))
    return Identified(None, "")


def _search_some(
    wrong: Sequence[SeenPiece], design: Design, plans: Sequence[tuple[str, str, Places, CachePlan]], when: str
) -> Identified | None:
    """The bug of the wrong pieces alone; the others are right. when: which pieces are wrong, in words."""
    for width in () if design.window is None else (design.window + 1, design.window - 1):
        other, right = replace(design, window=width), CachePlan()
        if all(one.fits(simulate(one, other, right_places, right)) for one in wrong):
            words = f"{when}: queries see a window of {width}, required: {design.window}"
            return Identified("window", words, cases=len(wrong))
    for family, words, places, plan in plans:
        if all(one.fits(simulate(one, design, places, plan)) for one in wrong):
            return Identified(family, f"{when}: {words}", cases=len(wrong))
    one, members = wrong[0], {(other.piece.number, other.piece.sizes) for other in wrong}
    first = observe_piece(one.q, one.k, one.v, one.out, one.sizes, one.tolerance)
    for family, words, path in wrong_paths(design, [one.piece for one in wrong], first):
        some = replace(path, takes=lambda p: (p.number, p.sizes) in members)
        try:
            if all(other.fits(simulate_path(other, design, some)) for other in wrong):
                return Identified(family, f"{when}: {words.partition(': ')[2]}", cases=len(wrong))
        except (RuntimeError, ValueError, IndexError):  # a step that these sizes do not allow
            continue
    return None


def _search_paths(seen: Sequence[SeenPiece], design: Design) -> Identified | None:
    """The bug of a path that only some pieces take; the first piece is wrong."""
    one = seen[0]
    first = observe_piece(one.q, one.k, one.v, one.out, one.sizes, one.tolerance)
    for family, words, path in wrong_paths(design, [other.piece for other in seen], first):
        try:
            if all(other.fits(simulate_path(other, design, path)) for other in seen):
                return Identified(family, words, cases=len(seen))
        except (RuntimeError, ValueError, IndexError):  # a step that these sizes do not allow
            continue
    return None


def _likely_lengths(first: Piece) -> list[int]:
    """Sizes of a cache or a table that may cause a first wrong piece."""
    return [
        n for n in dict.fromkeys((first.start, first.end - 1, first.end, first.start - 1, first.start + 1)) if n > 1
    ]


# -- solved from the outputs -------------------------------------------------------------------------------------------

Solved = Sequence[tuple[Piece, Tensor]]


def _solve(wrong: Sequence[SeenPiece], design: Design, places: Places) -> tuple[str, str] | None:
    """What wrong pieces see: tokens, and what else a cache may hold; or keys with the values of other tokens."""
    for stage, describe in (("tokens", _describe), ("all", _describe), ("pairs", _describe_pairs)):
        solved = []
        for seen in wrong:
            scores, v = candidates(seen, design, places)
            end = seen.piece.end
            if stage == "tokens":
                scores, v = scores[..., :end], v[:, :, :end]
            if stage == "pairs":
                if end * end > MOST_PAIRS:
                    continue
                scores, v = scores[..., :end].repeat_interleave(end, -1), v[:, :, :end].repeat(1, 1, end, 1)
            factors = solve_factors(scores, v, seen.out)
            if factors is None:
                break
            if seen.tolerance > EXACT:
                factors = factors.masked_fill(factors < FAINT, 0.0)
            solved.append((seen.piece, factors))
        else:
            found = describe(solved, design) if solved else None
            if found is not None:
                return found
    return None


def _describe(solved: Solved, design: Design) -> tuple[str, str] | None:
    """The bug family and the words for what the queries of some pieces see."""
    piece, factors = solved[0]
    after, end = f"after {piece.end} tokens", piece.end
    typical = factors[factors > SMALL].median()
    seen, right = factors > SMALL, causal_mask(Sizes(1, 1, 1, piece.size, end, 1), design.window)
    own, empty, earlier, swapped = (
        seen[:, :end],
        seen[:, end : end + 1],
        seen[:, end + 1 : -end],
        seen[:, max(end + 1, seen.shape[1] - end) :],
    )
    if bool(earlier[:, end:].any()):
        return "mask with cache", "slots after the newest token are read, with what an earlier sequence left there"
    if bool(earlier.any()):
        return "state", "keys and values of the sequence before are still in the cache"
    if bool(swapped.any()):
        return "inputs swapped", "keys and values are swapped in the cache"
    if bool(empty.any()):
        count = float((factors[:, end] / typical).max())
        lost = (right & ~own).any(0)
        if bool(lost.any()):
            words = (
                f"{after}, the cache has no {_tokens(lost)}, and slots that were never written are read in their place"
            )
            return "cache order", words
        return "mask with cache", f"slots that were never written take part in the softmax ({after}: {count:.3g})"
    twice = (factors > 1.5 * typical).any(0)
    if bool(twice.any()):
        return "cache order", f"{after}, the cache holds {_tokens(twice)} more than once"
    past = torch.arange(end) <= piece.queries[:, None]
    for family, wrong, words in (
        ("mask with cache", own & ~past, "sees later"),
        ("window", own & ~right, ""),
        ("cache order", right & ~own, "does not see"),
    ):
        if bool(wrong.any()):
            row = int(wrong.any(1).nonzero()[0])
            count = int(wrong[row].sum())
            if family == "window":
                words = f"sees {int(own[row].sum())} tokens with the cache, more than the window of {design.window}"
                return family, f"{after}, token {piece.start + row} {words}"
            if words == "does not see" and bool(wrong[row, :count].all()):
                return family, f"the oldest tokens are dropped: {after}, the cache has no {_tokens(wrong[row])}"
            return family, f"{after}, token {piece.start + row} {words} {_tokens(wrong[row])}"
    return None


def _describe_pairs(solved: Solved, design: Design) -> tuple[str, str] | None:
    piece, factors = solved[0]
    pairs = (factors[-1].unflatten(-1, (piece.end, piece.end)) > SMALL).nonzero().tolist()
    mixed = ", ".join(f"key {key} with value {value}" for key, value in pairs[:4] if key != value)
    if not mixed:
        return None
    return "cache order", f"after {piece.end} tokens, keys meet the values of other tokens: {mixed}"


def _tokens(chosen: Tensor) -> str:
    places = chosen.nonzero()[:, 0].tolist()
    return f"token{'' if len(places) == 1 else 's'} {', '.join(map(str, places[:8]))}{', …' if len(places) > 8 else ''}"


# -- positions that are added to the inputs ----------------------------------------------------------------------------


def _find_input_positions(impl: Implementation, layout: Layout, ways: Sequence[Sequence[int]]) -> Identified:
    """Positions that later pieces get before the first attention, found by running each token at every position."""
    place, unknown = layout.parts[0][0], Identified(None, "")
    found: list[tuple[Piece, list[int]]] = []
    for sizes in ways:
        x = impl.random_input(2, sum(sizes), torch.Generator().manual_seed(82))
        expected, recorded = record_run(impl, x).projections, record_pieces(impl, x.split(list(sizes), dim=1))
        for number, (made, _) in enumerate(recorded):
            piece = Piece(number, tuple(sizes))
            own, whole = (part[place].given.reshape(2, -1, part[place].given.shape[-1]) for part in (made, expected))
            places: list[int | None] = []
            for row, token in enumerate(piece.queries.tolist()):
                right = float((own[:, row] - whole[:, token]).abs().max()) <= 1e-6 * float(own.abs().max())
                places.append(token if right else find_place(impl, x[:, token : token + 1], own[:, row], place))
            if None in places:
                return unknown
            found.append((piece, [p for p in places if p is not None]))
    wrong = sorted((one for one in found if one[0].queries.tolist() != one[1]), key=lambda one: one[0].end)
    if not wrong:
        return unknown
    for words, plan in wrong_places(_likely_lengths(wrong[0][0])):
        if all(plan(piece)[0].tolist() == places for piece, places in found):
            return Identified("positions with cache", words, cases=len(found))
    words = f"with the cache, token {wrong[0][0].start} gets position {wrong[0][1][0]}"
    return Identified("positions with cache", words, cases=len(found))
