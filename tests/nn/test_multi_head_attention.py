"""MultiHeadAttention against torch.nn.MultiheadAttention and against the formula in loops."""

import pytest
import torch
from reference import attend_by_loops, close
from torch import nn

from qkv import masks
from qkv.checkpoints import from_torch
from qkv.nn import Additive, DenseSynthesizer, Dot, LocationAware, MultiHeadAttention, Positions, RandomSynthesizer
from qkv.nn.kv_cache import LayerKVCache
from qkv.nn.rope import Rope
from qkv.nn.shapes import merge_heads, split_heads
from qkv.positions import Alibi


@pytest.fixture
def pair(device):
    """PyTorch's layer and ours, with the same weights."""

    def make(bias=True):
        theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True).double().to(device).eval()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter)
        ours = from_torch(theirs)
        assert isinstance(ours, MultiHeadAttention)
        return theirs, ours

    return make


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention_equals_pytorch(randn, pair, bias, cross):
    theirs, ours = pair(bias)
    x, memory = randn(2, 5, 12), randn(2, 7, 12)
    source = memory if cross else x
    expected, weights = theirs(x, source, source, average_attn_weights=False)
    out, chosen = ours(x, memory if cross else None, return_weights=True)
    close(out, expected)
    close(ours(x, memory if cross else None), expected)
    close(chosen, weights)


def test_multi_head_attention_token_mask_is_the_inverted_key_padding_mask(randn, pair, device):
    theirs, ours = pair()
    x, memory = randn(2, 5, 12), randn(2, 7, 12)
    token_mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0]], device=device).bool()
    expected, weights = theirs(x, memory, memory, key_padding_mask=~token_mask, average_attn_weights=False)
    out, chosen = ours(x, memory, token_mask=token_mask, return_weights=True)
    close(out, expected)
    close(chosen, weights)
    close(ours(x, memory, mask=masks.padding(token_mask)), expected)


@pytest.mark.parametrize("per_head", [False, True])
def test_multi_head_attention_mask_is_the_inverted_attn_mask(randn, pair, device, per_head):
    theirs, ours = pair()
    x, memory = randn(2, 5, 12), randn(2, 7, 12)
    mask = torch.rand(*((2, 3) if per_head else ()), 5, 7).to(device) < 0.6
    mask[..., 3] = True  # PyTorch gives NaN to a query that may attend to nothing
    forbidden = ~mask.flatten(0, 1) if per_head else ~mask
    close(ours(x, memory, mask=mask), theirs(x, memory, memory, attn_mask=forbidden)[0])


def test_multi_head_attention_causal_equals_the_upper_triangle_attn_mask(randn, pair, device):
    theirs, ours = pair()
    x = randn(2, 6, 12)
    later = torch.ones(6, 6, device=device).triu(1).bool()
    expected, _ = theirs(x, x, x, attn_mask=later)
    close(ours(x, causal=True), expected)
    close(ours(x, mask=masks.causal(6)), expected)
    close(ours(x, causal=True, return_weights=True)[0], expected)


def test_multi_head_attention_gradients_equal_pytorch(randn, pair):
    theirs, ours = pair()
    x = randn(2, 5, 12).requires_grad_()
    (expected,) = torch.autograd.grad(theirs(x, x, x)[0].square().sum(), x)
    close(torch.autograd.grad(ours(x).square().sum(), x)[0], expected, 1e-10)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, None), (4, 1, None), (4, 4, 5), (6, 3, 2)])
def test_multi_head_attention_with_kv_heads_and_head_dim_equals_the_formula(randn, device, heads, kv_heads, head_dim):
    layer = MultiHeadAttention(12, heads, kv_heads=kv_heads, head_dim=head_dim).double().to(device)
    assert layer.to_q is not None and layer.to_k is not None
    x, memory = randn(2, 4, 12), randn(2, 5, 12)
    q = split_heads(layer.to_q(x), heads)
    k, v = split_heads(layer.to_k(memory), kv_heads), split_heads(layer.to_v(memory), kv_heads)
    assert q.shape[-1] == k.shape[-1] == (head_dim or 12 // heads)
    expected, weights = attend_by_loops(q.detach(), k.detach(), v.detach())
    out, chosen = layer(x, memory, return_weights=True)
    close(out, layer.to_out(merge_heads(expected)))
    close(chosen, weights)
    close(layer(x, memory), out)


def test_grouped_query_attention_equals_full_heads_with_repeated_weights(randn, device):
    grouped = MultiHeadAttention(12, 6, kv_heads=2).double().to(device)
    full = MultiHeadAttention(12, 6).double().to(device)
    state = grouped.state_dict()
    for name in ("to_k", "to_v"):
        for part in ("weight", "bias"):
            key = f"{name}.{part}"
            state[key] = state[key].unflatten(0, (2, 2)).repeat_interleave(3, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = randn(2, 5, 12)
    close(grouped(x, causal=True), full(x, causal=True))


def test_multi_head_attention_dot_scale_multiplies_the_scores(randn, device):
    layer = MultiHeadAttention(12, 3, score=Dot(scale=0.0)).double().to(device)
    x = randn(2, 5, 12)
    _, weights = layer(x, causal=True, return_weights=True)
    close(weights[0, 0], torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None], 1e-7)


def test_multi_head_attention_of_a_fully_masked_token_is_the_output_bias(randn, device):
    for score in (Dot(), Additive(4), LocationAware(4, 2, 3), DenseSynthesizer(9), RandomSynthesizer(9)):
        layer = MultiHeadAttention(12, 3, score=score).double().to(device)
        x = randn(2, 4, 12).requires_grad_()
        token_mask = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]], device=device).bool()
        out, weights = layer(x, causal=True, token_mask=token_mask, return_weights=True)
        assert not weights[0, :, :2].any() and not weights[1].any()
        close(out[1], layer.to_out.bias.expand(4, 12))
        out.sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()


def test_multi_head_attention_drops_weights_in_training_only_and_returns_them_undropped(randn, device):
    for score in (Dot(), Additive(4)):
        layer = MultiHeadAttention(12, 3, score=score, dropout=0.5).double().to(device)
        x = randn(2, 9, 12)
        trained, weights = layer(x, return_weights=True)
        layer.eval()
        assert torch.equal(layer(x), layer(x))
        expected, same = layer(x, return_weights=True)
        assert torch.equal(weights, same) and not torch.allclose(trained, expected)


def test_multi_head_attention_works_in_bfloat16_and_under_autocast(randn, device):
    layer = MultiHeadAttention(12, 3, position=Rope()).to(device)
    x = randn(2, 5, 12, dtype=torch.float32)
    exact = layer(x, causal=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        close(layer(x, causal=True).float(), exact, 0.02)
        close(layer(x, causal=True, return_weights=True)[0].float(), exact, 0.02)
    close(layer.bfloat16()(x.bfloat16(), causal=True).float(), exact, 0.02)


X = torch.zeros(2, 5, 12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MultiHeadAttention(12, 5),
            r"dim=12 is not divisible by heads=5; try heads in \[1, 2, 3, 4, 6, 12\]",
        ),
        (lambda: MultiHeadAttention(0, 1), "at least 1, got dim=0, heads=1"),
        (lambda: MultiHeadAttention(12, 0), "at least 1, got dim=12, heads=0"),
        (
            lambda: MultiHeadAttention(12, 4, kv_heads=3),
            r"heads=4 is not divisible by kv_heads=3; try kv_heads in \[1, 2, 4\]",
        ),
        (lambda: MultiHeadAttention(12, 4, kv_heads=0), "kv_heads=0"),
        (lambda: MultiHeadAttention(12, 4, head_dim=0), "head_dim must be at least 1, got 0"),
        (lambda: MultiHeadAttention(12, 4, dropout=1.0), "the dropout probability must be in \\[0, 1\\), got 1.0"),
        (
            lambda: MultiHeadAttention(12, 4, score=Additive(), position=Alibi()),
            "Alibi acts on the dot product.*Additive",
        ),
        (lambda: MultiHeadAttention(12, 4, position=Rope()), r"head_dim=3, got 3; try Rope\(rotary_dim=2\)"),
        (lambda: MultiHeadAttention(12, 3)(X[0]), r"x must be \(batch, tokens, dim=12\), got \(5, 12\)"),
        (lambda: MultiHeadAttention(12, 3)(X[..., :8]), r"got \(2, 5, 8\)"),
        (
            lambda: MultiHeadAttention(12, 3)(X, X[..., :8]),
            r"memory must be \(batch, tokens, dim=12\), got \(2, 5, 8\)",
        ),
        (
            lambda: MultiHeadAttention(12, 3)(X.double()),
            "x must have the layer.s dtype torch.float32, got torch.float64",
        ),
        (lambda: MultiHeadAttention(12, 3)(X, X[:1]), "the same batch size, got 2 and 1"),
        (lambda: MultiHeadAttention(12, 3)(X, mask=X[0, :, :5]), "mask must be boolean"),
        (lambda: MultiHeadAttention(12, 3)(X, mask=masks.causal(4)), "for 4 queries and 4 keys, got 5"),
        (lambda: MultiHeadAttention(12, 3, score=Additive())(X, mask=masks.causal(4)), "for 4 queries and 4 keys"),
        (
            lambda: MultiHeadAttention(12, 3)(X, token_mask=X[..., 0]),
            r"boolean tensor \(b, s\) = \(2, 5\).*torch.float32",
        ),
        (
            lambda: MultiHeadAttention(12, 3)(X, token_mask=torch.ones(2, 4).bool()),
            r"\(b, s\) = \(2, 5\).*shape \(2, 4\)",
        ),
        (
            lambda: MultiHeadAttention(12, 2, position=Rope())(X, token_mask=torch.ones(2, 4).bool()),
            r"\(b, s\) = \(2, 5\).*shape \(2, 4\)",
        ),
        (lambda: MultiHeadAttention(12, 3)(X, token_mask=torch.ones(3, 5).bool()), r"shape \(3, 5\)"),
        (lambda: MultiHeadAttention(12, 2, position=Rope())(X, token_mask=torch.ones(3, 5).bool()), r"shape \(3, 5\)"),
        (
            lambda: MultiHeadAttention(12, 2, position=Rope())(X, positions=Positions(torch.arange(4))),
            "of 5 queries and 5 keys, including cached ones, got 4 and 4",
        ),
        (lambda: LayerKVCache().get(), "the cache is empty; call the layer with it first"),
    ],
)
def test_multi_head_attention_rejects_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_multi_head_attention_rejects_an_ambiguous_mask_of_three_axes(unchecked):
    layer, x = MultiHeadAttention(16, 4), torch.randn(4, 5, 16)
    with pytest.raises(ValueError, match="ambiguous: one per row or one per head; give it four axes"):
        layer(x, mask=torch.ones(4, 5, 5, dtype=torch.bool))
