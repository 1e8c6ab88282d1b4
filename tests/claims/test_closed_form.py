"""claims.run: each closed-form claim has its verdict for several seeds, with the figures of the literature."""

import math
from functools import cache

import pytest

from qkv import claims

run = cache(claims.run)  # several tests look at one result
CLOSED = [claim.name for claim in claims.CLAIMS.values() if claim.cost == "instant"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_form_claim_has_its_verdict_for_every_seed(name, seed):
    result = run(name, seed)
    assert result.verdict == claims.find_claim(name).expected, result.condition
    if result.verdict in ("holds", "holds-if"):
        assert all(predicate.as_expected for predicate in result.predicates)


@pytest.mark.parametrize(
    ("name", "number", "figure", "tolerance"),
    [
        ("average", "weight with 1/√d", 0.376, 0.0005),
        ("average", "weight of each of the two, scale 1", 0.4999, 0.00005),
        ("identity", "diagonal at β = 1", 0.2797, 0.00005),
        ("values-only", "‖c_2 − u_a‖/β at β = 5", 4.4e-11, 0.05e-11),
        ("kqv", "‖c_2 − u_b‖/β at β = 2", 1.6e-7, 0.05e-7),
        ("kqv", "with Q/β²: ‖c_2 − u_b‖/β at β = 2", 0.025, 0.0005),
        ("values-only", "weight on x_1 after adding u_d", math.exp(-25), 1e-13),
        ("one-head-variance", "weight variance at β = 2", 0.064, 0.002),
        ("one-head-variance", "variance of 1/(1 + e^(−βε)) at β = 2", 0.068, 0.0005),
        ("one-head-variance", "weight variance at β = 5", 0.149, 0.003),
        ("one-head-variance", "weight variance at β = 10", 0.195, 0.003),
        ("one-head-variance", "weight variance at β = 100", 0.244, 0.003),
        ("two-heads", "share of draws with q·k_a < 0", 0.0786, 0.006),
        ("two-heads", "variance ratio, all draws", 0.051, 0.006),
        ("two-heads", "variance ratio where q·k_a > 0", 0.0095, 0.0015),
        ("two-heads", "variance ratio, all draws, by quadrature for α → 0", 0.0512, 0.00005),
        ("two-heads", "the same where q·k_a > 0", 0.0094, 0.00005),
        ("two-heads-wrong", "weight of v_a, calm keys", 0.7498, 0.001),
        ("two-heads-wrong", "weight of v_b, calm keys", 0.2500, 0.001),
        ("worked-example", "weight of token 1 on itself, unscaled", 1.5e-3, 0.02e-3),
        ("worked-example", "weight of token 2 on itself, unscaled", 7.5e-5, 0.05e-5),
        ("worked-example", "weight of token 3 on itself, unscaled", 2.2e-10, 0.05e-10),
        ("worked-example", "third output if the map is rounded first, 1", 1.17, 1e-9),
        ("worked-example", "third output if the map is rounded first, 2", 0.21, 1e-9),
    ],
)
def test_a_number_is_that_of_the_literature(name, number, figure, tolerance):
    found = run(name, 0).numbers[number]
    value = found["value"] if isinstance(found, dict) else found
    assert value == pytest.approx(figure, abs=tolerance)


def test_run_gives_the_same_numbers_for_the_same_seed():
    for name in ("copy", "calm-head", "perturb-key"):
        assert claims.run(name, 7).numbers == claims.run(name, 7).numbers
        assert claims.run(name, 7).numbers != claims.run(name, 8).numbers


def test_run_leaves_the_random_generator_and_the_layers_as_they_were():
    import torch

    from qkv.nn import multi_head_attention as layer

    before, function = torch.get_rng_state(), layer.attention
    for name in ("dropout-weights", "heads-formula", "encoder-decoder"):
        claims.run(name)
    assert torch.equal(before, torch.get_rng_state())
    assert layer.attention is function


def test_a_knob_breaks_a_claim_outside_its_condition():
    assert claims.run("copy").verdict == "holds-if"
    broken = claims.run("copy", beta=1.0)
    assert broken.verdict == "fails"
    assert "the copy is good" in broken.condition
    assert claims.run("calm-head", alpha=0.1).verdict == "fails"
    assert claims.run("scale", mean=1.0).verdict == "fails"


def test_run_answers_an_unknown_knob_with_the_known_ones():
    with pytest.raises(ValueError, match=r"average has no knob 'betta'; its knobs: m .*d .*beta"):
        claims.run("average", betta=3.0)
    with pytest.raises(ValueError, match=r"average: m \(keys\) must be an integer from 3 to 256, such as 10; got 2.5"):
        claims.run("average", m=2.5)


def test_run_answers_an_unknown_claim_with_the_nearest():
    with pytest.raises(ValueError, match="there is no claim 'avarage'; did you mean average"):
        claims.run("avarage")


def test_numbers_are_floats_or_intervals():
    for name in CLOSED:
        for number in run(name, 0).numbers.values():
            if isinstance(number, dict):
                assert set(number) == {"value", "low", "high"}
                assert number["low"] <= number["value"] <= number["high"]
            else:
                assert isinstance(number, float)
    assert math.isnan(run("distribution", 0).numbers["exp without the shift"])  # type: ignore[arg-type]
