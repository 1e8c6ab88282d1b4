"""Mistakes in other styles than the zoo's are caught and named too."""

import pytest
from heldout import HELD_OUT, SOUND

from qkv.check import run


@pytest.mark.parametrize("name", HELD_OUT)
def test_a_mistake_in_another_style_is_caught_and_named(name):
    target, contract, family = HELD_OUT[name]
    report = run(target, contract)
    assert not report.ok, [(finding.check, finding.verdict, finding.evidence) for finding in report.findings]
    assert report.diagnosis is not None
    assert report.diagnosis.family == family, [(f.check, f.evidence, f.hint) for f in report.failed]


@pytest.mark.parametrize("name", SOUND)
def test_what_is_right_in_another_style_raises_no_alarm(name):
    target, contract = SOUND[name]
    report = run(target, contract)
    assert [(finding.check, finding.evidence) for finding in report.failed] == []
