"""attention against its formula in Python loops and against PyTorch's kernel: masks, lengths, heads, scales, biases."""

import pytest
import torch
import torch.nn.functional as F
from reference import MASKS, SIZES, attend_by_loops, close, mask_case

from qkv import attention
from qkv.masks import causal
from qkv.nn.positions import DistanceBias


def check_paths(expected, *qkv, **options):
    """Both the fused path and the plain one give what is expected."""
    close(attention(*qkv, **options), expected)
    close(attention(*qkv, **options, return_weights=True)[0], expected)


@pytest.mark.parametrize(("t", "s"), SIZES)
@pytest.mark.parametrize("name", MASKS)
def test_attention_equals_the_formula_in_loops(randn, device, name, t, s):
    q, k, v = randn(2, 4, t, 3), randn(2, 4, s, 3), randn(2, 4, s, 5)
    given, mask = mask_case(name, t, s, device)
    check_paths(attend_by_loops(q, k, v, mask=mask)[0], q, k, v, mask=given)


@pytest.mark.parametrize("name", MASKS)
def test_attention_equals_scaled_dot_product_attention(randn, device, name):
    q, k, v = randn(2, 4, 6, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 8)
    given, mask = mask_case(name, 6, 7, device)
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    somewhere = mask.any(-1)
    close(attention(q, k, v, mask=given)[somewhere], expected[somewhere])


@pytest.mark.parametrize("name", MASKS)
def test_attention_weights_equal_the_loops_and_sum_to_one_or_zero(randn, device, name):
    q, k, v = randn(2, 4, 5, 3), randn(2, 4, 7, 3), randn(2, 4, 7, 2)
    given, mask = mask_case(name, 5, 7, device)
    _, weights = attention(q, k, v, mask=given, return_weights=True)
    close(weights, attend_by_loops(q, k, v, mask=mask)[1])
    close(weights.sum(-1), mask.any(-1))
    assert not weights[~mask].any()


@pytest.mark.parametrize(("t", "s"), SIZES)
@pytest.mark.parametrize("name", ["none", "padding", "tensor (b, 1, t, s)", "prefix by row"])
def test_attention_causal_composes_with_other_masks(randn, device, name, t, s):
    q, k, v = randn(2, 4, t, 3), randn(2, 4, s, 3), randn(2, 4, s, 3)
    given, mask = mask_case(name, t, s, device)
    past = torch.tensor([[j <= i + s - t for j in range(s)] for i in range(t)], dtype=torch.bool).reshape(t, s)
    expected, _ = attend_by_loops(q, k, v, mask=mask & past.to(device))
    check_paths(expected, q, k, v, mask=given, causal=True)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", ["none", "causal", "window & prefix & padding", "tensor (1, h, t, s)"])
def test_attention_grouped_query_heads_share_a_key_head(randn, device, name, groups):
    q, k, v = randn(2, 4, 5, 3), randn(2, groups, 5, 3), randn(2, groups, 5, 2)
    given, mask = mask_case(name, 5, 5, device)
    check_paths(attend_by_loops(q, k, v, mask=mask)[0], q, k, v, mask=given)


@pytest.mark.parametrize("scale", [None, 0.0, -1.5, 0.25, 300.0, 1e-300, [1.0, -2.0, 0.0, 40.0]], ids=str)
@pytest.mark.parametrize("name", ["none", "causal", "padding", "tensor (t, s)"])
def test_attention_scale_multiplies_the_scores(randn, device, name, scale):
    q, k, v = randn(2, 4, 5, 3), randn(2, 4, 5, 3), randn(2, 4, 5, 2)
    given, mask = mask_case(name, 5, 5, device)
    passed = torch.tensor(scale, device=device)[:, None, None] if isinstance(scale, list) else scale
    check_paths(attend_by_loops(q, k, v, mask=mask, scale=scale)[0], q, k, v, mask=given, scale=passed)


def test_attention_with_scale_zero_averages_the_allowed_values(randn):
    v = randn(1, 1, 4, 2)
    out = attention(randn(1, 1, 4, 2), randn(1, 1, 4, 2), v, scale=0.0, causal=True)
    close(out[0, 0], v[0, 0].cumsum(0) / torch.arange(1, 5, device=v.device)[:, None])


@pytest.mark.parametrize(
    "shape", [(6,), (5, 1), (5, 6), (4, 1, 6), (2, 1, 1, 6), (1, 4, 5, 6), (2, 1, 5, 6), (2, 4, 5, 1)], ids=str
)
@pytest.mark.parametrize("name", ["none", "causal", "padding", "tensor (t, s)"])
def test_attention_bias_is_added_to_the_scaled_scores(randn, device, name, shape):
    q, k, v = randn(2, 4, 5, 3), randn(2, 4, 6, 3), randn(2, 4, 6, 2)
    bias = randn(*shape)
    given, mask = mask_case(name, 5, 6, device)
    expected, _ = attend_by_loops(q, k, v, mask=mask, bias=bias, scale=2.0)
    check_paths(expected, q, k, v, mask=given, bias=bias, scale=2.0)


@pytest.mark.parametrize("name", ["none", "causal", "window", "padding"])
def test_attention_bias_of_minus_infinity_acts_as_a_mask(randn, device, name):
    q, k, v, bias = randn(2, 4, 5, 3), randn(2, 4, 6, 3), randn(2, 4, 6, 2), randn(4, 5, 6)
    bias = bias.masked_fill(torch.rand(4, 5, 6).to(device) < 0.5, -torch.inf)
    bias[:, 2] = -torch.inf
    given, mask = mask_case(name, 5, 6, device)
    expected, _ = attend_by_loops(q, k, v, mask=mask, bias=bias)
    assert not expected[:, :, 2].any()
    check_paths(expected, q, k, v, mask=given, bias=bias)


@pytest.mark.parametrize(("t", "s"), [(5, 5), (3, 7), (7, 3), (1, 6), (0, 5), (5, 0)])
@pytest.mark.parametrize("name", ["none", "causal", "window", "prefix by row", "tensor (b, 1, t, s)"])
def test_attention_lazy_bias_equals_its_dense_form(randn, device, name, t, s):
    q, k, v = randn(2, 4, t, 3), randn(2, 4, s, 3), randn(2, 4, s, 2)
    per_distance = randn(4, t + s + 1)
    lazy = DistanceBias(
        lambda distance, rows: per_distance[:, distance + t],
        torch.arange(t, device=device),
        torch.arange(s, device=device),
    )
    dense = torch.stack([per_distance[:, t - i : t - i + s] for i in range(t)], 1) if t else randn(4, t, s)
    given, mask = mask_case(name, t, s, device)
    check_paths(attend_by_loops(q, k, v, mask=mask, bias=dense)[0], q, k, v, mask=given, bias=lazy)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["none", "causal", "window", "tensor (t, s)"])
def test_attention_with_extreme_scores_does_not_overflow(randn, device, name, sign):
    q, k, v = 100 * randn(2, 4, 5, 3).abs(), sign * 200 * randn(2, 4, 5, 3).abs(), randn(2, 4, 5, 2)
    given, mask = mask_case(name, 5, 5, device)
    assert (q @ k.mT).abs().amax() > 1e4
    check_paths(attend_by_loops(q, k, v, mask=mask, scale=1.0)[0], q, k, v, mask=given, scale=1.0)


def test_attention_accepts_inputs_without_heads_or_batch(randn, device):
    q, k, v = randn(2, 1, 5, 3), randn(2, 1, 6, 3), randn(2, 1, 6, 4)
    mask, bias, scale = torch.rand(2, 1, 5, 6).to(device) < 0.7, randn(2, 1, 5, 6), randn(2, 1, 1, 1)
    expected = attention(q, k, v, mask=mask, bias=bias, scale=scale, causal=True)
    for index in ((slice(None), 0), (1, 0)):
        options = {"mask": mask[index], "bias": bias[index], "scale": scale[index], "causal": True}
        check_paths(expected[index], q[index], k[index], v[index], **options)


def test_attention_weights_of_inputs_without_heads_have_no_head_axis(randn):
    x = randn(3, 5, 4)
    assert attention(x, x, x, return_weights=True)[1].shape == (3, 5, 5)
    assert attention(x[0], x[0], x[0], return_weights=True)[1].shape == (5, 5)


def test_attention_takes_a_tensor_combined_with_a_mask_without_heads(randn, device):
    q, k, v = randn(2, 1, 5, 3), randn(2, 1, 6, 3), randn(2, 1, 6, 4)
    _, mask = mask_case("mask & tensor", 5, 6, device)
    tensor = mask[:, 0]  # (b, t, s)
    expected, _ = attend_by_loops(q, k, v, mask=mask[:, :1])
    for both in (tensor & causal(5, 6), causal(5, 6) & tensor):  # pyright: ignore[reportOperatorIssue]
        check_paths(expected[:, 0], q[:, 0], k[:, 0], v[:, 0], mask=both)


def test_attention_of_an_empty_batch_is_empty(randn):
    x = randn(0, 2, 3, 4)
    assert attention(x, x, x, causal=True).shape == (0, 2, 3, 4)
    assert attention(x, x, x, return_weights=True)[1].shape == (0, 2, 3, 3)
