"""count_positions, sinusoidal, alibi_slopes and t5_buckets against the published formulas."""

import math

import pytest
import torch
from reference import close

from qkv.nn.positions import Alibi, DistanceBias, PositionScheme, alibi_slopes, count_positions, sinusoidal, t5_buckets


@pytest.mark.parametrize("dim", [1, 2, 5, 16])
def test_sinusoidal_equals_the_formula_of_2017(device, dim):
    positions = torch.tensor([0, 1, 7, 500, 30000], device=device)
    ours = sinusoidal(positions, dim, base=1000.0, dtype=torch.float64)
    for row, p in zip(ours.tolist(), positions.tolist(), strict=True):
        for feature, number in enumerate(row):
            angle = p / 1000.0 ** (2 * (feature // 2) / dim)
            assert abs(number - (math.cos(angle) if feature % 2 else math.sin(angle))) < 1e-11


def test_sinusoidal_of_a_length_equals_that_of_its_positions(device):
    assert torch.equal(sinusoidal(6, 8), sinusoidal(torch.arange(6), 8))
    positions = torch.tensor([[0, 3], [5, 1]], device=device)
    assert torch.equal(sinusoidal(positions, 8)[1, 0], sinusoidal(positions[1], 8)[0])
    assert sinusoidal(6, 8).dtype == torch.float32 and sinusoidal(6, 8, dtype=torch.float64).dtype == torch.float64


def test_sinusoidal_of_far_positions_is_exact_in_float32():
    close(sinusoidal(torch.tensor([1_000_003]), 2)[0], torch.tensor([math.sin(1_000_003), math.cos(1_000_003)]), 1e-7)


@pytest.mark.usefixtures("unchecked")
def test_sinusoidal_rejects_a_dim_of_zero():
    with pytest.raises(ValueError, match="dim of sinusoids must be at least 1, got 0"):
        sinusoidal(3, 0)


@pytest.mark.parametrize(
    ("token_mask", "positions"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([0, 0, 1, 1], [0, 0, 0, 1]),  # left padding
        ([1, 1, 0, 0], [0, 1, 1, 1]),  # right padding
        ([0, 1, 0, 1, 1, 0, 0, 1], [0, 0, 0, 1, 2, 2, 2, 3]),  # holes
        ([0, 0, 0], [0, 0, 0]),
        ([], []),
    ],
)
def test_count_positions_counts_real_tokens(device, token_mask, positions):
    flags = torch.tensor([token_mask], dtype=torch.bool, device=device)
    assert count_positions(flags).tolist() == [positions]


def published_slopes(heads: int) -> list[float]:
    """The recipe of the paper's own code: a geometric series for powers of two, filled up from the next power."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", range(1, 18))
def test_alibi_slopes_equal_the_published_ones(heads):
    close(alibi_slopes(heads), torch.tensor(published_slopes(heads), dtype=torch.float64), 1e-15)


def test_alibi_bias_falls_by_its_slope_with_distance(randn, device):
    queries, keys = torch.tensor([4, 5], device=device), torch.tensor([0, 1, 5, 9], device=device)
    bias = Alibi().bias(randn(1, 3, 2, 4), queries, keys).to_dense()
    slopes = published_slopes(3)
    expected = [[[-slope * abs(key - query) for key in (0, 1, 5, 9)] for query in (4, 5)] for slope in slopes]
    close(bias, torch.tensor(expected, dtype=torch.float64))


def test_alibi_bias_of_rows_at_different_positions_is_per_row(randn, device):
    positions = torch.tensor([[0, 1, 2], [0, 0, 1]], device=device)
    bias = Alibi().bias(randn(2, 4, 3, 4), positions, positions).to_dense()
    assert bias.shape == (2, 4, 3, 3)
    for row in range(2):
        close(bias[row], Alibi().bias(randn(1, 4, 3, 4), positions[row], positions[row]).to_dense())


def test_distance_bias_tile_is_a_rectangle_of_to_dense(randn, device):
    positions = torch.tensor([[0, 1, 2, 3, 3, 4], [0, 0, 0, 1, 2, 3]], device=device)
    bias = Alibi().bias(randn(2, 3, 4, 4), positions[:, 2:], positions)
    assert isinstance(bias, DistanceBias)
    for rows in (range(4), range(1, 3), range(2, 2)):
        for columns in (range(6), range(3, 5)):
            assert torch.equal(
                bias.tile(rows, columns),
                bias.to_dense()[..., rows.start : rows.stop, columns.start : columns.stop],
            )


def t5_bucket(distance: int, buckets: int, limit: int, bidirectional: bool) -> int:
    """One bucket of T5, in plain Python: distance is key − query."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, back = (buckets if distance > 0 else 0), abs(distance)
    else:
        back = max(-distance, 0)
    near = buckets // 2
    if back < near:
        return first + back
    share = math.log(back / near) / math.log(limit / near)
    return first + min(near + int(share * (buckets - near) + 1e-6), buckets - 1)  # 1e-6: log(2^a)/log(2^b) is a/b


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "limit"), [(32, 128), (32, 64), (8, 20), (4, 3), (6, 128)])
def test_t5_buckets_equal_the_formula_in_a_loop(device, buckets, limit, bidirectional):
    distances = list(range(-300, 301))
    ours = t5_buckets(
        torch.tensor(distances, device=device), num_buckets=buckets, max_distance=limit, bidirectional=bidirectional
    )
    assert ours.tolist() == [t5_bucket(distance, buckets, limit, bidirectional) for distance in distances]


def test_position_scheme_base_class_changes_nothing(randn, device):
    q, places = randn(1, 2, 3, 4), torch.arange(3, device=device)
    scheme = PositionScheme().build(2, 4)
    assert scheme.rotate(q, scheme.rotation(places, 4, q.dtype)) is q
    assert scheme.bias(q, places, places) is None
