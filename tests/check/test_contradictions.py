"""A report does not contradict itself."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from qkv.check import Contract, run


class MeanAdded(nn.Module):
    """Causal weights, but the mean of all tokens is added to every output."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.inputs(x).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d)) + x.mean(1, keepdim=True)


def test_a_leak_outside_of_the_weights_is_not_reported_beside_layers_that_pass_as_causal():
    torch.manual_seed(0)
    report = run(MeanAdded(), Contract(kind="causal"))
    verdicts = {finding.check: finding for finding in report.findings}
    assert verdicts["causal"].verdict == "fail"
    assert verdicts["layers"].verdict == "described"
    assert "later tokens enter elsewhere" in verdicts["layers"].evidence
