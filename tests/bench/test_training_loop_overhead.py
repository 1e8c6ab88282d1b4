"""The training loop's overhead is measured against a bare step."""

import pytest

from qkv.bench.training_loop import measure_overhead


def test_measure_overhead_times_the_loop_and_the_bare_step():
    (result,) = measure_overhead(["vit"], steps=2, batch_size=1)
    assert result.parameters == 3_217_764 and result.steps == 2
    assert result.bare > 0 and result.loop > 0 and result.overhead > -1
    assert result.to_dict()["model"] == "vit"


def test_measure_overhead_rejects_unknown_models_and_too_few_steps():
    with pytest.raises(ValueError, match="unknown model 'rnn'; expected vit or gpt"):
        measure_overhead(["rnn"])
    with pytest.raises(ValueError, match="steps must be at least 2"):
        measure_overhead(steps=1)
