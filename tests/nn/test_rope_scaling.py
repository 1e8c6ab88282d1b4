"""Every RopeScaling against its formula for one pair at a time."""

import math

import pytest
import torch
from reference import close

from qkv.nn.rope import LinearScaling, Llama3Scaling, NtkScaling, Rope, RopeScaling, YarnScaling

WIDTHS = pytest.mark.parametrize("dim", [4, 8, 64, 128])


def plain(i, dim, base):
    return 1.0 / base ** (2 * i / dim)


def llama3(i, dim, base, factor, low, high, length):
    """Meta's code for Llama 3.1, by wavelength."""
    frequency = plain(i, dim, base)
    wavelength = 2 * math.pi / frequency
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / factor
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def yarn(i, dim, base, factor, length, fast, slow, truncate):
    """The YaRN authors' code: a linear ramp between the pairs that turn `fast` and `slow` times in the old length."""

    def correction(turns):
        return (dim * math.log(length / (turns * 2 * math.pi))) / (2 * math.log(base))

    low, high = correction(fast), correction(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    ramp = min(max((i - low) / (high - low), 0.0), 1.0)
    extrapolation, interpolation = plain(i, dim, base), plain(i, dim, base) / factor
    return interpolation * ramp + extrapolation * (1 - ramp)


def check(scaling, dim, base, formula):
    expected = [formula(i) for i in range(dim // 2)]
    close(scaling.frequencies(dim, base), torch.tensor(expected, dtype=torch.float64), 1e-15)


@WIDTHS
def test_linear_scaling_divides_every_frequency(dim):
    check(LinearScaling(4.0), dim, 1e4, lambda i: plain(i, dim, 1e4) / 4.0)


def test_linear_scaling_divides_positions(randn, device):
    x, positions = randn(6, 8), torch.arange(6, device=device)
    close(Rope(scaling=LinearScaling(3.0))(x, 3 * positions), Rope()(x, positions))


@WIDTHS
def test_ntk_scaling_raises_the_base(dim):
    base = 1e4 * 4.0 ** (dim / (dim - 2))
    check(NtkScaling(4.0), dim, 1e4, lambda i: plain(i, dim, base))


@WIDTHS
def test_ntk_scaling_keeps_the_fastest_pair_and_stretches_the_slowest_by_the_factor(dim):
    ratio = NtkScaling(4.0).frequencies(dim, 1e4) / RopeScaling().frequencies(dim, 1e4)
    close(ratio[[0, -1]], torch.tensor([1.0, 0.25]))


@WIDTHS
@pytest.mark.parametrize("settings", [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (3.0, 2.0, 7.5, 100)])
def test_llama3_scaling_is_metas_code(dim, settings):
    check(Llama3Scaling(*settings), dim, 5e5, lambda i: llama3(i, dim, 5e5, *settings))


def test_llama3_scaling_blends_somewhere_in_between():
    ratio = Llama3Scaling().frequencies(128, 5e5) * 5e5 ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert (ratio == 1).any() and (ratio == 1 / 8).any() and ((ratio > 0.13) & (ratio < 0.99)).any()


@WIDTHS
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("settings", [(4.0, 4096, 32.0, 1.0), (40.0, 4096, 32.0, 1.0), (2.0, 64, 8.0, 2.0)])
def test_yarn_scaling_is_the_authors_code(dim, settings, truncate):
    factor, length, fast, slow = settings
    scaling = YarnScaling(factor, length, fast, slow, truncate=truncate)
    check(scaling, dim, 1e4, lambda i: yarn(i, dim, 1e4, factor, length, fast, slow, truncate))


@pytest.mark.parametrize(
    ("factor", "attention", "amplitude"),
    [
        (4.0, None, 0.1 * math.log(4.0) + 1),
        (0.5, None, 1.0),
        (1.0, None, 1.0),
        (4.0, 1.25, 1.25),
    ],
)
def test_yarn_sharpens_scores_by_the_square_of_its_amplitude(randn, factor, attention, amplitude):
    scaling = YarnScaling(factor, 64, attention_factor=attention)
    assert scaling.amplitude == amplitude
    x = randn(3, 8)
    turned = Rope(scaling=scaling)(x)
    close((turned * turned).sum(-1), amplitude**2 * (x * x).sum(-1))


@pytest.mark.parametrize(
    "scaling",
    [LinearScaling(2.0), NtkScaling(2.0), Llama3Scaling(), YarnScaling(2.0, 64)],
    ids=lambda s: type(s).__name__,
)
def test_a_rope_turns_by_its_scaled_frequencies(randn, device, scaling):
    x, positions = randn(4, 8), torch.tensor([0, 3, 50, 900], device=device)
    angles = positions.cpu()[:, None] * scaling.frequencies(8, 1e4)
    points = torch.view_as_complex(x.cpu().unflatten(-1, (4, 2)).contiguous())
    expected = torch.view_as_real(points * torch.polar(torch.full_like(angles, scaling.amplitude), angles)).flatten(-2)
    close(Rope(scaling=scaling)(x, positions), expected)
