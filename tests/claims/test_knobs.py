"""Knobs at and beyond their ends: a claim gives a verdict, or an error of one sentence."""

import math

import pytest

from qkv import claims
from qkv.claims.claim import decide
from qkv.claims.registry import knob_values

QUICK = [claim.name for claim in claims.CLAIMS.values() if claim.cost == "instant" and claim.name != "scale"]
# knobs whose lowest value needs another knob to change, too
ALONE = {
    ("average", "d"): "10 orthonormal vectors need a dimension of at least 10, got 3",
    ("identity", "d"): "8 orthonormal vectors need a dimension of at least 8, got 1",
    ("heads-formula", "dim"): "dim=1 is not divisible by heads=3",
    ("streaming", "tokens"): "so that the latency shows; got 2",
    ("patches-are-convolution", "image_size"): "1 pixels do not divide into patches of 4; patch sizes that fit: 1",
}


@pytest.mark.parametrize("name", claims.claim_names())
def test_knob_values_rejects_a_value_beyond_the_ends_and_says_what_fits(name):
    claim = claims.find_claim(name)
    for knob in claim.knobs:
        least, most = knob.between
        said = rf"^{name}: {knob.name} \(.*\) must be (an integer|a number) from .* to .*such as {knob.default:g}; got "
        odd = [least - 1, most + 1, math.nan, math.inf, -math.inf, "much", None, True, 1e300, -1e300]
        for value in odd + [least + 0.5] * knob.is_integer + [least + 1] * (knob.step > 1):
            with pytest.raises(ValueError, match=said):
                knob_values(claim, {knob.name: value})


@pytest.mark.parametrize("name", claims.claim_names())
def test_the_values_that_a_claim_names_are_valid(name):
    claim = claims.find_claim(name)
    for knob in claim.knobs:
        own = [knob.default, knob.long, claim.overturn.get(knob.name)]
        assert all(knob.validate(value, name) == value for value in own if value is not None)


@pytest.mark.parametrize("name", QUICK)
def test_run_works_at_the_lowest_end_of_every_knob(name):
    for knob in claims.find_claim(name).knobs:
        lowest = {knob.name: knob.between[0]}
        if said := ALONE.get((name, knob.name)):
            with pytest.raises(ValueError, match=said):
                claims.run(name, **lowest)
        else:
            found = claims.run(name, **lowest)
            assert found.verdict == decide(found.predicates)
            assert found.numbers and found.knobs[knob.name] == knob.between[0]


def test_every_knob_that_depends_on_another_exists():
    assert all(any(knob.name == known for knob in claims.find_claim(name).knobs) for name, known in ALONE)
