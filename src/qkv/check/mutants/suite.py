"""Registry of the mutant suite: look mutants up, check them, and print which check catches which mutant."""

import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.check.contract import Contract
from qkv.check.report import BUG_FAMILIES, Report
from qkv.check.run import run


@dataclass(frozen=True)
class Mutant:
    """An implementation with one known mistake, and the contract that it breaks.

    name: what is wrong, in words. family: the cause that a diagnosis should name. make: builds the implementation.
    reference: builds the right implementation, where only a comparison with it shows the mistake. style: how it is
    written. size: when the mistake appears.
    """

    name: str
    family: str
    contract: Contract
    make: Callable[[], Any]
    reference: Callable[[], Any] | None = None
    style: str = "by hand"
    size: str = "always"

    @property
    def right_families(self) -> tuple[str, ...]:
        """The families that a diagnosis may name."""
        return (self.family,)

    @property
    def source(self) -> tuple[str, int, str]:
        """Its file, its line, and its code."""
        made = inspect.unwrap(self.make)
        lines, first = inspect.getsourcelines(made)
        return inspect.getsourcefile(made) or "", first, "".join(lines)


MUTANTS: dict[str, Mutant] = {}
Results = Sequence[tuple[Mutant, Report]]


def mutant(
    name: str, family: str, contract: Contract, reference: Callable[[], Any] | None = None
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorator: register an implementation as a mutant."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        if family not in BUG_FAMILIES:
            raise ValueError(f"unknown family {family!r} of the mutant {name!r}")
        if name in MUTANTS:
            raise ValueError(f"there are two mutants called {name!r}")
        MUTANTS[name] = Mutant(name, family, contract, make, reference)
        return make

    return register


def find_mutant(name: str) -> Mutant:
    """Return the mutant of that name; a ValueError names the nearest.

    >>> find_mutant("mask strict").family
    'mask off by one'
    """
    if name in MUTANTS:
        return MUTANTS[name]
    from qkv.check.mutants.generated import generate_mutants  # it needs Mutant

    generated = {mutant.name: mutant for mutant in generate_mutants()}
    if name in generated:
        return generated[name]
    close = difflib.get_close_matches(name, MUTANTS, n=3) or [other for other in MUTANTS if name in other][:3]
    suggestion = f"did you mean {' or '.join(close)}?" if close else "docs/mutants.md lists them"
    raise ValueError(f"there is no mutant {name!r}; {suggestion}")


def check_mutant(mutant: Mutant) -> Report:
    """Check one mutant under the contract that it breaks, and against its reference if it has one."""
    return run(mutant.make(), mutant.contract, like=None if mutant.reference is None else mutant.reference())


def check_all_mutants(mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, Report]]:
    """Check mutants, each under the contract that it breaks."""
    for mutant in mutants:
        yield mutant, check_mutant(mutant)


# columns of the table: checks that test the same thing share one; any other check has its own
COLUMNS = {
    "influence": ("causal", "past reachable", "kind", "layers", "order"),
    "length": ("truncation",),
    "weights": ("rows sum to one", "softmax", "formula"),
    "scale": ("scale",),
    "heads": ("heads", "head independence", "grouped heads"),
    "positions": ("rotary", "relative positions", "long positions", "positions in scores only", "alibi"),
    "mask": (
        "mask polarity",
        "alignment",
        "mask, more keys",
        "mask, large scores",
        "mask in rows",
        "fully masked row",
        "fully padded row",
    ),
    "padding": ("padding",),
    "cache": ("cache",),
    "batch": ("batch",),
    "deterministic": ("deterministic in eval", "inputs not mutated", "finite", "dtype"),
    "paths": ("paths agree", "saved and loaded", "context", "returned weights"),
    "gradient": ("gradient", "parameters reached"),
    "like": ("like",),
    "training": ("loss", "accumulation", "partial window", "split", "packing"),
}


def column_of(check: str) -> str:
    """The column of the table that a check belongs to."""
    for column, checks in COLUMNS.items():
        if check in checks:
            return column
    shared = (column for column, checks in COLUMNS.items() if any(check.startswith(name) for name in checks))
    return next(shared, check)


def is_diagnosed(mutant: Mutant, report: Report) -> bool:
    """Whether the likeliest cause that the report names is right."""
    return report.diagnosis is not None and report.diagnosis.family in mutant.right_families


def summarize(results: Results) -> str:
    """How many mutants are caught, and how many get the right diagnosis."""
    caught = sum(not report.ok for _, report in results)
    diagnosed = sum(is_diagnosed(mutant, report) for mutant, report in results)
    share, wrong = diagnosed / len(results), len(wrong_names(results))
    named = f"{diagnosed} get the right diagnosis ({share:.0%}), {wrong} an exact one that is wrong"
    return f"{caught} of {len(results)} mutants are caught, {named}"


def count_by(results: Results, by: str) -> dict[str, tuple[int, int, int]]:
    """For each family, style or size: how many mutants there are, how many are caught, and how many named."""
    counts: dict[str, tuple[int, int, int]] = {}
    for mutant, report in results:
        key = getattr(mutant, by)
        total, caught, named = counts.get(key, (0, 0, 0))
        counts[key] = (total + 1, caught + (not report.ok), named + is_diagnosed(mutant, report))
    return dict(sorted(counts.items()))


def wrong_names(results: Results) -> list[tuple[Mutant, Report]]:
    """The mutants that get an exact diagnosis of another family."""
    return [
        (mutant, report)
        for mutant, report in results
        if report.diagnosis is not None and report.diagnosis.exact and not is_diagnosed(mutant, report)
    ]


def as_dicts(results: Results) -> list[dict[str, Any]]:
    """The results as JSON objects."""
    return [
        {
            "name": mutant.name,
            "family": mutant.family,
            "style": mutant.style,
            "size": mutant.size,
            "contract": str(mutant.contract),
            "caught": not report.ok,
            "by": [finding.check for finding in report.failed],
            "diagnosis": None if report.diagnosis is None else report.diagnosis.family,
        }
        for mutant, report in results
    ]


def as_markdown(results: Results) -> str:
    """The page docs/mutants.md."""
    used = {column_of(finding.check) for _, report in results for finding in report.failed}
    columns = [column for column in COLUMNS if column in used] + sorted(used - set(COLUMNS))
    lines = [
        "# The mutant suite",
        "",
        "Implementations with one known mistake each, the contract of each, and the checks that catch it.",
        "`qkv mutants --markdown` prints this page, and a test keeps it up to date.",
        "`qkv mutants NAME` shows the code of one mutant and the findings that catch it.",
        "",
        "Below are the mutants written by hand. Most are generated: `qkv mutants` combines bugs, coding styles and the",
        "sizes at which a bug appears, and counts what is caught and named by family, style and size.",
        "",
        f"{summarize(results)}.",
        "",
        "| mutant | contract | diagnosis | " + " | ".join(columns) + " |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for mutant, report in results:
        failed = {column_of(finding.check) for finding in report.failed}
        cells = " | ".join("✗" if column in failed else "" for column in columns)
        diagnosis = "—" if report.diagnosis is None else report.diagnosis.family
        if not is_diagnosed(mutant, report):
            diagnosis = f"{diagnosis} (is: {mutant.family})"
        contract = str(mutant.contract) + (", like a reference" if mutant.reference else "")
        lines.append(f"| {mutant.name} | {contract} | {diagnosis} | {cells} |")
    counts = Counter(mutant.family for mutant, _ in results)
    families = ", ".join(f"{family} {count}" for family, count in sorted(counts.items()))
    legend = "; ".join(f"{column}: {', '.join(COLUMNS.get(column, (column,)))}" for column in columns)
    lines += ["", f"Families: {families}.", "", f"Columns: {legend}."]
    return "\n".join(lines) + "\n"
