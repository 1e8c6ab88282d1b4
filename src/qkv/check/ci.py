"""Reports for CI: JUnit XML for test servers, and SARIF 2.1.0 for code scanning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from qkv.check.catalog import PAGE, find_case, find_id, list_checks
from qkv.check.report import Finding, Report

SKIPPED = ("n/a", "inconclusive")
LEVELS = {"fail": "error", "warn": "warning"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def junit_xml(report: Report) -> str:
    """One test case for each finding, named by its id; a failure carries its evidence and its hint."""
    untested = [("promise", missing) for missing in report.unproven]
    suite = ElementTree.Element(
        "testsuite",
        name=f"qkv check {report.target}",
        tests=str(len(report.findings) + len(untested)),
        failures=str(len(report.failed) + len(untested)),
        skipped=str(sum(finding.verdict in SKIPPED for finding in report.findings)),
    )
    for finding in report.findings:
        case = ElementTree.SubElement(suite, "testcase", classname=report.target, name=find_case(finding.check))
        if finding.verdict == "fail":
            failure = ElementTree.SubElement(case, "failure", message=finding.evidence, type=find_id(finding.check))
            failure.text = finding.hint or ""
        elif finding.verdict in SKIPPED:
            ElementTree.SubElement(case, "skipped", message=finding.evidence)
    for name, missing in untested:
        case = ElementTree.SubElement(suite, "testcase", classname=report.target, name=name)
        ElementTree.SubElement(case, "failure", message=f"not tested: {missing}")
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def sarif_json(report: Report, target: str) -> str:
    """Failures and warnings as results of SARIF 2.1.0, at the line of the target's file that is at fault."""
    from qkv import __version__

    found = [finding for finding in report.findings if finding.verdict in LEVELS]
    rules = {find_id(finding.check): _rule(find_id(finding.check)) for finding in found}
    results: list[dict[str, Any]] = [_result(report, finding, target) for finding in found]
    if report.unproven:
        rules["promise"] = {"id": "promise", "shortDescription": {"text": "every required property is tested"}}
    results += [
        {
            "ruleId": "promise",
            "level": "error",
            "message": {"text": f"not tested: {missing}"},
            "locations": [_location(target, "")],
        }
        for missing in report.unproven
    ]
    driver = {"name": "qkv check", "version": __version__, "rules": list(rules.values())}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    info = list_checks().get(rule)
    meaning = "; ".join(info.meanings) if info is not None else rule
    return {
        "id": rule,
        "name": rule.title().replace("-", ""),
        "shortDescription": {"text": meaning},
        "help": {"text": f"{meaning}. See {PAGE}#{rule}."},
    }


def _result(report: Report, finding: Finding, target: str) -> dict[str, Any]:
    cause = report.diagnosis
    explains = cause is not None and finding.hint is not None and finding.hint.endswith(cause.hint)
    hint = f"\n{finding.hint}" if finding.hint else ""
    return {
        "ruleId": find_id(finding.check),
        "level": LEVELS[finding.verdict],
        "message": {"text": f"{finding.check}: {finding.evidence}{hint}"},
        "locations": [_location(target, cause.line if explains and cause is not None else "")],
        "partialFingerprints": {"qkvCheck": f"{target}#{find_case(finding.check)}"},
    }


def _location(target: str, line: str) -> dict[str, Any]:
    """The file of the target, at the line of the diagnosis or where the target is defined."""
    where, _, name = target.rpartition(":")
    if not where.endswith(".py"):
        return {"logicalLocations": [{"fullyQualifiedName": target}]}
    file, _, rest = line.partition(":")
    number = rest.partition(":")[0]
    start = int(number) if file == Path(where).name and number.isdigit() else _definition_line(where, name)
    path = Path(where)
    uri = path.as_uri() if path.is_absolute() else path.as_posix()
    physical = {"artifactLocation": {"uri": uri}, "region": {"startLine": start}}
    return {"physicalLocation": physical, "logicalLocations": [{"fullyQualifiedName": name}]}


def _definition_line(file: str, name: str) -> int:
    """The line on which a class or function is defined; 1 if it cannot be found."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return 1
    last = name.rpartition(".")[2]
    starts = (f"class {last}", f"def {last}", f"{last} =", f"async def {last}")
    return next((number for number, line in enumerate(lines, 1) if line.lstrip().startswith(starts)), 1)
