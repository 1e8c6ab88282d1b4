"""Dropout drops the given fraction of elements independently and keeps the mean."""

import math

import pytest
import torch

from qkv.nn.dropout import Dropout, dropout

COUNT = 1 << 18


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_dropout_drops_the_given_fraction_and_keeps_the_mean(share):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(COUNT, dtype=torch.float64), share)
    spread = math.sqrt(COUNT * share * (1 - share))  # of a binomial count
    assert abs(int((dropped == 0).sum()) - share * COUNT) < 5 * spread
    kept = dropped[dropped != 0].unique()
    assert len(kept) == 1 and float(kept) == pytest.approx(1 / (1 - share), rel=2**-12)


def test_dropout_of_elements_that_share_a_draw_is_independent():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(COUNT // 4, 4), 0.5) != 0).double() - 0.5
    together = kept.T @ kept / (0.25 * len(kept)) - torch.eye(4)  # correlations
    assert together.abs().max() < 5 / math.sqrt(len(kept))
    following = (kept[1:] * kept[:-1]).mean(0) / 0.25
    assert following.abs().max() < 5 / math.sqrt(len(kept))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_keeps_shape_and_dtype_and_masks_the_gradient(shape, dtype):
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    out = dropout(x, 0.5)
    assert out.shape == shape and out.dtype == dtype
    out.sum().backward()
    assert x.grad is not None and set(x.grad.flatten().tolist()) <= {0.0, 2.0}
    assert torch.equal(out, x.detach() * x.grad)


def test_dropout_with_the_same_seed_drops_the_same_elements():
    x, layer = torch.randn(5, 7), Dropout(0.5)
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first) and not torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(dropout(x, 0.0), x) and not dropout(x, 1.0).any()
