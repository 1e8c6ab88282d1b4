"""Claims that train: tiny settings show that they run; their verdicts with full settings are long tests."""

from typing import Any

import pytest

from qkv import claims
from qkv.claims.claim import decide

TRAINED = [claim.name for claim in claims.CLAIMS.values() if claim.cost == "minutes"]
SECONDS = [claim.name for claim in claims.CLAIMS.values() if claim.cost == "seconds"]
TINY: dict[str, Any] = {
    "positions": {"steps": 0},
    "position-maps": {"steps": 2, "count": 50, "seeds": 1},
    "class-token": {"steps": 2, "count": 50, "seeds": 1},
    "data-regimes": {"steps": 2, "seeds": 1, "most": 64},
    "data-regimes-real": {"steps": 2, "seeds": 1, "most": 64},
    "warm-up": {"steps": 2, "seeds": 1, "layers": 2},
    "pretraining": {"people": 20, "steps": 4, "seeds": 1},
    "made-up": {"people": 20, "steps": 4, "seeds": 1},
    "two-uses": {"steps": 4},
    "synthesizer": {"steps": 2, "seeds": 1, "pairs": 3},
}


@pytest.mark.parametrize("name", SECONDS)
def test_a_claim_of_seconds_has_its_verdict(name):
    result = claims.run(name)
    assert result.verdict == claims.find_claim(name).expected, result.condition


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", [*TRAINED, *SECONDS])
def test_a_trained_claim_has_its_verdict_for_every_seed(name, seed):
    result = claims.run(name, seed)
    assert result.verdict == claims.find_claim(name).expected, result.condition


@pytest.mark.long
def test_two_uses_holds_where_the_generator_without_a_mask_does_well():
    found = claims.run("two-uses", 9)
    assert found.numbers["encoder mask, trained to generate: grammatical sentences"] > 0.5  # type: ignore[operator]
    assert found.verdict == "holds", found.condition


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_claim_runs_with_tiny_settings(name):
    result = claims.run(name, **TINY[name])
    assert result.verdict == decide(result.predicates)
    assert result.numbers and result.predicates
    assert result.condition or result.verdict == "holds"


def test_the_closed_form_part_of_positions_holds_without_training():
    assert claims.run("positions", 1, steps=0).verdict == "holds-if"


def test_a_class_token_without_edges_to_the_patches_does_not_depend_on_the_image():
    found = claims.run("class-token", **TINY["class-token"]).numbers["accuracy, class token, edges masked"]
    assert found == pytest.approx(0.1, abs=0.03)


def test_the_best_guess_with_free_values_is_computed_exactly():
    from qkv.claims.synthesizer import most_frequent_share

    assert most_frequent_share(2) == pytest.approx(0.75)  # both alike: 1, else ½
    assert most_frequent_share(8) == pytest.approx(0.324, abs=0.001)
