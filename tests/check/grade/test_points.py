"""Points are lost for exactly what is wrong."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local import LocalRemote
from submissions import EXERCISES

from qkv.check.grading import grading
from qkv.check.grading.rubric import load_rubric, shipped

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
def _here(monkeypatch):
    monkeypatch.setattr(grading, "Remote", LocalRemote)


def graded(name, source, tmp_path, seed=7):
    path = tmp_path / "ada.py"
    path.write_text(source, encoding="utf-8")
    return grading.grade(load_rubric(name), path, "ada", seed)


def lost(grade):
    return {part.name for part in grade.earned if part.points < part.possible}


def why(grade):
    return [(part.name, finding) for part in grade.earned for finding in part.findings if finding.verdict != "pass"]


def test_every_rubric_that_is_shipped_is_tried_here():
    assert set(shipped()) == set(EXERCISES)


@pytest.mark.parametrize("seed", [1, pytest.param(2**40 + 5, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", EXERCISES)
def test_a_right_solution_gets_every_point(name, seed, tmp_path):
    grade = graded(name, EXERCISES[name][0], tmp_path, seed)
    assert why(grade) == []
    assert grade.total == grade.possible == load_rubric(name).total == 10
    assert grade.remark is None


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_a_wrong_solution_loses_exactly_the_points_of_what_is_wrong(name, wrong, tmp_path):
    right, cases = EXERCISES[name]
    (old, new), expected = cases[wrong]
    assert old in right
    grade = graded(name, right.replace(old, new), tmp_path)
    if expected is None:
        assert grade.total < grade.possible
    else:
        assert lost(grade) == expected, why(grade)
    assert grade.remark


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:\n", "the file does not run: SyntaxError: invalid syntax (line 1)"),
        ("import torch\n1 / 0\n", "the file does not run: ZeroDivisionError: division by zero (line 2)"),
        ("import nothing_of_this_name\n", "the file does not run: ModuleNotFoundError"),
        ("x = 3\n", "the interface is not met: NameError: there is no"),
    ],
)
def test_what_does_not_run_gets_nothing_and_the_reason(name, source, said, tmp_path):
    grade = graded(name, source, tmp_path)
    assert grade.total == 0
    assert grade.remark is not None
    assert grade.remark.startswith(said)


def test_a_wrong_order_within_a_patch_is_named(tmp_path):
    right, cases = EXERCISES["vit-patch-embedding"]
    grade = graded("vit-patch-embedding", right.replace(*cases["channels last"][0]), tmp_path)
    assert "explained exactly: a patch is flattened as rows, columns, channels" in str(grade.remark)


def test_a_mistake_in_a_layer_is_explained_through_its_walls(tmp_path):
    right, cases = EXERCISES["causal-self-attention"]
    grade = graded("causal-self-attention", right.replace(*cases["mask of −5"][0]), tmp_path)
    formula = grade.earned[-1].findings[0]
    assert formula.hint is not None
    assert "explained exactly: masked scores are not −∞ but − 5" in formula.hint


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
    assert graded("vit-patch-embedding", source, tmp_path).total == 10


def test_code_that_knows_no_float64_is_judged_in_float32(tmp_path):
    source = EXERCISES["causal-self-attention"][0].replace(
        "(att @ v)", "(att.float() @ v)"
    )  # an error in float64, right in float32
    grade = graded("causal-self-attention", source, tmp_path)
    assert lost(grade) == set(), why(grade)


def test_the_same_seed_gives_the_same_evidence_and_another_seed_other_inputs(tmp_path):
    right, cases = EXERCISES["rope"]
    source = right.replace(*cases["the other way"][0])
    first, again, other = (graded("rope", source, tmp_path, seed) for seed in (3, 3, 4))
    assert first == again
    assert first.earned[-1].findings[0].score != other.earned[-1].findings[0].score
