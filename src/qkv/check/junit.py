"""A report as JUnit XML, which every CI server reads."""

from xml.etree import ElementTree

from qkv.check.finding import Report


def junit(report: Report) -> str:
    """One test case for each finding; a failure carries its evidence and its hint."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"qkv check {report.target}",
        tests=str(len(report.findings)),
        failures=str(len(report.failed)),
        skipped=str(sum(finding.verdict in ("n/a", "inconclusive") for finding in report.findings)),
    )
    for finding in report.findings:
        case = ElementTree.SubElement(suite, "testcase", classname=report.target, name=finding.check)
        if finding.verdict == "fail":
            failure = ElementTree.SubElement(case, "failure", message=finding.evidence)
            failure.text = finding.hint or ""
        elif finding.verdict in ("n/a", "inconclusive"):
            ElementTree.SubElement(case, "skipped", message=finding.evidence)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
