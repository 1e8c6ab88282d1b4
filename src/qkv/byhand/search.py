"""Search for the shortest description of a sheet: the steps in order, the best few hypotheses, slip by slip."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.cell_slips import (
    NOT_IDENTIFIED,
)
from qkv.byhand.chance import (
    CONFIDENCE,
    EACH_MORE,
    POSSIBLE,
    POSSIBLE_COST,
    Trials,
    bits_of_pair,
    evidence,
)
from qkv.byhand.entry_slips import entry_slips
from qkv.byhand.expressions import Array
from qkv.byhand.formulas import GIVEN
from qkv.byhand.head_slips import SIDE_BY_SIDE
from qkv.byhand.hypotheses import BETWEEN, CORRECTED, CUT, LAST, WRONG, Hypothesis
from qkv.byhand.mask_slips import other_mask_slips
from qkv.byhand.multistep_slips import multistep_slips
from qkv.byhand.offset_slips import offset_slips, scale_slips
from qkv.byhand.patches import Patcher
from qkv.byhand.regions import find_regions
from qkv.byhand.sheet import WrittenStep
from qkv.byhand.slip_rules import formula_slips
from qkv.byhand.slips import Context, Slip
from qkv.byhand.worlds import MIXED

BEAM = 5
MARGIN = 12  # bits above a complete hypothesis that an open one may have
MAX_EXPANSIONS = 60
MAX_EVALUATIONS = 7000  # of formulas in one search; about two seconds
FOR_ROUNDED = 2000  # of these for steps without wrong numbers
COMMON = 6.0  # bits: slips up to this cost are also tried in pairs


class Search(Patcher):
    """The search for the shortest explanation of one sheet."""

    def run(self) -> list[Hypothesis]:
        """Complete hypotheses, the shortest first."""
        self.possible: dict[str, dict[str, float | int]] = {}  # slips of steps that may fit by chance, with their costs
        self.trials = Trials()
        self.limit, self.left_for_rounded = MAX_EVALUATIONS, FOR_ROUNDED
        start = Hypothesis(dict(self.problem.formulas), (), dict(self.problem.given))
        self.predict(start, self.order)
        beam, complete = [start], []
        for _ in range(MAX_EXPANSIONS):
            beam, done = [h for h in beam if h.open_step()], [h for h in beam if not h.open_step()]
            complete += done
            best = min((h.bits for h in complete), default=math.inf)
            beam = [h for h in beam if sum(f.slip.cost for f in h.findings) < best and h.bits < best + MARGIN]
            if not beam:
                break
            found = [self.expand(h) for h in beam]
            settled = min((h for h, *_ in found), key=lambda h: h.bits)
            beam = _best_different(list(itertools.chain.from_iterable(found)), settled)
        if not complete:
            complete = [self.settle_all(beam[0])]
        return sorted(complete, key=lambda h: h.bits)

    def settle_all(self, hypothesis: Hypothesis) -> Hypothesis:
        while (step := hypothesis.open_step()) is not None:
            hypothesis = self.settle(hypothesis, step)
        return hypothesis

    def expand(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Better hypotheses for the first open step."""
        step = hypothesis.open_step()
        assert step is not None
        if self.evaluations > MAX_EVALUATIONS:
            return [self.settle(hypothesis, step)]
        settled = self.settle(hypothesis, step)
        if not _unexplained(hypothesis, step):  # a common slip may still explain it better than rounding
            before, self.limit = self.evaluations, self.evaluations + self.left_for_rounded
            slips = self.single_slips(hypothesis, step, self.cone(hypothesis, step, through_rounded=True), common=True)
            better = self.best(hypothesis, slips, step)
            self.left_for_rounded -= self.evaluations - before
            self.limit = MAX_EVALUATIONS
            return [settled, *better]
        cone = self.cone(hypothesis, step)
        better = self.best(hypothesis, self.all_slips(hypothesis, step, cone), step)
        unknown = [found for found in settled.findings if found.step == step and found.slip.name == NOT_IDENTIFIED]
        if unknown and (not better or _unexplained(better[0], step)):
            whole = self.cone(hypothesis, step, through_rounded=True)
            others = [name for name in whole if name not in cone]
            better += self.best(hypothesis, self.single_slips(hypothesis, step, others), step)
            better.sort(key=lambda h: h.bits)
        if len(unknown) > 1 and (not better or _unexplained(better[0], step)):
            better += self.finish_best(self.pairs(hypothesis, step, cone), BEAM)
        return [settled, *better]

    def all_slips(self, hypothesis: Hypothesis, step: str, cone: list[str]) -> Iterator[Slip]:
        yield from self.single_slips(hypothesis, step, cone)
        yield from entry_slips(self, hypothesis, step, cone, self.trials)

    def best(self, hypothesis: Hypothesis, slips: Iterable[Slip], step: str) -> list[Hypothesis]:
        """The best hypotheses with one of these slips more."""
        self.trials = Trials()
        found = [new for slip in slips for new in self.try_slip(hypothesis, slip, step)]
        return self.finish_best(self.without_chance_fits(hypothesis, found, self.trials, step), 2 * BEAM)

    def finish_best(self, found: Iterable[Hypothesis], count: int) -> list[Hypothesis]:
        """The shortest of these hypotheses, evaluated to the end; those whose shapes do not fit are left out."""
        finished = (self.finish(new) for new in sorted(found, key=lambda h: h.bits))
        return list(itertools.islice((new for new in finished if new is not None), count))

    def settle(self, hypothesis: Hypothesis, step: str) -> Hypothesis:
        """Leave a step as it is: slips in single numbers, and rounding."""
        if _unexplained(hypothesis, step):
            return self.patch(hypothesis, step)
        return replace(hypothesis, settled=hypothesis.settled | {step})

    def cone(self, hypothesis: Hypothesis, step: str, through_rounded: bool = False) -> list[str]:
        """The formulas that lead to a step. Written steps end it, since a slip before them would show there.

        through_rounded: rounded steps do not end it: a slip before them may be hidden in the digits that were dropped.
        """
        found, pending = [], [step]
        while pending:
            name = pending.pop()
            if name in found:
                continue
            found.append(name)
            for other in hypothesis.formulas[name].names:
                if other.startswith(GIVEN):
                    continue
                ends = other in self.written
                if ends and through_rounded:
                    ends = _is_exact(self.written[other], hypothesis.predictions[other])
                if not ends:
                    pending.append(other)
        return [name for name in self.order if name in found]

    def single_slips(self, hypothesis: Hypothesis, step: str, cone: list[str], common: bool = False) -> Iterator[Slip]:
        """The slips in the formulas of a cone, the last step first."""
        for name in reversed(cone):
            distance = self.distance(name, step)
            if self.evaluations > self.limit:
                return
            context = Context(name, self.problem, hypothesis.formulas, hypothesis.values, name == step)
            for slip in formula_slips(context):
                if not common or (slip.cost <= COMMON and not slip.rounding):
                    yield replace(slip, cost=slip.cost + distance)
            if name in self.written and not common:
                yield from other_mask_slips(name, hypothesis.formulas[name], self.written[name].values, context.columns)
            if name == step and not common:
                prediction = hypothesis.predictions[name]
                if "scaled" not in self.written:
                    yield from scale_slips(hypothesis.formulas, hypothesis.values, self.written[name])
                yield from offset_slips(hypothesis.formulas[name], prediction, self.written[name], context.columns)
        if not common:
            reach = set(cone)
            for slip in multistep_slips(self.problem, hypothesis.formulas, hypothesis.values):
                if reach & set(slip.changes):
                    yield slip

    def distance(self, name: str, step: str) -> float:
        """A slip is more likely in the step that shows it than in one before it."""
        if name == step:
            return 0.0
        return 0.2 if name not in self.written else 1.0

    def try_slip(self, hypothesis: Hypothesis, slip: Slip, step: str) -> Iterator[Hypothesis]:
        """The slip everywhere, and only where it explains something."""
        new = self.with_slip(hypothesis, slip, step, step)
        if new is None or not new.findings[-1].cells:
            return
        before, after = hypothesis.matches[step], new.matches[step]
        spoiled = (before != WRONG) & (after == WRONG)
        self.trials.add(slip.cost, hypothesis.predictions[step][0], new.predictions[step][0], spoiled)
        if (slip.rounding or self.explains(hypothesis, new, step)) and self.is_shorter(hypothesis, new, slip, step):
            yield new
        solved = (before == WRONG) & (after < BETWEEN)
        if not solved.any() or (not spoiled.any() and not (after == WRONG).any()):
            return
        if len(slip.changes) != 1 or slip.scope == "whole":
            return
        ((name, formula),) = slip.changes.items()
        shape = hypothesis.values[name].shape[1:]
        joined = self.problem.problem.heads if step in SIDE_BY_SIDE and name == step else 1
        for region, where, cost in find_regions(solved, after != WRONG, shape, self.naming(step), slip.scope, joined):
            scoped = ex.where(region, formula, hypothesis.formulas[name])
            part = Slip(f"{slip.name} ({where})", slip.cost + cost, {name: scoped}, slip.rounding)
            new = self.with_slip(hypothesis, part, step, step)
            if new is not None and self.explains(hypothesis, new, step) and new.bits < hypothesis.bits:
                yield new

    def is_shorter(self, old: Hypothesis, new: Hypothesis, slip: Slip, step: str) -> bool:
        """Whether a slip makes the description shorter; an entry that several steps read may do so only in all."""
        if new.bits < old.bits or not slip.solved or step in slip.changes:
            return new.bits < old.bits
        finished = self.finish(new.copy())
        return finished is not None and finished.bits < old.bits

    def explains(self, old: Hypothesis, new: Hypothesis, step: str) -> bool:
        """Whether a slip explains a number that rounding alone does not, or hardly."""
        solved = (old.matches[step] != CUT) & (old.matches[step] != LAST) & (new.matches[step] < old.matches[step])
        moved = np.abs(new.predictions[step] - old.predictions[step])[:MIXED].max(0) > 2 * self.written[step].unit
        if (solved & (moved | (old.matches[step] == WRONG))).any():
            return True
        poor = old.matches[step] > CORRECTED
        return bool((new.matches[step] < CORRECTED).all() and poor.sum() > 1 and (old.matches[step] == LAST).any())

    def is_better(self, old: Hypothesis, new: Hypothesis, step: str) -> bool:
        """Whether a pair of slips makes the description shorter, and not by chance."""
        if new.bits >= old.bits:
            return False
        tried = bits_of_pair([found.slip.cost for found in new.findings[len(old.findings) :]])
        return self.missing_bits(old, new, step, tried) <= 0

    def without_chance_fits(
        self, hypothesis: Hypothesis, found: Iterable[Hypothesis], trials: Trials, step: str
    ) -> Iterator[Hypothesis]:
        """Those of the hypotheses with one slip more that do not fit by chance; others are kept as possible."""
        several = any(f.step == step and not f.slip.single for f in hypothesis.findings)
        for new in found:
            slip, solved = new.findings[-1].slip, self.solved(hypothesis, new, step)
            if not solved.any():
                yield new
                continue
            free = float(self.information[step][solved].max()) if slip.solved else math.inf
            tried = trials.bits(slip.cost, solved, free) + slip.free + EACH_MORE * several
            wrong = int((hypothesis.matches[step] == WRONG).sum())
            tried += math.log2(wrong / int(solved.sum()))  # other numbers may have fitted instead
            missing = self.missing_bits(hypothesis, new, step, tried)
            if missing > 0 and step not in slip.changes:
                missing -= self.confirmed_elsewhere(hypothesis, new, step)
            if missing <= 0:
                yield new
            elif (
                missing <= POSSIBLE
                and (slip.solved or slip.cost <= POSSIBLE_COST)
                and not several
                and not _unexplained(new, step)
            ):
                self.possible.setdefault(step, {}).setdefault(slip.name, slip.cost)

    def solved(self, old: Hypothesis, new: Hypothesis, step: str) -> Array:
        return (old.matches[step] == WRONG) & (new.matches[step] != WRONG)

    def missing_bits(self, old: Hypothesis, new: Hypothesis, step: str, tried: float) -> float:
        """How many more bits the numbers that new slips explain would have to tell, so that they may be stated."""
        solved = self.solved(old, new, step)
        if not solved.any():
            return 0.0
        return tried + CONFIDENCE - self.told_bits(old, new, step)

    def told_bits(self, old: Hypothesis, new: Hypothesis, step: str) -> float:
        """The bits that the numbers of a step tell which new slips explain."""
        solved = self.solved(old, new, step)
        tolerance = np.where(solved, 0.0, self.tolerance)
        before, after = (self.cell_costs(step, h.matches[step], h.predictions[step], tolerance) for h in (old, new))
        closer = np.where(old.matches[step] == WRONG, 0.0, np.maximum(before - after, 0.0)).sum()
        after += new.matches[step] > CORRECTED  # a little more or less than predicted
        return evidence(self.written[step], solved, self.information[step] - after) + float(closer)

    def confirmed_elsewhere(self, old: Hypothesis, new: Hypothesis, step: str) -> float:
        """The bits told by other steps that the last slip explains as well, as one entry does that several steps read.

        A step counts only if its numbers did not follow from those written before it, and all do with the slip.
        """
        finished = self.finish(new.copy())
        if finished is None:
            return 0.0
        bits = 0.0
        for name in self.written:
            if name == step or not _unexplained(old, name):
                continue
            if not _unexplained(finished, name):
                bits += self.told_bits(old, finished, name)
        return bits

    def pairs(self, hypothesis: Hypothesis, step: str, cone: list[str]) -> Iterator[Hypothesis]:
        """Two common slips together."""
        first = sorted(self.single_slips(hypothesis, step, cone, common=True), key=lambda slip: slip.cost)
        for index, slip in enumerate(first):
            if self.evaluations > MAX_EVALUATIONS:
                return
            one = self.with_slip(hypothesis, slip, step, step)
            if one is None or not one.findings[-1].cells:
                continue
            for other in first[index + 1 :]:
                (name,), (before,) = other.changes, slip.changes
                if name == before:
                    continue
                two = self.with_slip(one, other, step, step)
                if two is not None and two.findings[-1].cells and self.is_better(hypothesis, two, step):
                    yield two
            for other in self.same_step_slips(one, slip):
                two = self.with_slip(one, other, step, step)
                if two is not None and two.findings[-1].cells and self.is_better(hypothesis, two, step):
                    yield two

    def same_step_slips(self, one: Hypothesis, slip: Slip) -> Iterator[Slip]:
        """More common slips in a formula that has one already."""
        (name,) = slip.changes
        for other in formula_slips(Context(name, self.problem, one.formulas, one.values)):
            if other.cost <= COMMON and other.cost >= slip.cost - 1 and not other.rounding:
                yield other


def _is_exact(sheet: WrittenStep, prediction: Array) -> bool:
    """Whether no digits were dropped in a step."""
    return not sheet.unit.any() or bool(np.allclose(prediction[0], sheet.values, rtol=1e-9, atol=1e-12))


def _unexplained(hypothesis: Hypothesis, step: str) -> bool:
    return bool((hypothesis.matches[step] == WRONG).any())


def _best_different(found: list[Hypothesis], settled: Hypothesis) -> list[Hypothesis]:
    """The best few with different slips, and `settled`, the one without further ones."""
    best: dict[frozenset[str], Hypothesis] = {}
    for hypothesis in sorted(found, key=lambda h: h.bits):
        key = frozenset(f"{f.slip.name} {f.step} {sorted(f.cells)}" for f in hypothesis.findings) | hypothesis.settled
        best.setdefault(key, hypothesis)
    few = list(best.values())[:BEAM]
    return few if any(hypothesis is settled for hypothesis in few) else [*few, settled]
