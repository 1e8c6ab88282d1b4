"""grade_file takes points for exactly what is wrong in a submission."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_sandbox import LocalSandbox
from submissions import EXERCISES

from qkv.check.grading import bundled_rubrics, load_rubric
from qkv.check.grading import grade as grade_module

QUICK = ("no scale", "mask inverted", "mask of −∞")
SLOW = ("causal-self-attention", "multi-head-attention", "dense-synthesizer")
CASES = [
    pytest.param(
        name,
        wrong,
        id=f"{name}: {wrong}",
        marks=[pytest.mark.long] if name in SLOW and wrong not in (*QUICK, "scores meet keys") else [],
    )
    for name, (_, cases) in EXERCISES.items()
    for wrong in cases
]


@pytest.fixture(autouse=True)
def _local_sandbox(monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)


def grade_source(name, source, tmp_path, seed=7):
    path = tmp_path / "ada.py"
    path.write_text(source, encoding="utf-8")
    return grade_module.grade_file(load_rubric(name), path, "ada", seed)


def lost_properties(grade):
    return {part.name for part in grade.properties if part.points < part.possible}


def failures(grade):
    return [(part.name, finding) for part in grade.properties for finding in part.findings if finding.verdict != "pass"]


def test_every_bundled_rubric_has_submissions_here():
    assert set(bundled_rubrics()) == set(EXERCISES)


@pytest.mark.parametrize("seed", [1, pytest.param(2**40 + 5, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", EXERCISES)
def test_grade_file_gives_a_right_solution_every_point(name, seed, tmp_path):
    grade = grade_source(name, EXERCISES[name][0], tmp_path, seed)
    assert failures(grade) == []
    assert grade.total == grade.possible == load_rubric(name).total == 10
    assert grade.remark is None


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_grade_file_takes_exactly_the_points_of_what_is_wrong(name, wrong, tmp_path):
    right, cases = EXERCISES[name]
    (old, new), expected = cases[wrong]
    assert old in right
    grade = grade_source(name, right.replace(old, new), tmp_path)
    if expected is None:
        assert grade.total < grade.possible
    else:
        assert lost_properties(grade) == expected, failures(grade)
    assert grade.remark


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:\n", "the file does not run: SyntaxError: invalid syntax (line 1)"),
        ("import torch\n1 / 0\n", "the file does not run: ZeroDivisionError: division by zero (line 2)"),
        ("import nothing_of_this_name\n", "the file does not run: ModuleNotFoundError"),
        ("x = 3\n", "the interface is not met: NameError: the file defines no"),
    ],
)
def test_a_file_that_does_not_run_gets_no_points_and_the_reason(name, source, said, tmp_path):
    grade = grade_source(name, source, tmp_path)
    assert grade.total == 0
    assert grade.remark is not None
    assert grade.remark.startswith(said)


def test_a_wrong_flattening_order_of_a_patch_is_explained(tmp_path):
    right, cases = EXERCISES["vit-patch-embedding"]
    grade = grade_source("vit-patch-embedding", right.replace(*cases["channels last"][0]), tmp_path)
    assert "explained exactly: a patch is flattened as rows, columns, channels" in str(grade.remark)


def test_a_mistake_in_a_layer_is_explained_exactly(tmp_path):
    right, cases = EXERCISES["causal-self-attention"]
    grade = grade_source("causal-self-attention", right.replace(*cases["mask of −5"][0]), tmp_path)
    formula = grade.properties[-1].findings[0]
    assert formula.hint is not None
    assert "explained exactly: masked scores are not −∞ but −5" in formula.hint


def test_a_convolution_is_as_good_as_a_linear_layer(tmp_path):
    source = """
from torch import nn
class PatchEmbedding(nn.Module):
    def __init__(self, image_size, patch_size, in_channels, embed_dim):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dim, patch_size, stride=patch_size)
    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2)
"""
    assert grade_source("vit-patch-embedding", source, tmp_path).total == 10


def test_a_layer_that_fails_in_float64_is_graded_in_float32(tmp_path):
    source = EXERCISES["causal-self-attention"][0].replace(
        "(att @ v)", "(att.float() @ v)"
    )  # an error in float64, right in float32
    grade = grade_source("causal-self-attention", source, tmp_path)
    assert lost_properties(grade) == set(), failures(grade)


def test_the_same_seed_gives_the_same_evidence_and_another_seed_other_inputs(tmp_path):
    right, cases = EXERCISES["rope"]
    source = right.replace(*cases["the other way"][0])
    first, again, other = (grade_source("rope", source, tmp_path, seed) for seed in (3, 3, 4))
    assert first == again
    assert first.properties[-1].findings[0].score != other.properties[-1].findings[0].score
