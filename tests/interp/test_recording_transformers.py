"""record() of transformers models: the weights are those of their eager mode, the outputs keep the same bits."""

import pytest
import torch
from foreign_models import FOREIGN, Foreign, build, call, eager_weights

from qkv.interp import Trace, record

CASES = [
    pytest.param(foreign, backend, id=f"{foreign.name}-{backend}")
    for foreign in FOREIGN
    for backend in foreign.backends
]


def all_weights(trace: Trace, layer: int) -> torch.Tensor:
    return torch.stack([trace.weights(layer, batch=row) for row in range(trace.layers[layer].batch)])


@pytest.mark.parametrize(("foreign", "backend"), CASES)
def test_recorded_weights_are_the_eager_ones_and_outputs_the_same_bits(foreign: Foreign, backend: str):
    model = build(foreign, backend)
    with torch.no_grad():
        before = call(model, foreign)
        with record(model) as trace:
            during = call(model, foreign)
    assert torch.equal(before, during)
    expected = eager_weights(foreign)
    assert len(trace.layers) == len(expected)
    attended = torch.ones(2, expected[0].shape[-2], dtype=torch.bool)
    if "padded" in foreign.name:  # libraries differ in what a padding token attends to
        attended = foreign.inputs()["attention_mask"].bool()
    for layer, weights in enumerate(expected):
        ours = all_weights(trace, layer)
        rows = attended[:, None, :, None] if ours.shape[-2] == attended.shape[1] else torch.ones(1, 1, 1, 1).bool()
        torch.testing.assert_close(ours * rows, weights * rows, rtol=0, atol=1e-5)
        assert trace.layers[layer].storage == "lazy"
