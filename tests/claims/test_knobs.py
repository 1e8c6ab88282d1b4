"""Knobs at and beyond their ends: an experiment answers with a verdict, or the person with one sentence."""

import math

import pytest

from qkv import claims
from qkv.claims.registry import settings

QUICK = [claim.name for claim in claims.CLAIMS.values() if claim.cost == "instant" and claim.name != "scale"]
# knobs that go so low only together with another
ALONE = {
    ("average", "d"): "10 vectors at right angles need a width of 10 or more; got 3",
    ("identity", "d"): "8 vectors at right angles need a width of 8 or more; got 1",
    ("heads-formula", "width"): "width=1 does not split into heads=3",
    ("streaming", "tokens"): "so that the wait shows; got 2",
    ("patches-are-convolution", "side"): "pictures of 1 pixels do not cut into patches of 4; sides that fit: 1",
}


@pytest.mark.parametrize("name", claims.names())
def test_a_knob_beyond_its_ends_is_answered_with_what_would_fit(name):
    claim = claims.find(name)
    for knob in claim.knobs:
        least, most = knob.between
        said = rf"^{name}: {knob.name} \(.*\) is a (whole )?number from .* to .*such as {knob.default:g}; got "
        odd = [least - 1, most + 1, math.nan, math.inf, -math.inf, "much", None, True, 1e300, -1e300]
        for value in odd + [least + 0.5] * knob.whole + [least + 1] * (knob.step > 1):
            with pytest.raises(ValueError, match=said):
                settings(claim, {knob.name: value})


@pytest.mark.parametrize("name", claims.names())
def test_what_a_claim_says_of_a_knob_lies_between_its_ends(name):
    claim = claims.find(name)
    for knob in claim.knobs:
        own = [knob.default, knob.long, claim.overturn.get(knob.name)]
        assert all(knob.checked(value, name) == value for value in own if value is not None)


@pytest.mark.parametrize("name", QUICK)
def test_at_the_lowest_end_of_a_knob_there_is_a_verdict_or_a_sentence(name):
    for knob in claims.find(name).knobs:
        lowest = {knob.name: knob.between[0]}
        if said := ALONE.get((name, knob.name)):
            with pytest.raises(ValueError, match=said):
                claims.run(name, **lowest)
        else:
            found = claims.run(name, **lowest)
            assert found.verdict in ("holds", "holds-if", "fails", "undecided") and found.numbers


def test_every_knob_that_must_be_turned_with_another_is_there():
    assert all(any(knob.name == known for knob in claims.find(name).knobs) for name, known in ALONE)
