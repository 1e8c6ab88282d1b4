"""The rubrics of courses: full marks for right solutions in any style, the right points lost for usual mistakes."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from course_submissions import COURSES
from local_sandbox import LocalSandbox
from submissions import EXERCISES

from qkv.check.grading import bundled_rubrics, load_rubric
from qkv.check.grading import grade as grade_module

SLOW = ("cs224n-perceiver", "nyu-vit-patch-embedding", "nyu-vit-encoder-block", "nyu-vit-model")
QUICK = ("no residual in up", "features first", "one head", "no positions", "batch_first forgotten", "a plain list")
STYLES = [
    pytest.param(name, style, id=f"{name}: {style}") for name, (styles, _, _) in COURSES.items() for style in styles
]
WRONG = [
    pytest.param(
        name, wrong, id=f"{name}: {wrong}", marks=[pytest.mark.long] if name in SLOW and wrong not in QUICK else []
    )
    for name, (_, _, cases) in COURSES.items()
    for wrong in cases
]


@pytest.fixture(autouse=True)
def _local_sandbox(monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)


def grade_source(name, source, tmp_path, seed=7):
    path = tmp_path / "ada.py"
    path.write_text(source, encoding="utf-8")
    return grade_module.grade_file(load_rubric(name), path, "ada", seed)


@pytest.mark.parametrize(("name", "style"), STYLES)
def test_grade_file_gives_full_marks_whatever_the_style(name, style, tmp_path):
    grade = grade_source(name, COURSES[name][0][style], tmp_path)
    assert grade.mistakes == ()
    assert grade.total == grade.possible == 10


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_grade_file_takes_the_points_of_a_usual_mistake_and_explains_it(name, wrong, tmp_path):
    _, right, cases = COURSES[name]
    (old, new), expected = cases[wrong]
    assert old in right
    grade = grade_source(name, right.replace(old, new), tmp_path)
    lost = {part.name for part in grade.properties if part.points < part.possible}
    assert lost == expected if expected is not None else lost, grade.mistakes
    assert all(mistake.evidence and mistake.where is not None for mistake in grade.mistakes)
    assert grade.mistakes[0].fix or "failed" in grade.mistakes[0].evidence


def test_every_bundled_rubric_is_graded_with_eight_usual_mistakes():
    known = {name: cases for name, (_, _, cases) in COURSES.items() if cases}
    known |= {name: cases for name, (_, cases) in EXERCISES.items()}
    composed = {"cs224n-a5", "nyu-vit"}
    assert set(bundled_rubrics()) == set(known) | composed
    assert {name: len(cases) for name, cases in known.items() if len(cases) < 8} == {}


@pytest.mark.parametrize("style", ["torch layers", "einops", pytest.param("config, post-norm", marks=pytest.mark.long)])
def test_the_whole_notebook_of_nyu_gets_40_points(style, tmp_path):
    grade = grade_source("nyu-vit", COURSES["nyu-vit-model"][0][style], tmp_path)
    assert (grade.total, grade.possible, grade.remark) == (40, 40, None)


def test_a_missing_part_of_a_homework_costs_its_points_only(tmp_path):
    right = COURSES["cs224n-rope"][1] + COURSES["cs224n-name-dataset"][1] + COURSES["cs224n-evaluation"][1]
    grade = grade_source("cs224n-a5", right, tmp_path)
    assert grade.total == 30
    assert grade.possible == 80
    assert grade.refused is None
    missing = [mistake for mistake in grade.mistakes if mistake.property.startswith("CausalSelfAttention")]
    assert missing[0].points == 10
    assert "defines no 'CausalSelfAttention'" in missing[0].evidence


STEP_OF_A_BATCH = """
def train_step(model, images, labels, optimizer, criterion):
    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
"""


@pytest.mark.parametrize(
    ("first", "lost"),
    [("", set()), ("    model.train()\n", set()), ("    model.eval()\n", {"training mode"})],
    ids=["left to the caller", "train", "eval"],
)
def test_a_step_of_one_batch_may_leave_the_mode_to_its_caller_and_not_turn_it_off(first, lost, tmp_path):
    source = STEP_OF_A_BATCH.replace("    optimizer.zero_grad()\n", f"{first}    optimizer.zero_grad()\n")
    grade = grade_source("nyu-vit-training-step", source, tmp_path)
    assert {part.name for part in grade.properties if part.points < part.possible} == lost, grade.mistakes


def test_nn_multihead_attention_without_batch_first_is_named(tmp_path):
    _, right, cases = COURSES["nyu-vit-encoder-block"]
    grade = grade_source("nyu-vit-encoder-block", right.replace(*cases["batch_first forgotten"][0]), tmp_path)
    assert any("batch_first=True" in (mistake.fix or "") for mistake in grade.mistakes)


def test_a_required_argument_is_bound_by_a_part_of_its_name(tmp_path):
    source = COURSES["nyu-vit-encoder-block"][1].replace(
        "embed_dim, num_heads, hidden_dim,", "token_width, how_many_heads, mlp_hidden,"
    )
    source = (
        source.replace("hidden_dim", "mlp_hidden")
        .replace("num_heads,", "how_many_heads,")
        .replace("embed_dim", "token_width")
    )
    grade = grade_source("nyu-vit-encoder-block", source, tmp_path)
    assert (grade.total, grade.remark) == (10, None)


@pytest.mark.parametrize(("name", "total"), [("n_head", 10), ("num_heads", 10), ("mixed", 0)])
def test_a_config_may_be_read_by_other_names_but_not_by_two_at_once(name, total, tmp_path):
    right = EXERCISES["causal-self-attention"][0]
    source = re.sub(r"config\.n_head\b", f"config.{name}", right)
    if name == "mixed":  # the course's own config has no n_heads: this file would not run with it
        source = right.replace("super().__init__()\n", "super().__init__()\n        print(config.n_heads)\n")
    assert name == "n_head" or source != right
    grade = grade_source("causal-self-attention", source, tmp_path)
    assert grade.total == total
    assert name != "mixed" or "'n_heads' and 'n_head' are read from the config" in str(grade.remark)


def test_an_argument_that_no_interface_names_is_an_error_that_names_it(tmp_path):
    source = COURSES["nyu-vit-patch-embedding"][1].replace("(self, img_size=32", "(self, zoom, img_size=32")
    grade = grade_source("nyu-vit-patch-embedding", source, tmp_path)
    assert grade.total == 0
    assert "needs an argument 'zoom'" in grade.remark


@pytest.mark.parametrize("name", ["c", "hp", "settings"])
def test_the_only_argument_of_a_class_is_the_config_whatever_its_name(name, tmp_path):
    source = EXERCISES["causal-self-attention"][0].replace("config", name)
    grade = grade_source("causal-self-attention", source, tmp_path)
    assert (grade.total, grade.remark) == (10, None)
