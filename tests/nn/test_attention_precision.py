"""In reduced precision, scores and softmax are in float32: the error is that of the inputs and the output alone."""

import pytest
import torch
from reference import close

from qkv import attention, masks
from qkv.nn.positions import Alibi

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"allowed": masks.window(300, 300, 100, 0)},
    "negative beta": {"beta": -0.3},
    "large beta": {"beta": 4.0},
    "beta of each head": {"beta": torch.tensor([1.3, 0.7])[:, None, None]},
    "bias": {"bias": torch.linspace(-3, 3, 300)},
}


def errors(q, k, v, **options):
    """Mean errors of the fused path, the plain path and a naive one that never leaves the dtype, against float64."""
    exact, _ = attention(q.double(), k.double(), v.double(), **options, weights=True)
    scores = (q @ k.mT) * options.get("beta", q.shape[-1] ** -0.5)
    scores = scores.to(q.dtype) + options["bias"].to(q) if "bias" in options else scores.to(q.dtype)
    allowed = masks.causal(300) if options.get("causal") else options.get("allowed", masks.window(300, right=None))
    naive = scores.masked_fill(~allowed.dense(q.device), -torch.inf).softmax(-1) @ v
    fused, (plain, _) = attention(q, k, v, **options), attention(q, k, v, **options, weights=True)
    assert fused.dtype == plain.dtype == q.dtype
    return [(out.double() - exact).abs().mean().item() for out in (fused, plain, naive)]


@HALVES
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_below_that_of_scores_in_the_same_dtype(randn, device, name, dtype):
    q, k, v = (randn(1, 2, 300, 16, dtype=torch.float32).mul(2).to(dtype) for _ in range(3))
    options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in CASES[name].items()}
    fused, plain, naive = errors(q, k, v, **options)
    assert fused < naive and plain < naive


@HALVES
def test_a_large_bias_keeps_its_small_differences(randn, dtype):
    q, k, v = (randn(1, 2, 300, 16, dtype=torch.float32).to(dtype) for _ in range(3))
    bias = randn(300, 300, dtype=torch.float32) + 3000
    fused, plain, naive = errors(q, k, v, bias=bias)
    assert max(fused, plain) < 0.01 * naive


@HALVES
def test_alibi_counts_far_distances_exactly(randn, device, dtype):
    places = torch.arange(1000, device=device)
    ours = Alibi().bias(randn(1, 3, 1000, 2, dtype=torch.float32).to(dtype), places, places).dense()
    exact = Alibi().bias(randn(1, 3, 1000, 2), places, places).dense()
    close(ours.double(), exact, 1e-4)  # bfloat16 rounds a distance of 999 to 1000: an error of 0.25


@HALVES
@pytest.mark.parametrize("weights", [False, True])
def test_gradients_come_in_the_inputs_dtype(randn, dtype, weights):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32).to(dtype).requires_grad_() for _ in range(3))
    bias, beta = randn(6, 6, dtype=torch.float32).requires_grad_(), randn(2, 1, 1, dtype=torch.float32).requires_grad_()
    out = attention(q, k, v, causal=True, bias=bias, beta=beta, weights=weights)
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().sum().backward()
    for leaf in (q, k, v, bias, beta):
        assert leaf.grad is not None and leaf.grad.dtype == leaf.dtype and leaf.grad.isfinite().all()


def test_a_beta_of_another_dtype_does_not_change_the_outputs(randn, device):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32) for _ in range(3))
    beta = torch.tensor([0.5, 2.0], dtype=torch.float64, device=device)[:, None, None]
    for weights in (False, True):
        out = attention(q, k, v, beta=beta, weights=weights)
        out = out[0] if isinstance(out, tuple) else out
        assert out.dtype == torch.float32
        close(out, attention(q, k, v, beta=beta.float()), 1e-6)


@pytest.mark.parametrize("beta", [1e-30, 1e-40, 1e-60, 0.0])
def test_a_beta_too_small_for_the_dtype_is_as_good_as_zero(randn, beta):
    q, k, v = (randn(1, 2, 6, 4, dtype=torch.float32) for _ in range(3))
    close(attention(q, k, v, beta=beta, causal=True), attention(q, k, v, beta=0.0, causal=True, weights=True)[0], 1e-6)
