"""load_rubric: a teacher's own rubrics, and the errors of wrong ones."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_sandbox import LocalSandbox

from qkv.check.grading import grade as grade_module
from qkv.check.grading.rubric import load_rubric

GOOD = """
title = "Attention"
exercise = "function"
[interface]
function = "attention"
signature = "attention(q, k, v, mask=None)"
mask = "mask"
[contract]
scale = "head"
softmax = "keys"
mask = "true-attends"
[[properties]]
name = "scale"
points = 2.5
checks = ["scale"]
[[properties]]
name = "mask"
points = 1
checks = ["mask polarity", "fully masked row"]
[[properties]]
name = "formula"
points = 0.5
checks = ["formula"]
"""
SOLUTION = """
import torch
def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("old", "new", "points"),
    [
        ("", "", [2.5, 1, 0.5]),
        (" * q.shape[-1] ** -0.5", "", [0, 1, 0]),
        ("~mask", "mask", [2.5, 0, 0.5]),
        ("-1e9", "float('-inf')", [2.5, 0, 0.5]),
    ],
)
def test_grade_file_follows_a_teachers_own_rubric(old, new, points, tmp_path, monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)
    rubric, file = tmp_path / "mine.toml", tmp_path / "ada.py"
    rubric.write_text(GOOD, encoding="utf-8")
    file.write_text(SOLUTION.replace(old, new) if old else SOLUTION, encoding="utf-8")
    found = grade_module.grade_file(load_rubric(str(rubric)), file, "ada", 9)
    assert [part.points for part in found.properties] == points, found.remark


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title =", "titel =", "unknown key 'titel'"),
        ('"function"\n', '"functions"\n', "exercise must be one of layer, function"),
        ("points = 2.5", "points = -1", "points must be a number of at least 0, got -1"),
        ("points = 2.5", "points = nan", "points must be a number of at least 0"),
        ("points = 2.5", 'points = "2"', "points must be a number of at least 0, got '2'"),
        ('checks = ["scale"]', 'checks = ["scales"]', "did you mean 'scale'?"),
        ('checks = ["scale"]', "checks = []", "checks must be a list of names"),
        ('name = "mask"', 'name = "scale"', "two properties have the same name"),
        ('function = "attention"', 'klass = "attention"', "must name either a class or a function"),
        ('scale = "head"', 'scales = "head"', "contract: "),
        ("[contract]", "[limits]\nseconds = 0\n[contract]", "seconds must be a whole number of at least 1, got 0"),
        ("[interface]", "[interface", "is not valid TOML"),
        ('mask = "mask"', 'wide = "mask"', "has no 'wide'"),
    ],
)
def test_load_rubric_explains_an_error_in_one_sentence(old, new, said, tmp_path):
    rubric = tmp_path / "mine.toml"
    assert old in GOOD
    rubric.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load_rubric(str(rubric))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) or "TOML" in str(caught.value)


def test_load_rubric_requires_parts_for_checks_that_choose_weights(tmp_path):
    text = load_text("causal-self-attention").replace(
        'parts = { query = "query", key = "key", value = "value", output = "proj" }', ""
    )
    rubric = tmp_path / "mine.toml"
    rubric.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"needs interface.dim = 32, 4 heads, and interface.parts"):
        load_rubric(str(rubric))


def load_text(name):
    from qkv.check.grading.rubric import find_rubric

    return find_rubric(name).read_text(encoding="utf-8")


def test_attention_is_scaled_by_the_root_of_the_head_dim_unless_a_rubric_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)
    text = GOOD.replace('[contract]\nscale = "head"\nsoftmax = "keys"\n', "[contract]\n")
    rubric, file = tmp_path / "mine.toml", tmp_path / "ada.py"
    rubric.write_text(text, encoding="utf-8")
    file.write_text(SOLUTION, encoding="utf-8")
    grade = grade_module.grade_file(load_rubric(rubric), file, "ada", 7)
    assert grade.total == grade.possible


def test_points_that_nobody_can_earn_are_refused(tmp_path):
    rubric = tmp_path / "mine.toml"
    rubric.write_text(GOOD.replace('mask = "true-attends"\n', ""), encoding="utf-8")
    with pytest.raises(ValueError, match="'mask polarity' needs mask"):
        load_rubric(rubric)
