"""Every wrong implementation that a claim names changes the outcome of claims.run."""

import inspect

import pytest

from qkv import claims
from qkv.claims.claim import Predicate, decide
from qkv.claims.mutants import ATTENTIONS, COMPONENTS, wrong_implementation

QUICK = ("instant", "seconds")
PAIRS = [(claim.name, mutant) for claim in claims.CLAIMS.values() for mutant in claim.mutants]
NORMAL = [(name, mutant) for name, mutant in PAIRS if claims.find_claim(name).cost in QUICK]
LONG = [pair for pair in PAIRS if pair not in NORMAL]
_correct: dict[str, claims.ClaimResult] = {}


def check_overturn(name: str, mutant: str) -> None:
    """With the wrong implementation the verdict is another, or a predicate that was as expected is not."""
    claim = claims.find_claim(name)
    if name not in _correct:
        _correct[name] = claims.run(name, **claim.overturn)
        assert claim.cost == "minutes" or _correct[name].verdict == claim.expected
    wrong = claims.run(name, **wrong_implementation(mutant), **claim.overturn)
    correct = {p.name: p.ok for p in _correct[name].predicates}
    changed = [p.name for p in wrong.predicates if correct[p.name] != p.ok]
    message = f"{name} measures nothing that {mutant} changes: leave it out of the claim's list, or measure more"
    assert wrong.verdict != _correct[name].verdict or changed, message


@pytest.mark.parametrize(("name", "mutant"), NORMAL)
def test_a_wrong_implementation_overturns_the_claim(name, mutant):
    check_overturn(name, mutant)


@pytest.mark.long
@pytest.mark.parametrize(("name", "mutant"), LONG)
def test_a_wrong_implementation_overturns_the_trained_claim(name, mutant):
    check_overturn(name, mutant)


@pytest.mark.parametrize("name", claims.claim_names())
def test_every_claim_names_a_wrong_implementation_and_its_own_knobs(name):
    claim = claims.find_claim(name)
    assert claim.mutants, "name a wrong implementation that overturns it"
    assert all(mutant in ATTENTIONS or mutant in COMPONENTS for mutant in claim.mutants)
    parameters = list(inspect.signature(claim.experiment).parameters)[1:]
    assert parameters == [knob.name for knob in claim.knobs]
    assert all(knob.help for knob in claim.knobs)
    assert set(claim.overturn) <= set(parameters)
    assert claim.figure, "give `figure`, the caption of the panels that the experiment returns"
    assert claim.statement.endswith((".", ")", "”"))
    if claim.expected != "holds":
        assert claim.condition, "say when it holds, or what is the case instead"


def test_the_textbook_attention_overturns_nothing():
    right = ATTENTIONS["written-out"]
    for name in ("shapes", "beta", "copy", "average", "equivariance", "convolution", "encoder-decoder", "streaming"):
        assert claims.run(name, attention=right).verdict == claims.find_claim(name).expected


def test_decide_follows_from_the_predicates_alone():
    held, broken, unknown = (Predicate("p", 0.0, "", ok) for ok in (True, False, None))
    beyond, control = Predicate("b", 0.0, "", False, "beyond"), Predicate("c", 0.0, "", False, "control")
    assert decide([held]) == "holds"
    assert decide([held, beyond]) == "holds-if"
    assert decide([held, broken, beyond]) == "fails"
    assert decide([held, unknown]) == "undecided"
    assert decide([broken, unknown]) == "fails"
    assert decide([held, control]) == "undecided"
    assert decide([]) == "undecided"
