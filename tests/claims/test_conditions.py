"""claims.run: the condition and the caption follow from what was measured with the knobs as set."""

import pytest

from qkv import claims


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


def test_residual_norm_judges_gradients_by_their_ratio_to_a_stack_with_both():
    found = claims.run("residual-norm", seeds=2)
    assert found.verdict == "holds-if"
    assert value(found, "no residual: gradient relative") < 1e-3
    assert value(found, "no norm: gradient relative") > 1e3
    assert 0.01 < value(found, "both, post-norm: gradient relative") < 100
    assert "the stack is deep" in found.condition and "after 64 layers" in found.condition
    assert claims.run("residual-norm", depth=48, seeds=1).figure.endswith("after 48.")
    assert claims.run("residual-norm", depth=4, seeds=1).verdict == "fails"


def test_path_length_is_one_over_n_for_uniform_attention_and_level_for_a_sharp_head():
    found = claims.run("path-length", seeds=2, longest=128)
    assert value(found, "uniform: exponent") == pytest.approx(-1, abs=0.4)
    assert value(found, "sharp head: exponent") == pytest.approx(0, abs=0.01)
    assert value(found, "sharp head: weight") == pytest.approx(0.5, abs=0.01)
    assert "n = 128" in " ".join(found.numbers)


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
