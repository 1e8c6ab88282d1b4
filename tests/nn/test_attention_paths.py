"""The fused and the explicit path of attention: same numbers, same gradients, query blocks, no leaks."""

import pytest
import torch
import torch.nn.functional as F
from reference import MASKS, attend_by_loops, close, mask_case, table

import qkv.nn.attention as ops
from qkv import attention, masks
from qkv.nn.positions import DistanceBias

LAZY = [name for name in MASKS if not name.startswith("tensor (")]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(ops, "BLOCK", 4)


@pytest.fixture
def kernel_calls(monkeypatch):
    """What each call of PyTorch's kernel is given: (keys, whether a mask, whether causal)."""
    calls, kernel = [], F.scaled_dot_product_attention

    def watched(q, k, v, mask=None, dropout=0.0, is_causal=False, **options):
        calls.append((k.shape[-2], mask is not None, is_causal))
        return kernel(q, k, v, mask, dropout, is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return calls


def lazy_bias(numbers, t, s):
    """numbers (h, distances): a lazy bias through which gradients reach the numbers."""
    places = torch.arange(max(t, s), device=numbers.device)
    return DistanceBias(lambda distance, rows: numbers[:, distance + t], places[:t], places[:s])


@pytest.mark.parametrize(("t", "s"), [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("name", MASKS)
def test_attention_fused_and_explicit_paths_have_the_same_gradients(randn, device, name, t, s, small_blocks):
    inputs = [randn(2, 4, t, 3), randn(2, 2, s, 3), randn(2, 2, s, 2), randn(4, 1, 1), randn(4, t + s)]
    q, k, v, scale, numbers = (x.requires_grad_() for x in inputs)
    given, _ = mask_case(name, t, s, device)
    weighing = randn(2, 4, t, 2)
    for bias in (None, numbers[:, None, :s], lazy_bias(numbers, t, s)):
        fused = attention(q, k, v, scale=scale, mask=given, bias=bias)
        plain, _ = attention(q, k, v, scale=scale, mask=given, bias=bias, return_weights=True)
        leaves = (q, k, v, scale) if bias is None else (q, k, v, scale, numbers)
        ours, theirs = (torch.autograd.grad((out * weighing).sum(), leaves) for out in (fused, plain))
        for one, other in zip(ours, theirs, strict=True):
            close(one, other)


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("name", ["none", "causal", "window & prefix & padding", "tensor (b, 1, t, s)"])
def test_attention_gradients_equal_finite_differences(randn, device, name, path):
    inputs = [randn(2, 4, 4, 2), randn(2, 2, 3, 2), randn(2, 2, 3, 2), randn(4, 1, 3)]
    given, _ = mask_case(name, 4, 3, device)

    def attend(q, k, v, bias):
        out = attention(q, k, v, mask=given, bias=bias, return_weights=path == "plain")
        return out[0] if path == "plain" else out

    assert torch.autograd.gradcheck(attend, [x.requires_grad_() for x in inputs], fast_mode=True)


@pytest.mark.parametrize(("t", "s"), [(9, 9), (13, 5), (5, 13), (17, 1)])
@pytest.mark.parametrize("name", LAZY)
def test_attention_in_query_blocks_equals_the_formula(randn, device, name, t, s, small_blocks):
    q, k, v, numbers = randn(2, 4, t, 3), randn(2, 1, s, 3), randn(2, 1, s, 2), randn(4, t + s)
    given, mask = mask_case(name, t, s, device)
    for bias in (None, lazy_bias(numbers, t, s)):
        expected, _ = attend_by_loops(q, k, v, mask=mask, bias=None if bias is None else bias.to_dense())
        close(attention(q, k, v, mask=given, bias=bias), expected)


@pytest.mark.parametrize(("t", "s"), [(513, 513), (1030, 1030), (513, 700), (600, 40)])
@pytest.mark.parametrize("name", ["window", "chunked", "prefix", "causal & padding"])
def test_attention_with_more_queries_than_a_block_equals_scaled_dot_product_attention(randn, device, name, t, s):
    q, k, v = randn(2, 1, t, 4), randn(2, 1, s, 4), randn(2, 1, s, 4)
    given = MASKS[name][0](t, s)
    assert isinstance(given, masks.Mask)
    mask = given.to_dense(device)  # proven elsewhere
    somewhere = mask.any(-1).expand(2, 1, t)
    out = attention(q, k, v, mask=given)
    close(out[somewhere], F.scaled_dot_product_attention(q, k, v, mask)[somewhere])
    assert not out[~somewhere].any()


def test_attention_sliding_window_reads_only_its_keys(randn, kernel_calls):
    q = randn(1, 1, 2000, 2)
    attention(q, q, q, mask=masks.sliding_window(2000, 2000, 10, 3))
    assert len(kernel_calls) == 4
    assert all(keys <= ops.BLOCK + 13 for keys, _, _ in kernel_calls)


def test_attention_causal_calls_the_kernel_without_a_mask(randn, kernel_calls):
    q = randn(1, 1, 600, 2)
    attention(q, q, q, causal=True)
    attention(q, q, q, mask=masks.causal(600))
    assert kernel_calls == [(600, False, True)] * 2


def test_attention_of_one_query_on_a_cached_prefix_needs_no_mask(randn, kernel_calls):
    attention(randn(1, 1, 1, 2), randn(1, 1, 9, 2), randn(1, 1, 9, 2), causal=True)
    assert kernel_calls == [(9, False, False)]


@pytest.mark.parametrize("path", ["fused", "plain", "blocks", "hard"])
@pytest.mark.parametrize("name", MASKS)
def test_attention_output_changes_exactly_with_the_allowed_keys(randn, device, name, path, monkeypatch):
    t, s = 6, 7
    if path == "blocks":
        monkeypatch.setattr(ops, "BLOCK", 2)
    q, k, v = randn(2, 4, t, 3), randn(2, 4, s, 3), randn(2, 4, s, 3)
    given, mask = mask_case(name, t, s, device)

    def attend(keys, values):
        out = attention(q, keys, values, mask=given, hard=path == "hard", return_weights=path == "plain")
        return out[0] if isinstance(out, tuple) else out

    before = attend(k, v)
    for j in range(s):
        keys, values = k.clone(), v.clone()
        keys[:, :, j], values[:, :, j] = 9 * randn(2, 4, 3), 9 * randn(2, 4, 3)
        after = attend(keys, values)
        sees = mask[..., j]
        assert torch.equal(after[~sees], before[~sees])
        if path != "hard":  # the hard choice may lie elsewhere before and after
            assert torch.equal(after.ne(before).any(-1), sees)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"return_weights": True}, {"hard": True}, {"scale": -1.0}], ids=str
)
def test_attention_does_not_change_its_inputs(randn, device, options):
    q, k, v, bias = randn(2, 4, 5, 3), randn(2, 2, 5, 3), randn(2, 2, 5, 3), randn(5, 5)
    bias[1] = -torch.inf
    mask = table(lambda b, h, place, i, j: (i + j) % 3 != 0, 5, 5, 1, 1).to(device)
    copies = [x.clone() for x in (q, k, v, bias, mask)]
    attention(q, k, v, bias=bias, mask=mask, **options)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v, bias, mask), copies, strict=True))
