"""Tasks that run in worker processes: one check, one claim, samples of a run's newest checkpoint.

`qkv._workers.Worker` calls each as `task(request, send)`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qkv._figures import draw_svg
from qkv.check import Contract, Report
from qkv.check import run as check
from qkv.check.mutants import MUTANTS, check_mutant
from qkv.check.render import SIGNS, VERDICT_ORDER, html_page, state_of
from qkv.claims import ClaimResult
from qkv.claims import run as run_experiment
from qkv.claims.mutants import wrong_implementation
from qkv.claims.report import PARTS, VERDICTS, format_number
from qkv.studio.run_files import FileStamp, file_stamp
from qkv.training import load_checkpoint, open_run
from qkv.training.checkpointing import CheckpointStore
from qkv.training.recipes import get_recipe
from qkv.training.recipes.definition import Task
from qkv.training.runs import RECIPE_FILE

OUTCOMES = {True: "yes", False: "no", None: "cannot tell"}
Send = Callable[..., None]

_tasks: dict[tuple[str, FileStamp], Task] = {}  # the built task of the last run, because its data takes long to read


def run_check(request: dict[str, Any], send: Send) -> None:
    """Check a mutant or a target and send the report."""
    if request.get("mutant"):
        mutant = MUTANTS[request["mutant"]]
        report, source = check_mutant(mutant), mutant.source[2].strip()
    else:
        report = check(
            request["target"],
            Contract(**request["contract"]),
            arguments=request["arguments"],
            call=request["call"] or None,
            like=request["like"] or None,
        )
        source = ""
    send(report={**_report_json(report), "source": source})


def run_claim(request: dict[str, Any], send: Send) -> None:
    """Run a claim: send notes, then the result, then its figure as one SVG per panel."""
    parts = wrong_implementation(request["mutant"]) if request["mutant"] else {}
    result = run_experiment(
        request["name"], request["seed"], progress=lambda text: send(note=text), **parts, **request["knobs"]
    )
    send(result=_result_json(result))
    send(figures=[draw_svg((panel,), name=f"{result.name}-{i}") for i, panel in enumerate(result.panels)])


def sample_checkpoint(request: dict[str, Any], send: Send) -> None:
    """Send stage, step and sample rows of the newest checkpoint of a run that can be read."""
    torch.set_num_threads(1)  # the other threads belong to the run
    folder = Path(request["folder"])
    key = str(folder), file_stamp(folder / RECIPE_FILE)
    if key not in _tasks:
        _tasks.clear()
        config = open_run(folder).config
        _tasks[key] = get_recipe(config.recipe).build(config, None)
    task = _tasks[key]
    for stage in reversed(task.stages):
        store = CheckpointStore(task.stage_folder(folder, stage))
        for step in reversed(store.steps()):
            try:
                model = load_checkpoint(store.path(step))
            except (ValueError, OSError):  # it was replaced by a newer one, or is incomplete
                continue
            send(stage=stage.name, step=step, samples=task.samples(model.eval()))
            return
    raise ValueError("this run has no checkpoint yet")


def _report_json(report: Report) -> dict[str, Any]:
    """The report as the page reads it, the most serious findings first."""
    findings = sorted(report.findings, key=lambda finding: VERDICT_ORDER.index(finding.verdict))
    return {
        "target": report.target,
        "ok": report.ok,
        "state": state_of(report),
        "kind": report.kind,
        "how": report.how,
        "contract": str(report.contract),
        "findings": [
            {
                "check": finding.check,
                "verdict": finding.verdict,
                "sign": SIGNS[finding.verdict],
                "score": None if finding.score is None else repr(float(finding.score)),
                "score_text": "" if finding.score is None else f"{finding.score:.2g}",
                "evidence": f"{finding.evidence} [{finding.shapes}]" if finding.shapes else finding.evidence,
                "hint": finding.hint or "",
            }
            for finding in findings
        ],
        "diagnosis": "" if report.diagnosis is None else report.diagnosis.hint,
        "line": "" if report.diagnosis is None else report.diagnosis.line,
        "hints": list(dict.fromkeys(finding.hint for finding in report.failed if finding.hint)),
        "influence": [[float(effect) for effect in row] for row in report.influence],
        "html": html_page(report),
    }


def _result_json(result: ClaimResult) -> dict[str, Any]:
    """The result as the page reads it; numbers as texts, rounded as in the library and with all digits."""
    return {
        "name": result.name,
        "verdict": result.verdict,
        "verdict_text": VERDICTS[result.verdict],
        "expected": result.expected,
        "expected_text": VERDICTS[result.expected],
        "condition": result.condition,
        "caption": result.figure,  # with the figures of this run; the claim's own caption is the one before a run
        "seed": result.seed,
        "seconds": round(result.seconds, 3),
        "knobs": result.knobs,
        "numbers": [
            {"name": name, "text": format_number(number), **_all_digits(number)}
            for name, number in result.numbers.items()
        ],
        "predicates": [
            {
                "part": PARTS[predicate.part],
                "name": predicate.name,
                "measured": f"{predicate.value:.4g}",
                "bound": predicate.bound,
                "outcome": OUTCOMES[predicate.ok],
                "as_expected": predicate.as_expected,
            }
            for predicate in result.predicates
        ],
    }


def _all_digits(number: Any) -> dict[str, str]:
    if isinstance(number, dict):
        return {name: repr(value) for name, value in number.items()}
    return {"value": repr(number)}
