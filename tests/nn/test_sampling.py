"""Sampling: greedy, and draws whose frequencies are the probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import close

from qkv.nn.sampling import choose_greedy, keep_min_p, keep_top_k, keep_top_p, sample, sampling_probabilities

INF = float("inf")


def test_choose_greedy_takes_the_first_of_the_most_likely(device):
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, -INF, 0.0, 0.0]], device=device)
    assert choose_greedy(logits).tolist() == [1, 0]


def test_sample_with_temperature_zero_is_greedy(randn):
    logits = randn(20, 9)
    assert torch.equal(sample(logits, temperature=0.0), logits.argmax(-1))
    assert torch.equal(sample(logits, temperature=1e-3), logits.argmax(-1))


def test_sampling_probabilities_divide_logits_by_the_temperature(randn):
    logits = randn(3, 9)
    close(sampling_probabilities(logits, temperature=0.5), (2 * logits).softmax(-1))
    flat = sampling_probabilities(logits, temperature=1e6)
    close(flat, torch.full((3, 9), 1 / 9), 1e-5)


@pytest.mark.parametrize(
    ("row", "k", "kept"),
    [
        ([1.0, 4.0, 2.0, 3.0], 2, [1, 3]),
        ([1.0, 3.0, 3.0, 2.0], 1, [1, 2]),  # equal to the lowest kept: all stay
        ([3.0, 1.0, 1.0, 1.0], 2, [0, 1, 2, 3]),
        ([1.0, 2.0, 3.0, 4.0], 9, [0, 1, 2, 3]),
        ([1.0, -INF, -INF, 0.0], 3, [0, 3]),
    ],
)
def test_keep_top_k_keeps_the_k_highest_and_their_equals(device, row, k, kept):
    logits = keep_top_k(torch.tensor([row], device=device), k)
    assert (logits > -INF).nonzero()[:, 1].tolist() == kept
    assert all(logits[0, j] == row[j] for j in kept)


@pytest.mark.parametrize(
    ("probabilities", "p", "kept"),
    [
        ([0.1, 0.5, 0.1, 0.3], 0.45, [1]),
        ([0.1, 0.5, 0.1, 0.3], 0.55, [1, 3]),
        ([0.1, 0.5, 0.1, 0.3], 0.85, [0, 1, 3]),  # of equals, the first
        ([0.1, 0.5, 0.1, 0.3], 1.0, [0, 1, 2, 3]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
        ([0.1, 0.5, 0.1, 0.3], 1e-9, [1]),
    ],
)
def test_keep_top_p_keeps_the_smallest_set_that_reaches_p(device, probabilities, p, kept):
    logits = torch.tensor([probabilities], dtype=torch.float64, device=device).log()
    assert (keep_top_p(logits, p) > -INF).nonzero()[:, 1].tolist() == kept


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(st.lists(st.floats(-8, 8), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_keep_top_p_set_is_minimal(row, p):
    logits = torch.tensor([row], dtype=torch.float64)
    probabilities, kept = logits.softmax(-1)[0], keep_top_p(logits, p)[0] > -INF
    assert probabilities[kept].sum() >= p - 1e-9
    assert probabilities[kept].sum() - probabilities[kept].min() < p + 1e-9
    assert kept.all() or probabilities[kept].min() >= probabilities[~kept].max()


def test_keep_top_p_of_one_keeps_every_token(randn):
    logits = 5 * randn(2, 50_000, dtype=torch.float32)
    assert torch.equal(keep_top_p(logits, 1.0), logits)


@pytest.mark.parametrize(("p", "kept"), [(0.0, [0, 1, 2, 3]), (0.3, [1, 3]), (0.61, [1]), (1.0, [1])])
def test_keep_min_p_keeps_tokens_relative_to_the_most_likely(device, p, kept):
    logits = torch.tensor([[0.1, 0.5, 0.1, 0.3]], dtype=torch.float64, device=device).log()
    assert (keep_min_p(logits, p) > -INF).nonzero()[:, 1].tolist() == kept


def test_sampling_probabilities_apply_top_k_then_min_p_then_top_p(device):
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64, device=device).log()
    # top-k leaves 4/9, 3/9, 2/9; min-p of a half those three; of them the first two reach 0.75
    close(sampling_probabilities(logits, top_k=3, min_p=0.5, top_p=0.75), torch.tensor([[4, 3, 0, 0]]) / 7, 1e-7)
    # all of v: 0.4 and 0.3 do not reach 0.75, the third is needed
    close(sampling_probabilities(logits, top_p=0.75), torch.tensor([[4, 3, 2, 0]]) / 9, 1e-7)


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.4}], ids=str)
def test_sample_draws_with_the_given_probabilities(randn, device, options):
    row = randn(1, 6)
    probabilities = sampling_probabilities(row, **options)[0]
    generator = torch.Generator(device).manual_seed(1)
    draws = sample(row.expand(20_000, -1), generator=generator, **options)
    frequencies = torch.bincount(draws, minlength=6) / 20_000
    deviation = (probabilities * (1 - probabilities) / 20_000).sqrt()
    assert ((frequencies - probabilities).abs() <= 5 * deviation).all()
    assert not frequencies[probabilities == 0].any()
    assert abs(probabilities.sum() - 1) < 1e-12


def test_sample_with_the_same_generator_draws_the_same_tokens(randn, device):
    logits = randn(50, 9)
    one, again, other = (sample(logits, generator=torch.Generator(device).manual_seed(s)) for s in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_sampling_probabilities_of_half_precision_are_float32(randn):
    assert sampling_probabilities(randn(2, 9).bfloat16()).dtype == torch.float32


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be 0 \(greedy\) or positive and finite, got -1.0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be in \\(0, 1\\], got 0.0"),
        ({"top_p": 1.5}, "top_p must be in \\(0, 1\\], got 1.5"),
        ({"min_p": -0.1}, "min_p must be in \\[0, 1\\], got -0.1"),
        ({"min_p": 1.1}, "min_p must be in \\[0, 1\\], got 1.1"),
    ],
)
def test_sample_rejects_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        sample(torch.zeros(1, 4), **options)
