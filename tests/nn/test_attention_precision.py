"""attention in bfloat16 and float16: scores and softmax are computed in float32."""

import pytest
import torch
from reference import close

from qkv import attention, masks
from qkv.nn.positions import Alibi

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "sliding_window": {"mask": masks.sliding_window(300, 300, 100, 0)},
    "negative scale": {"scale": -0.3},
    "large scale": {"scale": 4.0},
    "scale of each head": {"scale": torch.tensor([1.3, 0.7])[:, None, None]},
    "bias": {"bias": torch.linspace(-3, 3, 300)},
}


def errors(q, k, v, **options):
    """Mean errors of the fused path, the plain path and a naive one that never leaves the dtype, against float64."""
    exact, _ = attention(q.double(), k.double(), v.double(), **options, return_weights=True)
    scores = (q @ k.mT) * options.get("scale", q.shape[-1] ** -0.5)
    scores = scores.to(q.dtype) + options["bias"].to(q) if "bias" in options else scores.to(q.dtype)
    mask = masks.causal(300) if options.get("causal") else options.get("mask", masks.sliding_window(300, right=None))
    naive = scores.masked_fill(~mask.to_dense(q.device), -torch.inf).softmax(-1) @ v
    fused, (plain, _) = attention(q, k, v, **options), attention(q, k, v, **options, return_weights=True)
    assert fused.dtype == plain.dtype == q.dtype
    return [(out.double() - exact).abs().mean().item() for out in (fused, plain, naive)]


@HALVES
@pytest.mark.parametrize("name", CASES)
def test_attention_in_half_precision_is_more_exact_than_half_precision_scores(randn, device, name, dtype):
    q, k, v = (randn(1, 2, 300, 16, dtype=torch.float32).mul(2).to(dtype) for _ in range(3))
    options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in CASES[name].items()}
    fused, plain, naive = errors(q, k, v, **options)
    assert fused < naive and plain < naive


@HALVES
def test_attention_in_half_precision_keeps_small_differences_of_a_large_bias(randn, dtype):
    q, k, v = (randn(1, 2, 300, 16, dtype=torch.float32).to(dtype) for _ in range(3))
    bias = randn(300, 300, dtype=torch.float32) + 3000
    fused, plain, naive = errors(q, k, v, bias=bias)
    assert max(fused, plain) < 0.01 * naive


@HALVES
def test_alibi_in_half_precision_counts_far_distances(randn, device, dtype):
    places = torch.arange(1000, device=device)
    ours = Alibi().bias(randn(1, 3, 1000, 2, dtype=torch.float32).to(dtype), places, places).to_dense()
    exact = Alibi().bias(randn(1, 3, 1000, 2), places, places).to_dense()
    close(ours.double(), exact, 1e-4)  # bfloat16 rounds a distance of 999 to 1000: an error of 0.25


@HALVES
@pytest.mark.parametrize("weights", [False, True])
def test_attention_gradients_have_the_dtype_of_the_inputs(randn, dtype, weights):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32).to(dtype).requires_grad_() for _ in range(3))
    bias, scale = (
        randn(6, 6, dtype=torch.float32).requires_grad_(),
        randn(2, 1, 1, dtype=torch.float32).requires_grad_(),
    )
    out = attention(q, k, v, causal=True, bias=bias, scale=scale, return_weights=weights)
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().sum().backward()
    for leaf in (q, k, v, bias, scale):
        assert leaf.grad is not None and leaf.grad.dtype == leaf.dtype and leaf.grad.isfinite().all()


@HALVES
@pytest.mark.parametrize("autocast", [False, True])
def test_attention_trains_short_sequences_in_float32_on_a_cpu(randn, dtype, autocast):
    """Output and gradients are those of float32 for the same numbers, each rounded once."""
    wide = [randn(2, 2, 9, 4, dtype=torch.float32).to(dtype).float().requires_grad_() for _ in range(3)]
    narrow = [x.detach() if autocast else x.detach().to(dtype) for x in wide]
    gradient = randn(2, 2, 9, 4, dtype=torch.float32).to(dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        out = attention(*(x.requires_grad_() for x in narrow), causal=True)
    out.backward(gradient)
    exact = attention(*wide, causal=True)
    exact.backward(gradient.float())
    assert out.dtype == dtype and torch.equal(out, exact.to(dtype))
    for ours, theirs in zip(narrow, wide, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad.to(ours.dtype))


def test_attention_scale_of_another_dtype_keeps_the_output_dtype(randn, device):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32) for _ in range(3))
    scale = torch.tensor([0.5, 2.0], dtype=torch.float64, device=device)[:, None, None]
    for weights in (False, True):
        out = attention(q, k, v, scale=scale, return_weights=weights)
        out = out[0] if isinstance(out, tuple) else out
        assert out.dtype == torch.float32
        close(out, attention(q, k, v, scale=scale.float()), 1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-40, 1e-60, 0.0])
def test_attention_with_a_tiny_scale_equals_scale_zero(randn, scale):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32) for _ in range(3))
    close(
        attention(q, k, v, scale=scale, causal=True),
        attention(q, k, v, scale=0.0, causal=True, return_weights=True)[0],
        1e-6,
    )
