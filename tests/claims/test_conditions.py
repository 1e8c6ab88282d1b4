"""claims.run: the condition and the caption follow from what was measured with the knobs as set."""

import math

import numpy as np
import pytest
import torch

from qkv import claims
from qkv.claims.knowledge import confidence_overlap
from qkv.studio.api.claims import BREAKS


def value(result: claims.ClaimResult, part: str) -> float:
    """The one number whose name contains the part; the mean where it has a range."""
    (found,) = [number for name, number in result.numbers.items() if part in name]
    return found["value"] if isinstance(found, dict) else found


def test_identity_states_its_condition_as_a_margin_and_needs_no_n_below_d():
    usual, sharp, soft = (claims.run("identity", beta=beta) for beta in (12.0, 200.0, 1.0))
    assert usual.verdict == sharp.verdict == "holds-if" and soft.verdict == "fails"
    assert value(sharp, "lowest diagonal at β") > 0.999 > value(usual, "lowest diagonal at β")
    assert "at β = 12 their lowest is 0.851" in usual.condition and "at β = 200 their lowest is 1" in sharp.condition
    assert "attention is the identity: measured 0.2797" in soft.condition
    assert all("largest cosine" in found.condition for found in (usual, sharp))
    assert "8.85" in usual.figure and "9.61" in claims.run("identity", n=16, d=16).figure  # log 999(n − 1)


@pytest.mark.parametrize("name", [name for name in BREAKS if claims.find_claim(name).cost == "instant"])
def test_a_knob_across_the_condition_changes_verdict_condition_and_caption(name):
    usual = claims.run(name)
    for knob, value_, _ in BREAKS[name]:
        broken = claims.run(name, **{knob: value_})
        assert broken.verdict != usual.verdict
        assert broken.condition and broken.condition != usual.condition
        assert broken.figure != usual.figure and f"{knob} = {value_:g}" in broken.figure


def test_a_claim_that_holds_without_its_condition_says_so():
    found = claims.run("similar-to-rnn", tokens=4)
    assert found.verdict == "holds" and found.condition.startswith("beyond its condition, too: the state of softmax")


def test_similar_to_rnn_names_the_sizes_of_the_states():
    short, wide = claims.run("similar-to-rnn", tokens=16), claims.run("similar-to-rnn", dim=16)
    assert "has 256 numbers" in short.condition and "linear attention 72" in short.condition
    assert "has 768 numbers" in wide.condition and "linear attention 272" in wide.condition  # 16² + 16


def test_made_up_measures_how_right_and_invented_answers_overlap():
    same = torch.linspace(0.1, 0.9, 50)
    assert confidence_overlap(same, same) == (pytest.approx(0.5), pytest.approx(0.5))
    assert confidence_overlap(same + 1, same) == (1.0, 0.0)
    assert all(math.isnan(number) for number in confidence_overlap(same, same[:0]))


def test_run_takes_data_only_where_a_claim_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"copy makes its own data; data='x' is for data-regimes-real"):
        claims.run("copy", data="x")
    random = np.random.default_rng(0)
    arrays = {f"{part}_x": random.integers(0, 256, (24, 32, 32, 3), np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "photos.npz", **arrays, train_y=np.arange(24) % 12, test_y=np.arange(24) % 12)
    found = claims.run("data-regimes-real", data=str(tmp_path / "photos.npz"), steps=1, seeds=1, most=100)
    assert "at 1, 4, 18 images" in found.condition  # the first ten of twelve classes, without two held out
    with pytest.raises(ValueError, match=r"there is nothing at no\.npz"):
        claims.run("data-regimes-real", data="no.npz")


def test_residual_norm_judges_gradients_by_their_ratio_to_a_stack_with_both():
    found = claims.run("residual-norm", seeds=2)
    assert found.verdict == "holds-if"
    assert value(found, "no residual: gradient relative") < 1e-3
    assert value(found, "no norm: gradient relative") > 1e3
    assert 0.01 < value(found, "both, post-norm: gradient relative") < 100
    assert "the stack is deep" in found.condition and "after 64 layers" in found.condition
    assert "after 48." in claims.run("residual-norm", depth=48, seeds=1).figure
    assert claims.run("residual-norm", depth=4, seeds=1).verdict == "fails"


def test_path_length_is_one_over_n_for_uniform_attention_and_level_for_a_sharp_head():
    found = claims.run("path-length", seeds=2, longest=128)
    assert value(found, "uniform: exponent") == pytest.approx(-1, abs=0.4)
    assert value(found, "sharp head: exponent") == pytest.approx(0, abs=0.01)
    assert value(found, "sharp head: weight") == pytest.approx(0.5, abs=0.01)
    assert "n = 128" in " ".join(found.numbers)


def test_path_length_tells_an_lstm_with_open_forget_gates_from_one_without():
    found = claims.run("path-length", seeds=1, longest=128)
    assert value(found, "LSTM: factor") < 0.9 < 0.97 < value(found, "forget bias 5: factor")
    assert "with a forget bias of 5" in found.figure


def test_versus_rnn_mlp_counts_the_matrices_of_all_gates():
    found = claims.run("versus-rnn-mlp")
    assert [value(found, f"of {cell} layer") for cell in ("a simple RNN", "a GRU", "an LSTM")] == [2, 6, 8]


def test_feed_forward_says_that_a_layer_norm_separates_xor_too():
    found = claims.run("feed-forward", seeds=1)
    assert found.verdict == "holds-if" and value(found, "by a layer norm") == 1
    assert "1 with a layer norm in its place" in found.condition


def test_positions_measures_that_a_shift_changes_absolute_schemes():
    found = claims.run("positions", steps=0)
    assert value(found, "sinusoid, added") > 0.01 and value(found, "learned table, added") > 0.01
    assert claims.run("positions", steps=0, shift=0).verdict == "undecided"  # nothing is shifted


def test_run_gives_no_range_for_a_single_run():
    found = claims.run("residual-norm", depth=8, seeds=1)
    assert not any(isinstance(number, dict) for number in found.numbers.values())
    assert any(isinstance(n, dict) for n in claims.run("residual-norm", depth=8, seeds=2).numbers.values())


def test_the_conditions_of_copy_and_two_heads_have_the_figures_of_the_run():
    found = claims.run("copy", beta=60.0)
    assert found.verdict == "holds-if" and "at β = 60" in found.condition
    heads = claims.run("two-heads")
    assert f"{100 * value(heads, 'share of draws'):.1f} % of draws" in heads.condition


def test_entropy_is_written_as_s_because_h_is_the_output():
    found = claims.run("beta")
    assert any("dS/dβ" in name for name in found.numbers) and not any("dH" in name for name in found.numbers)


def test_a_single_start_cannot_tell_whether_position_maps_recovers_the_grid():
    found = claims.run("position-maps", steps=2, count=50, seeds=1)
    unknown = [p.name for p in found.predicates if p.ok is None]
    assert any("untrained" in name for name in unknown) and any("uniform" in name for name in unknown)


def test_data_regimes_says_whether_training_converged_and_names_the_sizes():
    found = claims.run("data-regimes", steps=2, seeds=1, most=64)
    assert found.verdict == "undecided"
    assert "not trained to convergence" in found.condition and "4, 16, 64 images" in found.condition


def test_positions_requires_that_the_task_was_learned_at_the_training_length():
    found = claims.run("positions", steps=1)
    assert found.verdict == "undecided"
    assert "learned it at the training length: measured" in found.condition


def test_positions_names_the_shift_that_was_measured():
    assert "a shift of 500 " in claims.run("positions", steps=0, shift=500).condition


def test_pretraining_tests_against_chance_and_the_most_frequent_place():
    found = claims.run("pretraining", people=20, steps=4, seeds=1)
    assert value(found, "chance among the places") == 1 / 8
    names = " ".join(p.name for p in found.predicates)
    assert "chance" in names and "most frequent" in names


def test_t_interval_is_that_of_student():
    from qkv.claims.experiment import t_interval

    found = t_interval([1.0, 2.0, 3.0, 4.0])  # sd 1.29, 3 degrees of freedom: 3.182 · 1.29 / 2
    assert found["value"] == 2.5 and found["high"] - 2.5 == pytest.approx(2.054, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "knobs", "verdict"),
    [
        ("hard-soft", {"d": 128}, "holds-if"),  # two equal keys tie at every dimension
        ("scale-key", {"beta": 11.2}, "holds-if"),  # a weight of 1 cannot rise
        ("scale", {"m": 2}, "holds-if"),  # two keys have the scores of 64, only fewer of them
        ("encoder-decoder", {"layers": 1}, "holds"),  # one layer sees everything
        ("residual-norm", {"tokens": 2, "seeds": 1}, "holds-if"),
        ("kqv", {"beta": 26.0}, "holds"),  # scores of β⁴ are rounded
        ("heads-formula", {"heads": 1}, "holds"),
        ("average", {"m": 256, "d": 256}, "holds"),
        ("average", {"beta": -100.0}, "fails"),  # the formula is right there, but nothing is averaged
        ("calm-head", {"beta": 2.0}, "fails"),  # the six other keys keep weight
    ],
)
def test_a_knob_within_the_condition_keeps_the_verdict(name, knobs, verdict):
    assert claims.run(name, **knobs).verdict == verdict


def test_diffuse_does_not_blame_a_query_of_0_for_another_beta():
    found = claims.run("diffuse", beta=1000.0)
    assert "β = 1000 gives the plain mean: measured" in found.condition and "query of 0" not in found.condition
    assert next(p for p in found.predicates if "query of 0" in p.name).ok


def test_captions_of_similarities_have_the_figures_of_the_run():
    assert "for 1 token." in claims.run("similar-to-mlp", tokens=1).figure
    uniform = claims.run("heads-are-channels", beta=0.0).figure
    assert "of attention at β = 0" in uniform and "only" not in uniform


OPENINGS = ("nor ", "and ", "but ", "so is", "it ", "its ", "they ", "their ", "not ", "as does", "at the ", "with ¾")


def test_a_comparison_names_its_subject_because_conditions_quote_it_alone():
    for name in (claim.name for claim in claims.CLAIMS.values() if claim.cost == "instant"):
        for predicate in claims.run(name).predicates:
            assert not predicate.name.startswith(OPENINGS), (name, predicate.name)
