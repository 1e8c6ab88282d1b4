"""The overturn test: every wrong implementation that a claim names changes its outcome."""

import inspect

import pytest

from qkv import claims
from qkv.claims.mutants import ATTENTIONS, PARTS
from qkv.claims.predicates import Predicate, verdict

QUICK = ("instant", "seconds")
PAIRS = [(claim.name, mutant) for claim in claims.CLAIMS.values() for mutant in claim.mutants]
NORMAL = [(name, mutant) for name, mutant in PAIRS if claims.find(name).cost in QUICK]
LONG = [pair for pair in PAIRS if pair not in NORMAL]
_sound: dict[str, claims.ClaimResult] = {}


def check_overturn(name: str, mutant: str) -> None:
    """With the wrong implementation the verdict is another, or a predicate that was as expected is not."""
    claim = claims.find(name)
    if name not in _sound:
        _sound[name] = claims.run(name, **claim.overturn)
        assert claim.cost == "minutes" or _sound[name].verdict == claim.expected
    if mutant in ATTENTIONS:
        wrong = claims.run(name, attention=ATTENTIONS[mutant], **claim.overturn)
    else:
        wrong = claims.run(name, part=PARTS[mutant], **claim.overturn)
    sound = {p.name: p.ok for p in _sound[name].predicates}
    changed = [p.name for p in wrong.predicates if sound[p.name] != p.ok]
    assert wrong.verdict != _sound[name].verdict or changed


@pytest.mark.parametrize(("name", "mutant"), NORMAL)
def test_a_wrong_implementation_overturns_the_claim(name, mutant):
    check_overturn(name, mutant)


@pytest.mark.long
@pytest.mark.parametrize(("name", "mutant"), LONG)
def test_a_wrong_implementation_overturns_the_trained_claim(name, mutant):
    check_overturn(name, mutant)


@pytest.mark.parametrize("name", claims.names())
def test_every_claim_names_a_wrong_implementation_and_its_own_knobs(name):
    claim = claims.find(name)
    assert claim.mutants
    assert all(mutant in ATTENTIONS or mutant in PARTS for mutant in claim.mutants)
    parameters = list(inspect.signature(claim.experiment).parameters)[1:]
    assert parameters == [knob.name for knob in claim.knobs]
    assert all(knob.help for knob in claim.knobs)
    assert set(claim.overturn) <= set(parameters)
    assert claim.figure and claim.statement.endswith((".", ")", "”"))
    if claim.expected != "holds":
        assert claim.condition


def test_a_right_attention_written_afresh_overturns_nothing():
    right = ATTENTIONS["written-out"]
    for name in ("shapes", "beta", "copy", "average", "equivariance", "convolution", "encoder-decoder", "streaming"):
        assert claims.run(name, attention=right).verdict == claims.find(name).expected


def test_the_verdict_follows_from_the_predicates_alone():
    held, broken, unknown = (Predicate("p", 0.0, "", ok) for ok in (True, False, None))
    beyond, control = Predicate("b", 0.0, "", False, "beyond"), Predicate("c", 0.0, "", False, "control")
    assert verdict([held]) == "holds"
    assert verdict([held, beyond]) == "holds-if"
    assert verdict([held, broken, beyond]) == "fails"
    assert verdict([held, unknown]) == "undecided"
    assert verdict([broken, unknown]) == "fails"
    assert verdict([held, control]) == "undecided"
    assert verdict([]) == "undecided"
