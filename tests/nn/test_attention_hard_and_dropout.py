"""attention with hard=True, and with dropout of the weights."""

import pytest
import torch
from reference import MASKS, attend_by_loops, close, mask_case

from qkv import attention, masks


@pytest.mark.parametrize("name", MASKS)
def test_attention_hard_takes_the_value_of_the_best_allowed_key(randn, device, name):
    q, k, v, bias = randn(2, 4, 5, 3), randn(2, 2, 6, 3), randn(2, 2, 6, 2), randn(5, 6)
    bias[3] = -torch.inf
    given, mask = mask_case(name, 5, 6, device)
    out, weights = attention(q, k, v, scale=-2.0, mask=given, bias=bias, hard=True, return_weights=True)
    expected = attend_by_loops(q, k, v, scale=-2.0, mask=mask, bias=bias, hard=True)
    close(out, expected[0], 0.0)
    close(weights, expected[1], 0.0)
    assert torch.equal(attention(q, k, v, scale=-2.0, mask=given, bias=bias, hard=True), out)


def test_attention_hard_takes_the_first_of_equal_keys(device):
    q, k = torch.ones(1, 2, device=device), torch.ones(4, 2, device=device)
    for first in range(4):
        mask = torch.arange(4, device=device)[None] >= first
        _, weights = attention(q, k, k, mask=mask, hard=True, return_weights=True)
        assert weights.tolist() == [[float(j == first) for j in range(4)]]


def test_attention_hard_is_the_limit_of_a_large_scale(randn):
    q, k, v = randn(2, 4, 6, 3), randn(2, 4, 6, 3), randn(2, 4, 6, 2)
    hard = attention(q, k, v, causal=True, hard=True)
    distances = [(attention(q, k, v, scale=10.0**power, causal=True) - hard).abs().max() for power in range(7)]
    assert distances[0] > 0.1 and distances[-1] < 1e-12
    assert distances == sorted(distances, reverse=True)


def test_attention_hard_has_gradients_for_values_only(randn):
    q, k, v = (randn(1, 2, 5, 3).requires_grad_() for _ in range(3))
    to_q, to_k, to_v = torch.autograd.grad(attention(q, k, v, hard=True).sum(), (q, k, v), allow_unused=True)
    assert to_q is None or not to_q.any()
    assert to_k is None or not to_k.any()
    assert to_v.any()
    close(to_v.sum((-1, -2)), torch.full((1, 2), 5.0 * 3))  # five queries choose one value of three features each


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("name", ["none", "causal", "tensor (t, s)"])
def test_attention_dropout_keeps_the_mean(randn, device, name, path):
    q, k, v = randn(1, 1, 5, 3), randn(1, 1, 5, 3), randn(1, 1, 5, 2)
    given, mask = mask_case(name, 5, 5, device)
    expected, weights = attend_by_loops(q, k, v, mask=mask[:1, :1])
    many = [x.expand(20000, 1, -1, -1) for x in (q, k, v)]
    out = attention(*many, mask=given, dropout_p=0.4, return_weights=path == "plain")
    out = out[0] if isinstance(out, tuple) else out
    deviation = (weights.square() @ v.square() * 0.4 / 0.6).sqrt() / 20000**0.5  # of the mean of 20,000 draws
    assert ((out.mean(0) - expected[0]).abs() <= 5 * deviation[0] + 1e-12).all()
    spread = out.std(0).where(mask[0, 0].sum(-1, keepdim=True) > 1, 1.0)
    assert (spread > 0).all(), "something was dropped"


def test_attention_dropout_sets_weights_to_zero_and_scales_the_others(randn, device):
    q, k = randn(1, 1, 40, 3), randn(1, 1, 40, 3)
    v = torch.eye(40, dtype=torch.float64, device=device)[None, None]  # the output is then the weights themselves
    out, weights = attention(q, k, v, dropout_p=0.25, return_weights=True)
    kept = out != 0
    close(out, torch.where(kept, weights / 0.75, 0.0))
    assert 0.7 < kept.double().mean() < 0.8


def test_attention_returns_weights_before_dropout(randn):
    q, k, v = (randn(2, 2, 5, 3) for _ in range(3))
    _, expected = attention(q, k, v, causal=True, return_weights=True)
    out, weights = attention(q, k, v, causal=True, dropout_p=0.9, return_weights=True)
    assert torch.equal(weights, expected)
    assert not torch.allclose(out, weights @ v)


def test_attention_is_deterministic_without_dropout(randn):
    q = randn(2, 2, 9, 4)
    assert torch.equal(attention(q, q, q, causal=True), attention(q, q, q, causal=True))
    one, other = (attention(q, q, q, mask=masks.sliding_window(9, 9, 3, 3), dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, other)
