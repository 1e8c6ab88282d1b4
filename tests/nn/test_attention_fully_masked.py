"""A query that may attend to nothing has zero weights, zero output and finite gradients, on every path."""

import pytest
import torch

import qkv.nn.attention as ops
from qkv import attention, masks


def nowhere(kind: str, t: int, s: int, device: torch.device) -> dict:
    """Options under which query 1 of t may attend to none of s keys."""
    mask = torch.ones(t, s, dtype=torch.bool, device=device)
    mask[1] = False
    row = torch.tensor([True, False], device=device)[:, None]
    bias = torch.zeros(t, s, device=device).masked_fill(~mask, -torch.inf)
    half = torch.arange(s, device=device) < 2
    return {
        "tensor": {"mask": mask},
        "tensor by batch and head": {"mask": mask.expand(2, 2, t, s)},
        "tensor of one column": {"mask": mask[:, :1]},
        "row of absent keys": {"mask": masks.padding(row.expand(2, s))},
        "causal with more queries than keys": {"causal": True},
        "window & tensor": {"mask": masks.sliding_window(t, s, 1, 1) & mask},
        "bias": {"bias": bias},
        "bias of one column": {"bias": bias[:, :1]},
        "bias and tensor, half each": {"mask": mask | half, "bias": bias.masked_fill(~half, 0.0)},
    }[kind]


KINDS = [
    "tensor",
    "tensor by batch and head",
    "tensor of one column",
    "row of absent keys",
    "causal with more queries than keys",
    "window & tensor",
    "bias",
    "bias of one column",
    "bias and tensor, half each",
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", ["fused", "plain", "hard", "blocks", "dropout"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_a_fully_masked_query_is_zero_with_finite_gradients(randn, device, kind, path, dtype, monkeypatch):
    t, s = (6, 4) if kind.startswith("causal") else (4, 4)
    if path == "blocks":
        monkeypatch.setattr(ops, "BLOCK", 2)
    q, k, v = (x.requires_grad_() for x in (randn(2, 2, n, 3, dtype=dtype) for n in (t, s, s)))
    options = nowhere(kind, t, s, device)
    if "bias" in options:
        options["bias"] = options["bias"].to(dtype).requires_grad_()
    result = attention(
        q,
        k,
        v,
        **options,
        **{
            "plain": {"return_weights": True},
            "hard": {"hard": True, "return_weights": True},
            "dropout": {"dropout_p": 0.5},
        }.get(path, {}),
    )
    out = result[0] if isinstance(result, tuple) else result
    empty = out[1] if kind == "row of absent keys" else out[:, :, 1]
    assert not empty.any() and out.isfinite().all()
    assert out.any(), "the other queries do attend"
    if isinstance(result, tuple):
        assert not (result[1][1] if kind == "row of absent keys" else result[1][:, :, 1]).any()
    out.float().square().sum().backward()
    leaves = [q, k, v, *([options["bias"]] if "bias" in options else [])]
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)
    assert v.grad is not None and v.grad.any()
    if q.grad is not None:
        assert not (q.grad[1] if kind == "row of absent keys" else q.grad[:, :, 1]).any()


@pytest.mark.parametrize("path", ["fused", "plain", "hard"])
@pytest.mark.parametrize(("t", "s"), [(3, 0), (0, 3), (0, 0)])
def test_attention_without_keys_or_queries_is_zero_or_empty(randn, path, t, s):
    q, k, v = (x.requires_grad_() for x in (randn(2, 2, t, 3), randn(2, 2, s, 3), randn(2, 2, s, 5)))
    for causal in (False, True):
        result = attention(q, k, v, causal=causal, hard=path == "hard", return_weights=path != "fused")
        out = result[0] if isinstance(result, tuple) else result
        assert out.shape == (2, 2, t, 5) and not out.any()
        assert not isinstance(result, tuple) or result[1].shape == (2, 2, t, s)


@pytest.mark.parametrize("mask", ["causal", "chunks", "window", "prefix"])
def test_attention_of_whole_blocks_before_the_first_key_is_zero(randn, mask):
    t, s = 514, 2
    mask = {
        "causal": masks.causal(t, s),
        "chunks": masks.chunked(t, s, 600, 1),
        "window": masks.sliding_window(t, s, 3, 0),
        "prefix": masks.prefix(t, s, 0),
    }[mask]
    q, k, v = (x.requires_grad_() for x in (randn(1, 1, t, 3), randn(1, 1, s, 3), randn(1, 1, s, 3)))
    out = attention(q, k, v, mask=mask)
    assert not out[:, :, :-s].any() and out[:, :, -s:].all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][:, :, :-s].any()
