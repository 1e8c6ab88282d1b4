"""FLOPs of a training step against closed formulas."""

import pytest
import torch
from torch import nn

from qkv import MultiHeadAttention
from qkv.bench.reproduce.measurement import count_epoch_flops, count_flops
from qkv.data.images.dataset import ImageBatches, Images, PatchDropout
from qkv.models import ViT, ViTConfig
from qkv.training import LossSum, classification


def test_count_flops_of_a_linear_model():
    b, i, h, o = 8, 16, 32, 10
    model = nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, o))
    batch = {"images": torch.randn(b, i), "targets": torch.randint(0, o, (b,))}
    work, items = count_flops(model, classification(), batch)
    forward = 2 * b * (i * h + h * o)
    assert work == forward + forward + 2 * b * h * o  # of weights all, of inputs the second layer's only
    assert items == b
    assert all(parameter.grad is None for parameter in model.parameters()), "the model itself is left alone"


def total(model, batch):
    out = model(batch["x"])
    return LossSum((out[0] if isinstance(out, tuple) else out).sum(), len(batch["x"]))


@pytest.mark.parametrize("causal", [False, True])
def test_count_flops_counts_fused_attention_in_full(causal, unchecked):
    b, t, c = 2, 24, 32
    model = MultiHeadAttention(c, 4)
    work, _ = count_flops(lambda_module(model, causal), total, {"x": torch.randn(b, t, c)})
    projections, scores = 4 * 2 * b * t * c * c, 2 * 2 * b * t * t * c
    assert work == 3 * (projections + scores) - 3 * 2 * b * t * c * c  # no gradient for what comes in, thrice


def lambda_module(model, causal):
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x, causal=causal)

    return Called()


def test_count_flops_counts_a_fused_recurrence():
    b, t, i, h = 4, 10, 16, 32
    work, _ = count_flops(nn.LSTM(i, h, batch_first=True), total, {"x": torch.randn(b, t, i)})
    entering, recurrent = 2 * b * t * 4 * h * i, 2 * b * t * 4 * h * h
    assert work == pytest.approx(2 * entering + 3 * recurrent, rel=0.05)  # the first state is nobody's gradient


def test_count_epoch_flops_weighs_batches_by_their_items():
    class Two:
        def num_batches(self, epoch):
            return 2

        def batch(self, epoch, index):
            return {"images": torch.randn(4 + 4 * index, 6), "targets": torch.zeros(4 + 4 * index, dtype=torch.long)}

    model = nn.Linear(6, 5)
    flops, items = count_epoch_flops(model, classification(), Two())
    assert flops / items == 2 * 2 * 6 * 5  # no gradient of what comes in


def test_count_epoch_flops_of_patch_dropout_is_between_all_and_half_of_the_patches():
    pixels = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8)
    whole = ImageBatches(Images(pixels, torch.zeros(400, dtype=torch.long), ("a",)), 4)
    model = ViT(ViTConfig(image_size=8, patch_size=2, num_classes=1, dim=16, layers=1, heads=2, pooling="mean"))
    full, half, mixed = (
        count_epoch_flops(model, classification(), PatchDropout(whole, 16, 0.5, share))[0] for share in (0.0, 1.0, 0.75)
    )
    shown = sum("patches" in PatchDropout(whole, 16, 0.5, 0.75).batch(0, index) for index in range(100)) / 100
    assert mixed == pytest.approx(full + shown * (half - full)) and half < 0.6 * full
