"""The cost of the loop is measured beside the bare step."""

import pytest

from qkv.bench import train


def test_the_loop_and_the_bare_step_are_both_timed():
    (cost,) = train.measured(["vit"], steps=2, items=1)
    assert cost.parameters == 3_217_764 and cost.steps == 2
    assert cost.bare > 0 and cost.loop > 0 and cost.overhead > -1
    assert cost.as_dict()["model"] == "vit"


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="measured with vit and gpt; got 'rnn'"):
        train.measured(["rnn"])
    with pytest.raises(ValueError, match="steps are at least 2"):
        train.measured(steps=1)
