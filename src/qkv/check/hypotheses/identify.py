"""Identify a bug: the simplest hypothesis that gives the observed outputs exactly at several shapes, and when it acts.

First the design is found that is right at some sizes. If it is right at all of them, the bug is elsewhere. If it is
right at some, the bug has a condition, found by bisection ("from 65 tokens on"). Otherwise every design is combined
with every bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.names import parameters_of
from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Design, Norms, Observation, merge_heads, split_heads
from qkv.check.hypotheses.observe import Case, Observer, observe_function, observe_module
from qkv.check.hypotheses.operators import BLOCKS, Hypothesis, fit_scale, hypotheses
from qkv.check.hypotheses.position_operators import find_residual, position_hypotheses
from qkv.check.hypotheses.visibility import describe_visibility, solve_visibility
from qkv.check.implementation import Implementation
from qkv.check.shapes import PROBES, describe_condition

SMALL = (Case(7), Case(12), Case(8, batch=1), Case(5, batch=3, seed=1))
CONFIRM = (
    Case(7), Case(12, seed=1), Case(13, batch=3), Case(33), Case(1), Case(6, batch=1, seed=2),
    Case(9, heads=3, head_dim=20),
)  # fmt: skip
LONGEST = 300  # longer than the calls of any check


@dataclass(frozen=True)
class Identified:
    """A bug that explains the outputs exactly, or only the condition under which they are wrong.

    Args:
        family: the bug family; None if no hypothesis fits.
        condition: when it acts, such as "from 65 tokens on"; empty if always.
        where: the module that it is in.
        cases: how many observed calls the hypothesis explains.
        right: there is no bug in what was observed: the formula holds at all sizes, or `words` say by which design.
    """

    family: str | None
    words: str
    condition: str = ""
    where: str = ""
    cases: int = 0
    right: bool = False


RIGHT = Identified(None, "", right=True)


class Work:
    """How many formulas may still be tried."""

    def __init__(self, budget: int) -> None:
        self._left = budget

    @property
    def done(self) -> bool:
        return self._left <= 0

    def spend(self, seen: Observation) -> bool:
        """Count one formula, or several for a long sequence; whether the budget is used up."""
        sizes = seen.sizes
        self._left -= 1 + sizes.batch * sizes.heads * sizes.queries * sizes.keys // 4000
        return self.done


class Observed:
    """The observations of one attention, each made once."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._seen: dict[Case, Observation | None] = {}

    def __call__(self, case: Case) -> Observation | None:
        if case not in self._seen:
            try:
                self._seen[case] = self._observer(case)
            except Exception:  # these sizes are not supported
                self._seen[case] = None
        return self._seen[case]

    def is_random(self, case: Case) -> bool:
        """Whether the same call gives another output each time, as with dropout in training."""
        one, other = self(case), self._observer(case)
        return one is None or other is None or not one.fits(other.out)

    def all(self, cases: Sequence[Case]) -> list[tuple[Case, Observation]]:
        return [(case, seen) for case in cases if (seen := self(case)) is not None]


def identify(
    impl: Implementation, contract: Contract, failed: Sequence[str] = (), budget: int = 9000
) -> Identified | None:
    """The bug of an implementation, or that every attention in it is right; None if it cannot be read.

    Args:
        failed: the names of the checks that failed.
        budget: how many formulas are tried at most; a count, not a time, so that every machine names the same bug.
    """
    unread: Identified | None = None
    right: list[Identified] = []
    groups = list(_observers(impl, contract))
    work = Work(budget)
    with torch.random.fork_rng():
        for group in groups:
            observers = [(where, Observed(observer)) for where, observer in group]
            some_right = False  # then a bug has a condition, and none acts at every size
            for searches, (where, observed) in product((False, True), observers):
                if work.done:
                    return unread
                if searches and some_right:
                    break
                find = _search_bug if searches else _find_right
                found = find(observed, impl, contract, failed, work)
                if found is None:
                    continue
                some_right = some_right or not searches
                if found.right:
                    right.append(found)
                    break
                found = replace(found, where=where)
                if found.family is not None:
                    return found
                unread = unread or found
    if unread is None and right and len(right) == len(groups):
        return replace(max(right, key=lambda found: len(found.words)), cases=len(right))
    return unread


def _observers(impl: Implementation, contract: Contract) -> Iterator[list[tuple[str, Observer]]]:
    """For each attention: the ways to observe it."""
    if impl.attention is not None:
        yield [("", observe_function(impl, contract))]
    elif impl.module is not None and impl.source is None and impl.aligned:
        for group in observe_module(impl):
            yield [(layout.name, observer) for layout, observer in group]


def _find_right(
    observed: Observed, impl: Implementation, contract: Contract, failed: Sequence[str], work: Work
) -> Identified | None:
    """That a design is right at all sizes, or what is wrong at some; None if none is right at any."""
    small = observed.all(SMALL)
    if not small:
        return None
    clues = find_clues(impl, small[0][1])
    for design in chain(find_designs(contract, small[0][1], clues), _rare_designs(contract, small[0][1], clues)):
        formula = design.formula
        if any(seen.fits(formula(seen)) for _, seen in small):
            found = _find_condition(observed, design, impl, contract, failed)
            return RIGHT if found is None else found
    return None


def _search_bug(
    observed: Observed, impl: Implementation, contract: Contract, failed: Sequence[str], work: Work
) -> Identified | None:
    """A bug at every size."""
    small = observed.all(SMALL)
    if len(small) < 2:
        return None
    designs = list(find_designs(contract, small[0][1], find_clues(impl, small[0][1])))
    return _search(observed, designs, CONFIRM, work, contract)


@dataclass(frozen=True)
class Clues:
    """What names and numbers in a module say about its design.

    Args:
        bases: of RoPE, beside 10,000. caps: of the scores. rotary_dims: how many dims of a head are rotated.
        norms: of queries and keys.
    """

    bases: Sequence[float] = (500_000.0, 1e6)
    caps: Sequence[float] = ()
    rotary_dims: Sequence[int] = ()
    norms: Norms | None = None


def find_clues(impl: Implementation, seen: Observation) -> Clues:
    return Clues(rotary_bases(impl), softcaps(impl), rotary_dims(impl, seen.sizes.head_dim), find_norms(impl, seen))


def rotary_dims(impl: Implementation, head_dim: int) -> list[int]:
    """Numbers below the head dim, or shares of it, whose names say that they are rotated."""
    found: list[int] = []
    for part in [] if impl.module is None else list(impl.module.modules()):
        for holder in (part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                rotary = any(word in name.lower() for word in ("rot", "rope", "partial"))
                if rotary and type(value) in (int, float) and not isinstance(value, bool):
                    dims = value if type(value) is int else round(value * head_dim)
                    found += [dims] if 2 <= dims < head_dim and dims % 2 == 0 else []
    return list(dict.fromkeys(found))[:2]


def find_norms(impl: Implementation, seen: Observation) -> Norms | None:
    """The norms of queries and keys, if a module has some with such names."""
    d, h = seen.sizes.head_dim, seen.sizes.heads
    found: dict[str, nn.Module] = {}
    for path, part in [] if impl.module is None else list(impl.module.named_modules()):
        last = path.rpartition(".")[2].lower().replace("_", "")
        is_norm = (
            "norm" in last or "norm" in type(part).__name__.lower() or last in ("qn", "kn", "qln", "kln", "lnq", "lnk")
        )
        weights = list(part.parameters(recurse=False))
        fits = all(w.numel() in (d, h * d, seen.sizes.kv_heads * d) for w in weights)
        if is_norm and fits and not list(part.children()):
            for letter in ("q", "k"):
                if last.startswith(letter) or last.endswith(letter) or {"q": "query", "k": "key"}[letter] in last:
                    found.setdefault(letter, part)
    return (partial(_normed, found["q"]), partial(_normed, found["k"])) if len(found) == 2 else None


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """A norm of each head, or of all heads together, by the number of its weights."""
    weights = list(norm.parameters(recurse=False))
    if not weights or weights[0].numel() == x.shape[-1]:
        return norm(x).detach().double()
    return split_heads(norm(merge_heads(x)), x.shape[1]).detach().double()


def _unit_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def _rare_designs(contract: Contract, seen: Observation, clues: Clues) -> Iterator[Design]:
    """Designs that only a fit can suggest: norms without gain, and, unless RoPE over all of it is promised, over a part
    of the head dim."""
    d = seen.sizes.head_dim
    if clues.norms is None:
        yield from find_designs(contract, seen, replace(clues, norms=(_unit_norm, _unit_norm)))
    if not clues.rotary_dims and contract.position != "rotary":
        dims = [part for part in (d // 2, d // 4) if part >= 2 and part % 2 == 0]
        for design in find_designs(contract, seen, replace(clues, rotary_dims=dims)):
            if design.rotary_dim is not None:
                yield design


def rotary_bases(impl: Implementation) -> list[float]:
    """Bases of RoPE: the usual ones, and numbers that a module or its config calls a theta or a base."""
    found = [500_000.0, 1e6]
    for part in [] if impl.module is None else list(impl.module.modules()):
        for holder in (part, *(getattr(part, name, None) for name in ("config", "cfg", "args"))):
            named = vars(holder) if hasattr(holder, "__dict__") else {}
            known = [value for name, value in named.items() if "theta" in name or "base" in name]
            found += [float(value) for value in known if type(value) in (int, float) and 10 < value != 10_000]
    return list(dict.fromkeys(found))[:4]


def softcaps(impl: Implementation) -> list[float]:
    """Numbers that a module, its config or a default of a function calls a cap."""
    holders: list[Any] = [] if impl.module is None else list(impl.module.modules())
    holders += [config for part in holders if (config := getattr(part, "config", None)) is not None]
    named = [pair for holder in holders if hasattr(holder, "__dict__") for pair in vars(holder).items()]
    function = getattr(impl.attention, "function", None)
    if function is not None:
        named += [(name, p.default) for name, p in parameters_of(function).items()]
    found = [float(value) for name, value in named if "cap" in name.lower() and type(value) in (int, float)]
    return [cap for cap in dict.fromkeys(found) if 0 < cap < 1000][:2]


def find_designs(
    contract: Contract,
    seen: Observation,
    clues: Clues | None = None,
) -> Iterator[Design]:
    """The designs that a contract allows; the plain ones first."""
    clues = clues or Clues()
    bases, caps = clues.bases, clues.caps
    causals = (True,) if contract.kind in ("causal", "window") else (False,)
    if contract.kind is None:
        causals = (False, True)
    scales: tuple[float | None, ...] = (None,)
    if contract.scale is None:
        scales = (None, 1.0)
    elif contract.scale != "head":
        scales = (float(contract.scale),)
    tilings = (False, True) if seen.sizes.kv_heads < seen.sizes.heads and contract.grouped is None else (False,)
    if contract.grouped == "tiled":
        tilings = (True,)
    positions = [Design(), Design(rotary="halves"), Design(rotary="interleaved"), Design(alibi=True)]
    positions += [Design(rotary=pairing, base=base) for base in bases for pairing in ("halves", "interleaved")]
    if contract.position in ("rotary", "alibi"):
        wanted = [d for d in positions if (d.alibi if contract.position == "alibi" else d.rotary != "none")]
        positions = wanted
    elif contract.position == "none":
        positions = positions[:1]
    positions = [replace(position, cap=cap) for cap in caps for position in positions[:3]] + positions
    rotated = [position for position in positions if position.rotary != "none"]
    positions = [replace(position, rotary_dim=dims) for dims in clues.rotary_dims for position in rotated] + positions
    if clues.norms is not None:
        positions = [replace(position, norms=clues.norms) for position in positions]
    for position in positions:
        for tiled in tilings:
            for scale in scales:
                for causal in causals:
                    window = contract.window if causal else None
                    yield replace(position, tiled=tiled, scale=scale, causal=causal, window=window)


# -- a bug at every size -----------------------------------------------------------------------------------------------


def _search(
    observed: Observed, designs: Sequence[Design], cases: Sequence[Case], work: Work, contract: Contract
) -> Identified | None:
    """The first hypothesis that fits in all cases, over all designs; designs without positions go first."""
    first = observed(cases[0])
    if first is None:
        return None
    added = _search_residual(observed, designs, cases)
    if added is not None:
        return _with_gradients(observed, designs, added)
    for design in designs:
        for bug in _bugs(design, first):
            if work.spend(first):
                return None
            if _fits_all(observed, bug, cases):
                if bug.family == "low precision" and bug.words.endswith("float32"):
                    return None  # enough for any model, whatever the dtype of its weights
                return _after_longer_call(observed, design, bug, len(observed.all(cases)))
    longer = [case for case in cases if case.length > 1]
    solved = None if contract.kind not in NAMED_MASKS else _solve_masks(observed, designs, longer, work)
    if solved is not None and solved.family != "scores changed":  # a bias may be a design
        return solved
    for design in designs[:2]:
        for bug in _pairs(design, first):
            if work.spend(first):
                return None
            if _fits_all(observed, bug, cases):
                return Identified(bug.family, bug.words, cases=len(observed.all(cases)))
    return None


LONGEST_SOLVED = 140
NAMED_MASKS = ("causal", "window", "bidirectional")  # kinds that say which keys a query may see
MANY_ROWS = 8  # of a batch: enough equations to solve for a mask


def _solve_masks(
    observed: Observed, designs: Sequence[Design], cases: Sequence[Case], work: Work, condition: str = ""
) -> Identified | None:
    """What each query sees, solved from the outputs; all heads alike, or one head."""
    few = [
        replace(case, batch=max(case.batch, MANY_ROWS))
        for case in cases
        if 2 < (case.keys or case.length) <= LONGEST_SOLVED
    ]
    few = list(dict.fromkeys(few))
    short = [case for case in few if (case.keys or case.length) <= 70]
    few = short or few[:2]  # long ones take seconds
    few = [few[0], few[len(few) // 2], few[-1]] if len(few) > 3 else few
    for design in designs[:24]:
        for case in few[:1]:
            seen = observed(case)
            heads = 0 if seen is None else seen.sizes.heads
            for head in (None, *range(heads if heads > 1 else 0)):
                if work.spend(seen) if seen is not None else True:
                    return None
                found = _solve_at(observed, design, few, head)
                if found is not None:
                    family, words = found
                    where = "" if head is None else f"in head {head}, "
                    return Identified(family, f"{where}{words}", condition, cases=len(few))
    return None


def _solve_at(observed: Observed, design: Design, cases: Sequence[Case], head: int | None) -> tuple[str, str] | None:
    solved = []
    for case in cases:
        seen = observed(case)
        if seen is None:
            continue
        try:
            factors = solve_visibility(seen, design.formula, head=head)
        except (RuntimeError, ValueError, IndexError):  # a step that this shape does not allow
            return None
        if factors is None:
            return None
        solved.append((factors, design.formula.mask(seen.sizes)))
    return describe_visibility(solved) if len(solved) >= 2 or (solved and len(cases) == 1) else None


def _after_longer_call(observed: Observed, design: Design, bug: Hypothesis, cases: int) -> Identified:
    """The bug, unless a call that is longer than all before is right: then earlier calls cause it."""
    seen = observed(Case(LONGEST))
    if seen is not None and not seen.fits(bug.formula(seen)) and seen.fits(design.formula(seen)):
        words = f"after a longer call, {bug.words}: something that the longer call left behind is used again"
        return Identified("state", words, cases=cases)
    return _with_gradients(observed, [design], Identified(bug.family, bug.words, cases=cases))


def _with_gradients(observed: Observed, designs: Sequence[Design], found: Identified) -> Identified:
    """The bug with its condition, if the same call is right without gradients."""
    seen = observed.all([Case(7, no_grad=True), Case(12, no_grad=True)])
    right = any(all(one.fits(design.formula(one)) for _, one in seen) for design in designs)
    if seen and right:
        return replace(found, condition="with gradients")
    seen = observed.all([Case(7, training=True), Case(12, training=True)])
    right = any(all(one.fits(design.formula(one)) for _, one in seen) for design in designs)
    return replace(found, condition="in eval mode") if seen and right else found


def prove_scale(impl: Implementation, contract: Contract) -> bool:
    """Whether every attention has the promised scale under some mask: only then a mask can be solved for."""
    groups = list(_observers(impl, contract))
    for group in groups:
        observers = [Observed(observer) for _, observer in group]
        if not any(_has_scale(observed, impl, contract) for observed in observers):
            return False
    return bool(groups)


def _has_scale(observed: Observed, impl: Implementation, contract: Contract) -> bool:
    cases = [Case(7, batch=MANY_ROWS), Case(12, batch=MANY_ROWS), Case(13, batch=MANY_ROWS)]
    seen = [one for _, one in observed.all(cases)]
    if len(seen) < 2:
        return False
    designs = chain(find_designs(contract, seen[0], find_clues(impl, seen[0])))
    return any(all(solve_visibility(one, design.formula) is not None for one in seen) for design in designs)


def _bugs(design: Design, seen: Observation, sizes: Sequence[int] = BLOCKS) -> Iterator[Hypothesis]:
    return chain(hypotheses(design, seen, sizes=sizes), position_hypotheses(design, sizes))


def _block_sizes(condition: str) -> Sequence[int]:
    """Sizes of blocks and tables; a bug from 41 tokens on may come from one of 40."""
    found = re.search(r"from (\d+) tokens on", condition)
    return tuple(sorted({*BLOCKS, int(found.group(1)) - 1})) if found and int(found.group(1)) > 2 else BLOCKS


def _pairs(design: Design, seen: Observation) -> Iterator[Hypothesis]:
    """Two bugs at once: a wrong scale beside another bug."""
    right = design.formula
    bugs = list(hypotheses(design, seen, blocks=False))
    scales = [bug for bug in bugs if bug.family == "scale"]
    for bug in bugs:
        if bug.formula.scale is right.scale:
            for other in scales:
                words = f"{bug.words}; and {other.words} (multiply q·k by 1/√(head dim), once)"
                yield Hypothesis(bug.family, words, bug.formula.but(scale=other.formula.scale))


def _fits_all(observed: Observed, bug: Hypothesis, cases: Sequence[Case], *, all_rows: bool = False) -> bool:
    """Whether a hypothesis gives the output in all cases that can be observed, at least two of them."""
    seen = 0
    for case in cases:
        observation = observed(case)
        if observation is None:
            continue
        try:
            if not observation.fits(bug.formula(observation), all_rows=all_rows):
                return False
        except (RuntimeError, ValueError, IndexError):  # a step that this shape does not allow
            return False
        seen += 1
    return seen >= 2


def _search_residual(observed: Observed, designs: Sequence[Design], cases: Sequence[Case]) -> Identified | None:
    """Something is added to the right output, by the same factor in all cases."""
    seen = observed.all([case for case in cases if case.length > 1])
    for design in designs[:6]:
        found = [find_residual(design, observation) for _, observation in seen]
        if len(found) < 2 or any(part is None for part in found):
            continue
        (family, words, factor), *others = [part for part in found if part is not None]
        if all(other[:2] == (family, words) and abs(other[2] - factor) < 1e-5 for other in others):
            by = f"by {1 + factor:.4g}" if words.endswith("scaled") else f"times {factor:.4g}"
            return Identified(family, f"{words} {by}", cases=len(found))
    return None


# -- a bug under a condition -------------------------------------------------------------------------------------------


def _find_condition(
    observed: Observed, design: Design, impl: Implementation, contract: Contract, failed: Sequence[str]
) -> Identified | None:
    """The design is right at some sizes: where it is wrong, and why."""

    def is_right(case: Case) -> bool | None:
        seen = observed(case)
        return None if seen is None else seen.fits(design.formula(seen))

    for words, cases in _axes(impl, contract, failed):
        judged = [(case, right) for case in cases if (right := is_right(case)) is not None]
        wrong = [case for case, right in judged if not right]
        one_alone = words.startswith("for one query") and not _fits_top_left(observed, design, [Case(3, keys=6)])
        if contract.alignment is None and not one_alone and _fits_top_left(observed, design, wrong):
            continue  # nothing was promised about more keys than queries
        if not wrong or (wrong[0].training and observed.is_random(wrong[0])):
            continue
        fine = [case for case, right in judged if right]
        condition = describe_condition(lambda length: is_right(Case(length))) if words == "length" else words
        if wrong[0].dtype != torch.float64:
            low = [dtype for dtype in DTYPES if any(is_right(replace(case, dtype=dtype)) is False for case in wrong)]
            condition = _in_dtypes(low)
        return _explain_condition(observed, design, wrong, fine, condition, contract)
    return None


def _fits_top_left(observed: Observed, design: Design, cases: Sequence[Case]) -> bool:
    """Whether calls with more keys than queries follow a causal mask that is aligned at the start."""
    if not design.causal or not cases or any(case.keys is None for case in cases):
        return False
    formula = design.formula.but(mask=lambda sizes: torch.ones(sizes.queries, sizes.keys, dtype=torch.bool).tril())
    return all(seen is not None and seen.fits(formula(seen)) for seen in map(observed, cases))


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _in_dtypes(dtypes: Sequence[torch.dtype]) -> str:
    return f"in {' and '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"


def _axes(impl: Implementation, contract: Contract, failed: Sequence[str]) -> Iterator[tuple[str, list[Case]]]:
    """Series of cases in which one thing varies, with the condition in words."""
    yield "length", [Case(length) for length in PROBES]
    yield "for more than one row", [Case(length, batch=batch) for length in (7, 12) for batch in (2, 3, 5)]
    yield "for a single row", [Case(length, batch=1) for length in (7, 12, 33)]
    if impl.attention is not None:
        unequal = ((3, 6), (4, 9), (5, 17), (2, 33), (40, 70))
        yield "with more keys than queries", [Case(length, keys=keys) for length, keys in unequal]
        yield "for one query on more keys", [Case(1, keys=keys) for keys in (2, 7, 12, 33)]
        for h in (1, 2, 3, 6, 8):
            yield f"with {h} head{'s' if h > 1 else ''}", [Case(length, heads=h) for length in (7, 12)]
        for d in (4, 16, 32, 40, 64, 128):
            yield f"with a head dim of {d}", [Case(length, head_dim=d) for length in (7, 12)]
        yield "for grouped-query attention", [Case(length, kv_heads=2) for length in (7, 12)]
        yield "for multi-query attention", [Case(length, kv_heads=1) for length in (7, 12)]
    if impl.takes_padding and any("padding" in name or "padded" in name for name in failed):
        sides = ("holes", "left", "right")
        yield "with padding", [Case(length, padding=side) for length in (12, 13) for side in sides]
    for dtype in DTYPES:
        yield _in_dtypes([dtype]), [Case(length, dtype=dtype) for length in (7, 12, 33)]
    if impl.attention is not None:
        yield "with gradients", [Case(length, gradients=True) for length in (7, 12)]
    else:
        yield "in training", [Case(length, training=True) for length in (7, 12)]


def _explain_condition(
    observed: Observed, design: Design, wrong: list[Case], fine: list[Case], condition: str, contract: Contract
) -> Identified:
    """The bug of the wrong cases; one that fits the others too needs no condition."""
    probes = _spread([case for case in wrong if case.length > 1] or wrong)
    if any(case.padding for case in wrong):
        probes = wrong + fine
    if len(probes) < 2:
        probes = [*probes, *(replace(case, seed=case.seed + 1) for case in probes)]
    seen = observed(probes[-1])
    assert seen is not None
    others = [case for case in SMALL if case not in fine and case not in wrong]
    conditional: Identified | None = None
    for all_rows in (True, False) if seen.tokens is not None else (False,):
        for bug in _bugs(design, seen, _block_sizes(condition)):
            if not _fits_all(observed, bug, probes, all_rows=all_rows):
                continue
            if len(wrong) > len(probes) and not _fits_all(observed, bug, wrong, all_rows=all_rows):
                continue
            if fine and _fits_all(observed, bug, [*wrong, *fine, *others]):
                return Identified(bug.family, bug.words, cases=len(wrong) + len(fine))
            says_when = bug.family == "alignment" and not condition.startswith("for one query")
            when = "" if says_when else condition
            if bug.family == "block" and "multiples" in when:
                when = when.partition(" from ")[2] and f"from {when.partition(' from ')[2]}"
            conditional = conditional or Identified(bug.family, bug.words, when, cases=len(probes))
        if conditional is not None:
            return conditional
    added = _search_residual(observed, [design], probes)
    if added is not None:
        return replace(added, condition=condition)
    solved = _solve_masks(observed, [design], [case for case in wrong if case.length > 1], Work(100), condition)
    if solved is not None:
        return solved
    return _search_scales(observed, design, probes, condition, contract) or Identified(None, "", condition)


def _search_scales(
    observed: Observed, design: Design, cases: Sequence[Case], condition: str, contract: Contract
) -> Identified | None:
    """A scale that depends on the length, or on the position of a query; the latter is a design (log-n scaling)."""
    seen = observed.all([case for case in cases if case.length > 2 and case.dtype == torch.float64])
    if len(seen) < 2:
        return None
    fitted = [(case, fit_scale(observation, design.formula)) for case, observation in seen]
    known = {case.length: float(scale[0]) for case, scale in fitted if scale is not None}
    if len(known) == len({case.length for case, _ in fitted}) and all(scale is not None for _, scale in fitted):
        values = ", ".join(f"{scale:.4g} at {length} tokens" for length, scale in sorted(known.items())[:3])
        return Identified("scale", f"the scale depends on the sequence length: {values}", condition, cases=len(seen))
    by_query = [fit_scale(observation, design.formula, by_query=True) for _, observation in seen]
    if any(scale is None for scale in by_query):
        return None
    last = by_query[-1]
    assert last is not None
    first, end = float(last[len(last) // 2]), float(last[-1])
    if abs(end - first) < 0.01 * abs(first):  # the same scale at both: something else is wrong
        return None
    words = (
        f"the scale of a query depends on its position: {first:.4g} at {len(last) // 2}, {end:.4g} at {len(last) - 1}"
    )
    if contract.scale is None:
        return Identified(None, words, right=True)
    return Identified("scale", words, condition, cases=len(seen))


def _spread(cases: list[Case]) -> list[Case]:
    """A few cases: the first, the last, and some between."""
    if len(cases) <= 4:
        return cases
    return [cases[0], cases[len(cases) // 3], cases[2 * len(cases) // 3], cases[-1]]
