"""Check ids, their page, SARIF, JUnit, the allow-list, the GitHub Action and the pre-commit hook."""

import json
import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv.check import Contract, Finding, Report
from qkv.check.allow_list import apply_allow_list, read_allow_list
from qkv.check.catalog import checks_page, find_case, find_id, list_checks
from qkv.check.ci import junit_xml
from qkv.cli.main import run as command

ROOT = Path(__file__).parents[2]
LEAKY = """import torch

def attention(q, k, v, is_causal=False):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v
"""
# ids that other people's files and dashboards name: add to them, do not change them
STABLE = {
    "causal", "past-reachable", "kind", "deterministic-in-eval", "inputs-not-mutated", "batch", "finite", "paths-agree",
    "truncation", "padding-content", "padding-removed", "fully-padded-row", "cache", "rows-sum-to-one", "scale",
    "head-independence", "dtype", "alignment", "grouped-heads", "formula", "softmax", "heads", "rotary",
    "relative-positions", "long-positions", "alibi", "saved-and-loaded", "mask-polarity", "fully-masked-row",
    "mask-more-keys", "loss-alignment", "packing", "gradient", "parameters-reached", "like", "accumulation",
    "split-is-disjoint", "cross-attention", "source",
}  # fmt: skip


@pytest.fixture
def leaky(tmp_path):
    file = tmp_path / "leaky.py"
    file.write_text(LEAKY)
    return f"{file}:attention"


def test_list_checks_keeps_every_id_that_was_published():
    assert set(list_checks()) >= STABLE
    assert all(re.fullmatch(r"[a-z0-9-]+", key) for key in list_checks())


def test_docs_checks_md_is_what_the_registry_says():
    assert (ROOT / "docs" / "checks.md").read_text(encoding="utf-8") == checks_page(), "run: make generated"


def test_find_id_gives_each_finding_of_a_run_a_documented_id(leaky, capsys):
    command(["check", leaky, "--contract", "textbook", "--json"])
    names = [finding["check"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert {find_id(name) for name in names} <= set(list_checks())
    assert len({find_case(name) for name in names}) == len(set(names))


def test_check_writes_sarif_with_the_required_structure_and_the_line_at_fault(leaky, tmp_path):
    file = tmp_path / "out.sarif"
    assert command(["check", leaky, "--contract", "textbook", "--sarif", str(file)]) == 1
    log = json.loads(file.read_text(encoding="utf-8"))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    rules = {rule["id"] for rule in driver["rules"]}
    assert driver["name"] == "qkv check" and rules <= set(list_checks())
    assert run["results"]
    for result in run["results"]:
        assert result["ruleId"] in rules and result["level"] in ("error", "warning") and result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].endswith("leaky.py") and place["region"]["startLine"] >= 1
    causal = next(result for result in run["results"] if result["ruleId"] == "causal")
    assert causal["locations"][0]["physicalLocation"]["region"]["startLine"] == 5  # the softmax without a mask


def test_junit_xml_names_test_cases_by_id_and_fails_for_promises_that_were_not_tested():
    report = Report("x", "", "", Contract(cache=True), (Finding("padding content (left)", "fail", 1.0, "seen"),))
    suite = ElementTree.fromstring(junit_xml(report).partition("\n")[2])
    assert [case.attrib["name"] for case in suite] == ["padding-content[left]", "promise"]
    assert suite.attrib["failures"] == "2"


def allow(tmp_path, text):
    file = tmp_path / "allow.toml"
    file.write_text(text)
    return file


ENTRY = '[[allow]]\ncheck = "causal"\nreason = "fixed in the next release"\nexpires = 2031-01-31\n'


def test_apply_allow_list_turns_a_known_failure_into_a_warning_until_it_expires(tmp_path):
    findings = (Finding("causal", "fail", 1.0, "seen"), Finding("scale", "fail", 1.0, "seen"))
    report = Report("x", "", "", Contract(), findings)
    entries = read_allow_list(allow(tmp_path, ENTRY))
    before, unused = apply_allow_list(report, "x.py:X", entries, date(2031, 1, 31))
    assert [finding.verdict for finding in before.findings] == ["warn", "fail"] and not unused
    assert "fixed in the next release" in before.findings[0].evidence
    after, _ = apply_allow_list(report, "x.py:X", entries, date(2031, 2, 1))
    assert after.findings[0].verdict == "fail" and "expired on 2031-01-31" in after.findings[0].evidence


def test_apply_allow_list_names_entries_that_nothing_needs(tmp_path):
    entries = read_allow_list(allow(tmp_path, ENTRY + 'target = "model.py:*"\n'))
    report = Report("x", "", "", Contract(), (Finding("causal", "fail", 1.0, "seen"),))
    assert apply_allow_list(report, "other.py:X", entries)[0].failed
    assert apply_allow_list(Report("x", "", "", Contract(), ()), "model.py:X", entries)[1] == list(entries)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[allow]]\ncheck = "causal"\nexpires = 2031-01-31\n', "needs a reason"),
        ('[[allow]]\ncheck = "causal"\nreason = "x"\n', "expires = 2027-01-31"),
        ('[[allow]]\ncheck = "casual"\nreason = "x"\nexpires = 2031-01-31\n', "must be an id of docs/checks.md"),
        ("allow = 3\n", "must have [[allow]] entries"),
        ("[[allow]\n", "is not TOML"),
        (ENTRY + "until = 3\n", "unknown keys"),
    ],
)
def test_check_refuses_an_allow_list_that_is_not_complete(leaky, tmp_path, capsys, text, says):
    assert command(["check", leaky, "--allow", str(allow(tmp_path, text))]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_the_action_and_the_hook_call_qkv_check_with_options_that_exist():
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    assert "using: composite" in action and "entry: qkv check" in hook and "language: python" in hook
    help_text = (ROOT / "src" / "qkv" / "cli" / "check.py").read_text(encoding="utf-8")
    for option in set(re.findall(r"--(allow|sarif)\b", action)):
        assert f"    {option}: Path | None" in help_text
    inputs = set(re.findall(r"inputs\.([a-z-]+)", action))
    assert inputs == set(re.findall(r"^  ([a-z-]+):$", action.partition("runs:")[0], re.MULTILINE))
