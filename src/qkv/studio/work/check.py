"""One check, in a process of its own: the report as data, and as the page that `qkv check --html` writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.check import Contract, Report, run
from qkv.check.mutants import MUTANTS, checked
from qkv.check.page import ORDER, SIGNS, page


def work(request: dict[str, Any], say: Callable[..., None]) -> None:
    """Says the report."""
    if request.get("mutant"):
        mutant = MUTANTS[request["mutant"]]
        report, source = checked(mutant), mutant.source[2].strip()
    else:
        report = run(
            request["target"],
            Contract(**request["contract"]),
            arguments=request["arguments"],
            call=request["call"] or None,
            like=request["like"] or None,
        )
        source = ""
    say(report={**plain(report), "source": source})


def plain(report: Report) -> dict[str, Any]:
    """What the page shows, the findings in the order of their weight."""
    findings = sorted(report.findings, key=lambda finding: ORDER.index(finding.verdict))
    return {
        "target": report.target,
        "ok": report.ok,
        "kind": report.kind,
        "how": report.how,
        "contract": str(report.contract),
        "findings": [
            {
                "check": finding.check,
                "verdict": finding.verdict,
                "sign": SIGNS[finding.verdict],
                "score": None if finding.score is None else repr(float(finding.score)),
                "shown": "" if finding.score is None else f"{finding.score:.2g}",
                "evidence": finding.evidence,
                "hint": finding.hint or "",
            }
            for finding in findings
        ],
        "diagnosis": "" if report.diagnosis is None else report.diagnosis.hint,
        "hints": list(dict.fromkeys(finding.hint for finding in report.failed if finding.hint)),
        "influence": [[float(move) for move in row] for row in report.influence],
        "page": page(report),
    }
