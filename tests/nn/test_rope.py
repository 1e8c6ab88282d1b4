"""Rope against complex multiplication; scores that depend on distance alone."""

import cmath

import pytest
import torch
from reference import close

from qkv.nn.rope import LinearScaling, Llama3Scaling, NtkScaling, Rope, RopeScaling, YarnScaling

PAIRINGS = pytest.mark.parametrize("pairing", ["interleaved", "halves"])


def turned_by_complex_numbers(x, positions, base, pairing, dim):
    """Each pair of features as one complex number times exp(i·angle); x is (t, d)."""
    rows = []
    for row, position in zip(x.tolist(), positions.tolist(), strict=True):
        row = list(row)
        for pair in range(dim // 2):
            a, b = (2 * pair, 2 * pair + 1) if pairing == "interleaved" else (pair, pair + dim // 2)
            point = complex(row[a], row[b]) * cmath.exp(1j * position * base ** (-2 * pair / dim))
            row[a], row[b] = point.real, point.imag
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@PAIRINGS
@pytest.mark.parametrize("dim", [None, 2, 6])
def test_rope_equals_complex_multiplication(randn, device, pairing, dim):
    x, positions = randn(5, 8), torch.tensor([0, 1, 2, 77, 4000], device=device)
    ours = Rope(base=500.0, pairing=pairing, rotary_dim=dim)(x, positions)
    close(ours, turned_by_complex_numbers(x, positions, 500.0, pairing, dim or 8))


@PAIRINGS
@pytest.mark.parametrize("dim", [None, 4])
def test_rope_scores_depend_on_distance_alone(randn, device, pairing, dim):
    rope, q, k = Rope(pairing=pairing, rotary_dim=dim), randn(2, 3, 6, 8), randn(2, 3, 6, 8)
    places = torch.arange(6, device=device)

    def scores(shift):
        return rope(q, places + shift) @ rope(k, places + shift).mT

    assert not torch.allclose(scores(0), q @ k.mT)
    for shift in (1, 97, 10_000):
        close(scores(shift), scores(0), 1e-11)


@PAIRINGS
def test_rope_keeps_the_norm(randn, pairing):
    x = randn(2, 3, 6, 8)
    close(Rope(pairing=pairing)(x, offset=9).norm(dim=-1), x.norm(dim=-1))


def test_rope_pairings_differ_by_the_order_of_features_only(randn):
    x = randn(2, 3, 6, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=x.device)
    close(Rope(pairing="halves")(x[..., order]), Rope(pairing="interleaved")(x)[..., order], 0.0)


def test_rope_offset_is_the_first_position(randn, device):
    rope, x = Rope(), randn(2, 3, 6, 8)
    whole = rope(x)
    assert torch.equal(rope(x[:, :, 4:], offset=4), whole[:, :, 4:])
    assert torch.equal(rope(x, torch.arange(6, device=device)), whole)


def test_rope_leaves_features_beyond_rotary_dim_unchanged(randn):
    x = randn(2, 3, 6, 8)
    ours = Rope(rotary_dim=6)(x)
    assert torch.equal(ours[..., 6:], x[..., 6:])
    close(ours[..., :6], Rope()(x[..., :6]))


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (2, 4, 8)])
def test_rope_takes_positions_per_row(randn, device, shape):
    x, positions = randn(*shape), torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]], device=device)
    ours = Rope()(x, positions)
    assert ours.shape == shape
    for row in range(2):
        close(ours[row], Rope()(x[row], positions[row]))


def test_rope_rotate_with_a_table_equals_the_call(randn, device):
    rope, x, positions = Rope(), randn(2, 3, 4, 8), torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]], device=device)
    assert torch.equal(rope.rotate(x, rope.rotation(positions, 8, x.dtype)), rope(x, positions))


def test_rope_scaling_base_class_has_the_published_frequencies():
    expected = [10.0 ** (-2 * i / 6) for i in range(3)]
    close(RopeScaling().frequencies(6, 10.0), torch.tensor(expected, dtype=torch.float64))
    assert RopeScaling().amplitude == 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rope_at_far_positions_is_exact_to_the_dtype(randn, dtype):
    x = randn(1, 1, 4, 16).to(dtype)
    exact = Rope()(x.double(), offset=30_000)
    ours = Rope()(x, offset=30_000)
    assert ours.dtype == dtype
    bound = exact.abs() * torch.finfo(dtype).eps + 2e-6  # tables are float32 at least
    assert ((ours.double() - exact).abs() <= bound).all()


def test_rope_gradients_are_rotated_back(randn):
    x = randn(2, 3, 6, 8).requires_grad_()
    weighing = randn(2, 3, 6, 8)
    (gradient,) = torch.autograd.grad((Rope()(x, offset=3) * weighing).sum(), x)
    close(Rope()(gradient, offset=3), weighing)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rope(pairing="thirds"), "'interleaved' or 'halves', got 'thirds'"),  # pyright: ignore[reportArgumentType]
        (lambda: Rope(base=0.0), "base of Rope must be positive, got 0.0"),
        (lambda: Rope(rotary_dim=3), "an even number of at least 2, got 3"),
        (lambda: Rope(rotary_dim=0), "an even number of at least 2, got 0"),
        (lambda: Rope()(torch.zeros(2, 5)), r"head_dim=5, got 5; try Rope\(rotary_dim=4\)"),
        (lambda: Rope(rotary_dim=8).build(2, 6), r"head_dim=6, got 8; try Rope\(rotary_dim=6\)"),
        (lambda: Rope()(torch.zeros(4, 8), torch.arange(1)), "one position per token, got 1 for 4"),
        (lambda: LinearScaling(0.0), "factor of LinearScaling must be positive, got 0.0"),
        (lambda: NtkScaling(-2.0), "factor of NtkScaling must be positive, got -2.0"),
        (lambda: Llama3Scaling(original_max_length=0), "original_max_length of Llama3Scaling must be positive, got 0"),
        (
            lambda: Llama3Scaling(low_freq_factor=4.0, high_freq_factor=4.0),
            "low_freq_factor of Llama3Scaling must be below high_freq_factor, got 4.0 and 4.0",
        ),
        (lambda: YarnScaling(2.0, 0), "original_max_length of YarnScaling must be positive, got 0"),
        (lambda: Rope().rotate(torch.zeros(2, 4), None), "needs a table of angles: rope.rotation"),
    ],
)
def test_rope_rejects_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
