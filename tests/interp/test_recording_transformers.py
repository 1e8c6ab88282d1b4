"""record() of transformers models: the weights are those of their eager mode, the outputs keep the same bits."""

import pytest
import torch
from transformers_models import TRANSFORMERS_MODELS, TransformersModel, build, call, eager_weights

from qkv.interp import Trace, record

CASES = [
    pytest.param(case, backend, id=f"{case.name}-{backend}")
    for case in TRANSFORMERS_MODELS
    for backend in case.backends
]


def all_weights(trace: Trace, layer: int) -> torch.Tensor:
    return torch.stack([trace.weights(layer, batch=row) for row in range(trace.layers[layer].batch)])


@pytest.mark.parametrize(("case", "backend"), CASES)
def test_recorded_weights_are_the_eager_ones_and_outputs_the_same_bits(case: TransformersModel, backend: str):
    model = build(case, backend)
    with torch.no_grad():
        before = call(model, case)
        with record(model) as trace:
            during = call(model, case)
    assert torch.equal(before, during)
    expected = eager_weights(case)
    assert len(trace.layers) == len(expected)
    attended = torch.ones(2, expected[0].shape[-2], dtype=torch.bool)
    if "padded" in case.name:  # libraries differ in what a padding token attends to
        attended = case.inputs()["attention_mask"].bool()
    for layer, weights in enumerate(expected):
        ours = all_weights(trace, layer)
        rows = attended[:, None, :, None] if ours.shape[-2] == attended.shape[1] else torch.ones(1, 1, 1, 1).bool()
        torch.testing.assert_close(ours * rows, weights * rows, rtol=0, atol=1e-5)
        assert trace.layers[layer].storage == "lazy"
