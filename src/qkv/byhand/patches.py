"""Each wrong number of a step explained on its own: slips in single numbers, and numbers that nothing explains."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.cell_slips import NOT_IDENTIFIED, OFF_BY, CellContext, CellSlip, Place, is_chance, likely_cell_slips
from qkv.byhand.chance import rows_that_add_up
from qkv.byhand.expressions import Array
from qkv.byhand.hypotheses import WRONG, Finding, Hypothesis, Predictor
from qkv.byhand.sheet import WrittenStep
from qkv.byhand.slip_rules import formula_slips
from qkv.byhand.slips import Context, Slip
from qkv.byhand.worlds import MIXED, WORLDS

EXCHANGED = 7.5  # bits for two numbers in each other's place
CERTAIN = 4.0  # bits: a slip in one number up to this cost is named also among numbers that no slip explains
TELLING = 6.0  # bits of a number that can confirm such a slip
MAX_EXPLANATIONS = 2  # different slips in single numbers of one step; more would fit by chance
MAX_PATCHES = 4  # wrong numbers of a step that are compared with slips in its formula


class Patcher(Predictor):
    """Explains the wrong numbers of one step one by one."""

    def patch(self, hypothesis: Hypothesis, step: str) -> Hypothesis:
        """Take each wrong number as a slip of its own."""
        sheet, naming = self.written[step], self.naming(step)
        wrong = [(int(h), int(r), int(c)) for h, r, c in np.argwhere(hypothesis.matches[step] == WRONG)]
        hidden = {name: hypothesis.formulas[name] for name in self.problem.steps if name not in self.written}
        contexts = []
        slips = self.common_slips(hypothesis, step) if len(wrong) <= MAX_PATCHES else []
        for world in (0, 1):
            own = {
                name: value[world : world + 1] if len(value) > 1 else value for name, value in hypothesis.values.items()
            }
            prediction = hypothesis.predictions[step][world]
            others = tuple(_predict_others(slips, step, own, prediction.shape))
            contexts.append(CellContext(hypothesis.formulas[step], hidden, own, prediction, naming.columns, others))
        new = hypothesis
        exchanged = _exchanged_pairs(wrong, sheet, hypothesis.predictions[step])
        bits = self.information[step]
        names = {
            place: likely_cell_slips(
                contexts, place, *sheet.number(place), "/" not in sheet.text(*place), float(bits[place])
            )
            for place in wrong
        }
        adds_up = rows_that_add_up(sheet)
        for place in wrong:  # two wrong numbers of a row that adds up are no two slips
            if adds_up[place[:2]] and sum(other[:2] == place[:2] for other in wrong) > 1:
                names[place] = []
        if len(wrong) > 1:
            names = self.without_chance(hypothesis, step, names, exchanged)
        unknown = [place for place, slips in names.items() if not _is_known(slips) and place not in exchanged]
        if len(unknown) > 1:
            exchanged = {}  # some pair of several wrong numbers may fit by chance
        if 1 < len(unknown) >= len(wrong) - len(unknown):  # then others fit by chance
            names = {
                place: [s for s in slips if slips[0].cost <= CERTAIN and bits[place] > TELLING]
                for place, slips in names.items()
            }
        elif not self.is_alone(hypothesis, step, unknown):
            names = {place: slips if _is_known(slips) else [] for place, slips in names.items()}
        for place in wrong:
            if exchanged.get(place, place) >= place:  # else it was named with its partner
                slip = self.cell_slip(new, step, place, exchanged.get(place), names.get(place, []))
                cells = frozenset({place, exchanged.get(place, place)})
                found = Finding(slip, step, cells, hypothesis.predictions[step][0])
                new = replace(new, formulas={**new.formulas, **slip.changes}, findings=(*new.findings, found))
        return self.finish(new.copy()) or hypothesis

    def common_slips(self, hypothesis: Hypothesis, step: str) -> list[Slip]:
        """Slips in the formula of a step that a person may well make in a single number."""
        slips = formula_slips(Context(step, self.problem, hypothesis.formulas, hypothesis.values))
        return [s for s in slips if s.cost <= CERTAIN and not s.rounding and s.scope in ("cells", "rows")]

    def without_chance(
        self,
        hypothesis: Hypothesis,
        step: str,
        names: Mapping[Place, list[CellSlip]],
        exchanged: Collection[Place],
    ) -> dict[Place, list[CellSlip]]:
        """Slips in several numbers of one step without those that may fit by chance.

        Numbers that each need an explanation of their own have a common cause that is not known.
        """
        bits = self.information[step]
        likely = {
            place: slips if slips and not is_chance(slips[0].cost, float(bits[place])) else []
            for place, slips in names.items()
        }
        known = [slips[0] for place, slips in likely.items() if _is_known(slips) and place not in exchanged]
        formulas = sum(f.step == step and not f.slip.single and not f.slip.rounding for f in hypothesis.findings)
        families = {slip.family for slip in known}
        different = {slip.name for slip in known}
        digits = [place for place, slips in likely.items() if slips and slips[0].family == "digits"]
        if len(digits) > MAX_EXPLANATIONS:  # so many wrong digits are no explanation
            likely |= {place: [] for place in digits}
        most = 2 * len(names) >= self.written[step].values.size
        unknown = any(not _is_known(slips) for place, slips in likely.items() if place not in exchanged)
        explanations = len(families) + formulas + unknown
        single = len(families) == 1 and not most  # the same slip in several numbers
        if len(names) > 2 and (explanations > MAX_EXPLANATIONS or (len(different) > MAX_EXPLANATIONS and not single)):
            return {
                place: [s for s in slips if slips[0].cost <= CERTAIN and bits[place] > TELLING]
                for place, slips in likely.items()
            }
        return likely

    def is_alone(self, hypothesis: Hypothesis, step: str, unknown: list[Place]) -> bool:
        """Whether a step has one number that nothing explains, and no slip in its formula."""
        return len(unknown) < 2 and not any(f.step == step and not f.slip.single for f in hypothesis.findings)

    def cell_slip(
        self, hypothesis: Hypothesis, step: str, place: Place, partner: Place | None, likely: list[CellSlip]
    ) -> Slip:
        """The slip in one number, or in two that are exchanged."""
        formula, naming = hypothesis.formulas[step], self.naming(step)
        if partner is not None:
            name = f"{naming(place)} and {naming(partner)} are exchanged"
            return Slip(name, EXCHANGED, {step: ex.exchanged(formula, place, partner)}, single=True)
        if not likely:
            value, unit = self.written[step].number(place)
            unrounded = np.full(WORLDS, value)  # what the person may have continued with
            unrounded[3:MIXED] += unit * np.array([0.5, -0.5, 0.25])
            changes = {step: ex.patched(formula, place, unrounded if unit else value)}
            return Slip(NOT_IDENTIFIED, float(self.bits[step][place]), changes, single=True)
        best, *others = likely
        changes = {step: ex.patched(formula, place, best.value)}
        cost = min(best.cost, float(self.bits[step][place]) - 0.1)
        return Slip(best.name, cost, changes, alternatives=tuple(slip.name for slip in others), single=True)


def _predict_others(
    slips: Iterable[Slip], step: str, values: Mapping[str, Array], shape: tuple[int, ...]
) -> Iterator[tuple[str, float, Array]]:
    """The step with each slip, if the shapes fit."""
    for slip in slips:
        try:
            found = ex.evaluate(slip.changes[step], values)[0]
        except ValueError:
            continue
        if found.shape == shape:
            yield slip.name, slip.cost, found


def _is_known(slips: list[CellSlip]) -> bool:
    return bool(slips) and slips[0].family != OFF_BY


def _exchanged_pairs(wrong: list[Place], sheet: WrittenStep, prediction: Array) -> dict[Place, Place]:
    """Pairs of wrong numbers that are each other's right ones, computed from unrounded or from written numbers."""
    found: dict[Place, Place] = {}
    for (a, b), right in itertools.product(itertools.combinations(wrong, 2), prediction[:2]):
        near = sheet.unit[a] / 2 + 1e-9, sheet.unit[b] / 2 + 1e-9
        if abs(sheet.values[a] - right[b]) <= near[0] and abs(sheet.values[b] - right[a]) <= near[1]:
            found[a], found[b] = b, a
    return found
