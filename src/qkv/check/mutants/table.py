"""The walk through the zoo as a table: which check catches which mutant, and what it is named."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from qkv.check.finding import Report
from qkv.check.mutants.mutant import Mutant

Rows = Sequence[tuple[Mutant, Report]]

# checks that say one thing in several ways stand in one column
GROUPS = {
    "who sees whom": ("causal", "past reachable", "kind", "layers", "order"),
    "length": ("truncation",),
    "weights": ("rows sum to one", "softmax", "formula"),
    "scale": ("scale",),
    "heads": ("heads", "head independence", "grouped heads"),
    "positions": ("rotary", "relative positions", "long positions", "positions in scores only", "alibi"),
    "mask": ("mask polarity", "alignment", "mask, more keys", "fully masked row", "fully padded row"),
    "padding": ("padding",),
    "cache": ("cache",),
    "batch": ("batch",),
    "steady": ("steady in eval", "inputs not mutated", "finite", "dtype"),
    "paths": ("paths agree", "saved and loaded"),
    "gradient": ("gradient", "parameters reached"),
    "like": ("like",),
    "training": ("loss", "accumulation", "partial window", "split", "packing"),
}


def group_of(check: str) -> str:
    """The column that a check stands in."""
    for group, names in GROUPS.items():
        if check in names:
            return group
    return next(group for group, names in GROUPS.items() if any(check.startswith(name) for name in names))


def right(mutant: Mutant, report: Report) -> bool:
    """Whether the likeliest cause that the report names is of the mutant's family."""
    return report.diagnosis is not None and report.diagnosis.family == mutant.family


def summary(rows: Rows) -> str:
    """How many are caught, and how many are named rightly."""
    caught = sum(not report.ok for _, report in rows)
    named = sum(right(mutant, report) for mutant, report in rows)
    return f"{caught} of {len(rows)} mutants are caught, {named} named as what they are ({named / len(rows):.0%})"


def as_dicts(rows: Rows) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "name": mutant.name,
            "family": mutant.family,
            "contract": str(mutant.contract),
            "caught": not report.ok,
            "by": [finding.check for finding in report.failed],
            "named": None if report.diagnosis is None else report.diagnosis.family,
        }
        for mutant, report in rows
    ]


def as_page(rows: Rows) -> str:
    """The page docs/zoo.md."""
    columns = [group for group in GROUPS if any(group_of(f.check) == group for _, r in rows for f in r.failed)]
    lines = [
        "# The zoo",
        "",
        "Implementations with one known mistake each, what was promised of them, and the checks that catch it.",
        "This page is printed by `qkv check --zoo --matrix`; a test keeps it in step.",
        "",
        f"{summary(rows)}.",
        "",
        "| mutant | promised | named as | " + " | ".join(columns) + " |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for mutant, report in rows:
        failed = {group_of(finding.check) for finding in report.failed}
        cells = " | ".join("✗" if group in failed else "" for group in columns)
        named = "—" if report.diagnosis is None else report.diagnosis.family
        named = named if right(mutant, report) else f"{named} (is: {mutant.family})"
        promised = str(mutant.contract) + (", like a reference" if mutant.like else "")
        lines.append(f"| {mutant.name} | {promised} | {named} | {cells} |")
    counts = Counter(mutant.family for mutant, _ in rows)
    families = ", ".join(f"{family} {count}" for family, count in sorted(counts.items()))
    lines += [
        "",
        f"Families: {families}.",
        "",
        "Columns: " + "; ".join(f"{g}: {', '.join(GROUPS[g])}" for g in columns) + ".",
    ]
    return "\n".join(lines) + "\n"
