"""Bugs in other styles than the mutants' are caught and named too."""

import pytest
from held_out_bugs import HELD_OUT, SOUND

from qkv.check import run

pytestmark = pytest.mark.long  # minutes in all


@pytest.mark.parametrize("name", HELD_OUT)
def test_run_catches_and_names_a_bug_in_another_style(name):
    target, contract, family = HELD_OUT[name]
    report = run(target, contract)
    assert not report.ok, [(finding.check, finding.verdict, finding.evidence) for finding in report.findings]
    assert report.diagnosis is not None
    assert report.diagnosis.family == family, [(f.check, f.evidence, f.hint) for f in report.failed]


@pytest.mark.parametrize("name", SOUND)
def test_run_raises_no_alarm_for_correct_code_in_another_style(name):
    target, contract = SOUND[name]
    report = run(target, contract)
    assert [(finding.check, finding.evidence) for finding in report.failed] == []
