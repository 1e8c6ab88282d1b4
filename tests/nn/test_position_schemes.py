"""Rope, Alibi, T5Bias and Shaw inside MultiHeadAttention, against loops."""

import pytest
import torch
from reference import attend_by_loops, close

from qkv.nn import Dot, MultiHeadAttention, Positions
from qkv.nn.positions import ShawTable, T5BiasTable, t5_buckets
from qkv.nn.rope import Rope, YarnScaling
from qkv.nn.shapes import merge_heads, repeat_heads, split_heads
from qkv.positions import Alibi, Shaw, T5Bias

BETA = 0.6
SCHEMES = {
    "rope": Rope(base=50.0),
    "rope, halves": Rope(pairing="halves", rotary_dim=2, scaling=YarnScaling(2.0, 8)),
    "alibi": Alibi(),
    "t5": T5Bias(8, 6),
    "t5, causal": T5Bias(8, 6, bidirectional=False),
    "shaw": Shaw(2),
}


def bias_by_loops(layer, q, queries, keys):
    """(b, h, t, s): what the scheme adds to the scores, one number at a time; positions are (b, t) and (b, s)."""
    b, h, t, _ = q.shape
    added = torch.zeros(b, h, t, keys.shape[-1], dtype=torch.float64)
    for row in range(b):
        for head in range(h):
            for i, p in enumerate(queries[row].tolist()):
                for j, n in enumerate(keys[row].tolist()):
                    added[row, head, i, j] = bias_of_pair(layer.position, q[row, head, i], head, n - p)
    return added


def bias_of_pair(scheme, query, head, distance):
    if isinstance(scheme, Alibi):
        return -(2.0 ** (-8 * (head + 1) / 2)) * abs(distance)  # two heads
    if isinstance(scheme, T5BiasTable):
        kind = scheme.scheme
        bucket = t5_buckets(
            torch.tensor([distance]),
            num_buckets=kind.num_buckets,
            max_distance=kind.max_distance,
            bidirectional=kind.bidirectional,
        )
        return scheme.table.weight[int(bucket), head].item()
    if isinstance(scheme, ShawTable):
        limit = scheme.scheme.max_distance
        vector = scheme.vectors[max(-limit, min(limit, distance)) + limit]
        return BETA * sum(x * y for x, y in zip(query.tolist(), vector.tolist(), strict=True))
    return 0.0


@pytest.mark.parametrize("case", ["self", "cross", "padded"])
@pytest.mark.parametrize("name", SCHEMES)
def test_position_scheme_in_a_layer_equals_its_formula(randn, device, name, case):
    layer = MultiHeadAttention(8, 2, kv_heads=1, score=Dot(BETA), position=SCHEMES[name]).double().to(device)
    assert layer.to_q is not None and layer.to_k is not None
    x = randn(2, 5, 8)
    source = randn(2, 6, 8) if case == "cross" else x
    token_mask = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 1, 0]], device=device).bool() if case == "padded" else None
    out = layer(x, source if case == "cross" else None, token_mask=token_mask)

    keys = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]) if case == "padded" else torch.arange(6)[: source.shape[1]]
    keys = keys.expand(2, -1).to(device)
    queries = torch.arange(5, device=device).expand(2, 5) if case == "cross" else keys
    with torch.no_grad():
        q, k = split_heads(layer.to_q(x), 2), split_heads(layer.to_k(source), 1)
        v = repeat_heads(split_heads(layer.to_v(source), 1), 2)
        if isinstance(layer.position, Rope):
            q, k = layer.position(q, queries), layer.position(k, keys)
        bias = bias_by_loops(layer, q, queries, keys)
        mask = None if token_mask is None else token_mask[:, None, None]
        expected, _ = attend_by_loops(q, repeat_heads(k, 2), v, scale=BETA, bias=bias, mask=mask)
        close(out, layer.to_out(merge_heads(expected)))
    close(layer(x, source if case == "cross" else None, token_mask=token_mask, return_weights=True)[0], out)


@pytest.mark.parametrize("name", SCHEMES)
def test_position_scheme_has_gradients_for_its_parameters(randn, device, name):
    layer = MultiHeadAttention(8, 2, position=SCHEMES[name]).double().to(device)
    layer(randn(2, 9, 8), causal=True).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.any() or parameter_name == "to_k.bias", parameter_name  # softmax cancels a shared shift


@pytest.mark.parametrize("name", SCHEMES)
def test_position_scheme_depends_on_distance_alone(randn, device, name):
    layer = MultiHeadAttention(8, 2, position=SCHEMES[name]).double().to(device)
    x, places = randn(2, 5, 8), torch.arange(5, device=device)
    shifted = layer(x, positions=Positions(places + 1000))
    close(shifted, layer(x), 1e-11)
    assert not torch.allclose(layer(x, positions=Positions(3 * places)), shifted)


def test_multi_head_attention_without_position_is_permutation_equivariant(randn, device):
    layer, x = MultiHeadAttention(8, 2).double().to(device), randn(2, 5, 8)
    order = torch.tensor([3, 0, 4, 1, 2], device=device)
    close(layer(x[:, order]), layer(x)[:, order])


def test_positions_rotation_is_computed_once_for_all_layers(device):
    positions, rope = Positions(torch.arange(4, device=device)), Rope()
    assert positions.rotation(rope, 8, torch.float64) is positions.rotation(Rope(), 8, torch.float64)
    assert positions.rotation(rope, 8, torch.float32) is not positions.rotation(rope, 8, torch.float64)
    assert positions.rotation(Rope(base=7.0), 8, torch.float64) is not positions.rotation(rope, 8, torch.float64)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T5Bias(3), "an even num_buckets of at least 4.*got num_buckets=3, max_distance=128"),
        (lambda: T5Bias(2), "got num_buckets=2"),
        (lambda: T5Bias(32, 16), "max_distance above half of it, got num_buckets=32, max_distance=16"),
        (lambda: Shaw(0), "max_distance of Shaw must be at least 1, got 0"),
    ],
)
def test_position_schemes_reject_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
