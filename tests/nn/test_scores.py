"""Every score but the dot product, against loops over batch, heads, queries and keys."""

import copy
import math

import pytest
import torch
from reference import choose, close

from qkv.nn import Additive, DenseSynthesizer, LocationAware, MultiHeadAttention, Positions, RandomSynthesizer
from qkv.nn.positions import count_positions
from qkv.nn.shapes import merge_heads, repeat_heads, split_heads

WIDTH, HEADS, LENGTH = 8, 2, 9
SCORES = {
    "additive": Additive(5),
    "location-aware": LocationAware(5, filters=3, kernel_size=5),
    "location-aware, narrow": LocationAware(4, filters=2, kernel_size=1),
    "dense synthesizer": DenseSynthesizer(LENGTH),
    "dense synthesizer of each head": DenseSynthesizer(LENGTH, shared=False),
    "random synthesizer": RandomSynthesizer(LENGTH),
}


@torch.no_grad()
def score_by_loops(layer, q, k, row, head, i, last, queries, keys):
    """The scores of one query (a list over keys), and how each is written in its paper."""
    scorer, score = layer.scorer, layer.score
    scores = []
    for j, position in enumerate(keys):
        if isinstance(score, RandomSynthesizer):
            scores.append(float(scorer.table[head, queries[i], position]))
            continue
        query = q[row][head][i]
        if isinstance(score, DenseSynthesizer):
            table = head if not score.shared else 0
            number = float(scorer.bias[table, 0, position])
            number += sum(max(x, 0.0) * float(scorer.weight[table, c, position]) for c, x in enumerate(query))
            scores.append(number)
            continue
        number = 0.0
        for c, x in enumerate(query):
            inner = x + k[row][head][j][c] + float(scorer.bias[head, c])
            if isinstance(score, LocationAware):
                for n in range(score.filters):
                    kernel = scorer.filters[head * score.filters + n, 0].tolist()
                    places = [j + m - score.kernel_size // 2 for m in range(score.kernel_size)]
                    feature = sum(w * last[p] for w, p in zip(kernel, places, strict=True) if 0 <= p < len(last))
                    inner += feature * float(scorer.to_hidden[head, n, c])
            number += float(scorer.weight[head, c]) * math.tanh(inner)
        scores.append(number)
    return scores


def weights_by_loops(layer, x, memory, mask):
    t, s = x.shape[1], memory.shape[1]
    q = None if layer.to_q is None else split_heads(layer.to_q(x), HEADS).tolist()
    k = None if layer.to_k is None else repeat_heads(split_heads(layer.to_k(memory), layer.kv_heads), HEADS).tolist()
    rows = []
    for row in range(x.shape[0]):
        for head in range(HEADS):
            last = [0.0] * s
            for i in range(t):
                scores = score_by_loops(layer, q, k, row, head, i, last, range(t), range(s))
                last = choose(scores, mask[i].tolist())
                rows.append(last)
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape[0], HEADS, t, s)


@pytest.fixture
def make(device):
    def made(score, **options):
        layer = MultiHeadAttention(WIDTH, HEADS, score=score, **options).double().to(device)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        return layer

    return made


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("case", ["free", "causal", "cross"])
@pytest.mark.parametrize("name", SCORES)
def test_score_equals_its_formula(randn, device, make, name, case, kv_heads):
    layer = make(SCORES[name], kv_heads=kv_heads)
    x, memory = randn(2, 4, WIDTH), randn(2, 6, WIDTH)
    source = memory if case == "cross" else x
    mask = torch.ones(4, source.shape[1], dtype=torch.bool, device=device)
    mask = mask.tril() if case == "causal" else mask
    out, weights = layer(x, memory if case == "cross" else None, causal=case == "causal", return_weights=True)
    expected = weights_by_loops(layer, x, source, mask)
    close(weights, expected)
    v = repeat_heads(split_heads(layer.to_v(source), kv_heads), HEADS)
    close(out, layer.to_out(merge_heads(expected.to(device) @ v)))
    assert torch.equal(out, layer(x, memory if case == "cross" else None, causal=case == "causal"))


@pytest.mark.parametrize("name", [name for name in SCORES if "synthesizer" in name])
def test_synthesizers_use_positions_and_not_indices(randn, device, make, name):
    layer = make(SCORES[name])
    x, token_mask = randn(1, 4, WIDTH), torch.tensor([[False, True, False, True]], device=device)
    mask = token_mask.expand(4, 4).tril()
    positions = count_positions(token_mask)[0].tolist()
    q = None if layer.to_q is None else split_heads(layer.to_q(x), HEADS).tolist()
    _, weights = layer(x, causal=True, token_mask=token_mask, return_weights=True)
    for head in range(HEADS):
        for i in range(4):
            scores = score_by_loops(layer, q, None, 0, head, i, None, positions, positions)
            close(weights[0, head, i], torch.tensor(choose(scores, mask[i].tolist()), dtype=torch.float64))


@pytest.mark.parametrize("name", SCORES)
def test_score_with_given_positions_equals_counted_positions(randn, device, make, name):
    layer, x = make(SCORES[name]), randn(2, 4, WIDTH)
    assert torch.equal(layer(x, positions=Positions(torch.arange(4, device=device))), layer(x))


@pytest.mark.parametrize("name", SCORES)
def test_score_has_gradients_for_every_parameter(randn, make, name):
    layer = make(SCORES[name])
    layer(randn(2, 5, WIDTH), causal=True).square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), parameter_name


def test_random_synthesizer_that_is_not_trainable_has_no_gradient(randn, make):
    layer = make(RandomSynthesizer(LENGTH, trainable=False))
    layer(randn(2, 5, WIDTH)).sum().backward()
    assert layer.scorer.table.grad is None
    assert [name for name, _ in layer.named_parameters() if "table" in name] == ["scorer.table"]


def test_synthesizers_have_no_unused_projections(make):
    dense, random = make(DenseSynthesizer(LENGTH)), make(RandomSynthesizer(LENGTH))
    assert dense.to_k is None and dense.to_q is not None
    assert random.to_k is None and random.to_q is None


def test_random_synthesizer_std_is_the_deviation_of_its_table():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, score=RandomSynthesizer(100, std=0.5))
    assert layer.scorer is not None
    assert abs(layer.scorer.get_parameter("table").std().item() - 0.5) < 0.01


@pytest.mark.parametrize("name", SCORES)
def test_score_without_queries_gives_an_empty_output(randn, make, name):
    layer = make(SCORES[name])
    out, weights = layer(randn(2, 0, WIDTH), randn(2, 3, WIDTH), return_weights=True)
    assert out.shape == (2, 0, WIDTH) and weights.shape == (2, HEADS, 0, 3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Additive(0), "hidden_dim of Additive must be at least 1, got 0"),
        (lambda: LocationAware(0), "hidden_dim of LocationAware must be at least 1, got 0"),
        (lambda: LocationAware(4, filters=0), "filters of LocationAware must be at least 1, got 0"),
        (lambda: LocationAware(4, kernel_size=4), "kernel_size of LocationAware must be odd .*, got 4"),
        (lambda: LocationAware(4, kernel_size=-1), "odd.*got -1"),
        (lambda: DenseSynthesizer(0), "max_length of DenseSynthesizer must be at least 1, got 0"),
        (lambda: RandomSynthesizer(0), "max_length of RandomSynthesizer must be at least 1, got 0"),
    ],
)
def test_scores_reject_impossible_arguments(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


@pytest.mark.parametrize("kind", ["dense", "random"])
def test_synthesizers_reject_sequences_beyond_max_length(randn, make, kind):
    layer = make(DenseSynthesizer(4) if kind == "dense" else RandomSynthesizer(4))
    with pytest.raises(ValueError, match=f"this {kind} synthesizer has scores for 4 positions, got a sequence of 6"):
        layer(randn(1, 6, WIDTH))
    with pytest.raises(ValueError, match="for 4 positions, got a sequence of 5"):
        layer(randn(1, 2, WIDTH), randn(1, 5, WIDTH))


def test_random_synthesizer_rejects_queries_beyond_max_length(randn, make):
    with pytest.raises(ValueError, match="this random synthesizer has scores for 4 positions, got a sequence of 6"):
        make(RandomSynthesizer(4))(randn(1, 6, WIDTH), randn(1, 3, WIDTH))


@pytest.mark.parametrize(
    "score",
    [Additive(16), LocationAware(16, 3, 5), DenseSynthesizer(12), RandomSynthesizer(12)],
    ids=lambda score: type(score).__name__,
)
def test_scores_in_bfloat16_are_computed_in_float32(score):
    """The weights of a bfloat16 layer are those of its own numbers, rounded once: not summed in bfloat16."""
    layer = MultiHeadAttention(32, 4, score=score).bfloat16()
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 12, 32).bfloat16()
    q = None if layer.to_q is None else split_heads(layer.to_q(x), 4).double()
    k = None if layer.to_k is None else split_heads(layer.to_k(x), 4).double()
    assert exact.scorer is not None
    expected = exact.scorer(q, k, Positions(torch.arange(12)), None, None).expand(2, -1, -1, -1)
    _, weights = layer(x, return_weights=True)
    assert weights.dtype == torch.bfloat16
    rounded = (weights.double() - expected).abs().max() / expected.max()
    assert rounded <= 2**-8
