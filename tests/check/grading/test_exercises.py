"""grade_file takes points for exactly what is wrong in a submission."""

import hmac
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_sandbox import LocalSandbox
from submissions import EXERCISES

from qkv.check.grading import grade as grade_module
from qkv.check.grading import load_rubric
from qkv.check.grading.client import SandboxUnavailableError, derive_seed

QUICK = ("no scale", "mask inverted", "mask of −∞", "mask after the softmax")
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


ADD_PARAMETER = "\n        self.added = nn.Parameter(torch.zeros({}))\n    def forward(self, x):"
DEEP = """
        for name in ("a." * 3000 + "b",):
            self.named_parameters = lambda *a, **k: [(name, self.proj.weight)]
    def forward(self, x):"""
MANY = """
        self.named_parameters = lambda *a, **k: [(f"p{n}", self.proj.bias) for n in range(5000)]
    def forward(self, x):"""


@pytest.mark.parametrize("shape", ["0, 4", "32, 0", "0"])
def test_grade_file_grades_a_submission_with_an_empty_parameter(shape, tmp_path):
    source = EXERCISES["causal-self-attention"][0].replace("\n    def forward(self, x):", ADD_PARAMETER.format(shape))
    assert grade_source("causal-self-attention", source, tmp_path).total == 10


@pytest.mark.parametrize(("change", "said"), [(DEEP, "3001 parts"), (MANY, "5000 parameters")])
def test_grade_file_limits_the_number_and_depth_of_parameters(change, said, tmp_path):
    source = EXERCISES["causal-self-attention"][0].replace("\n    def forward(self, x):", change)
    grade = grade_source("causal-self-attention", source, tmp_path)
    assert grade.total == 0
    assert said in grade.remark


@pytest.mark.parametrize("error", [KeyError("x"), AttributeError("x"), RecursionError("x"), OSError("x")])
def test_grade_files_grades_the_class_whatever_one_submission_causes(error, tmp_path, monkeypatch):
    def run_checks(sandbox, rubric):
        if "# bad" in sandbox.source.text:
            raise error
        return original(sandbox, rubric)

    original = grade_module.run_checks
    monkeypatch.setattr(grade_module, "run_checks", run_checks)
    paths = [tmp_path / "ada.py", tmp_path / "bad.py"]
    for path in paths:
        path.write_text(EXERCISES["span-corruption"][0] + f"\n# {path.stem}", encoding="utf-8")
    grades = grade_module.grade_files(load_rubric("span-corruption"), paths, seed=1, jobs=1)
    assert [grade.total for grade in grades] == [10, 0]
    assert "cannot be graded" in grades[1].remark


def test_grade_files_gives_the_other_grades_where_one_sandbox_fails(tmp_path, monkeypatch):
    class Failing(LocalSandbox):
        def __enter__(self):
            if "# bad" in self.source.text:
                raise SandboxUnavailableError("no memory")
            return self

    monkeypatch.setattr(grade_module, "Sandbox", Failing)
    paths = [tmp_path / "bad.py", tmp_path / "ada.py"]
    for path in paths:
        path.write_text(EXERCISES["span-corruption"][0] + f"\n# {path.stem}", encoding="utf-8")
    rubric = load_rubric("span-corruption")
    grades = grade_module.grade_files(rubric, paths, seed=1, jobs=1)
    assert [grade.total for grade in grades] == [0, 10]
    assert grades[0].remark == "not graded: its sandbox failed (no memory)"
    with pytest.raises(ValueError, match="this system allows no sandbox"):
        grade_module.grade_files(rubric, paths[:1], seed=1)


CONSTANTS = {
    "ones": "torch.ones(shape, dtype=x.dtype)",
    "zeros with a gradient": "0 * x.sum() + torch.zeros(shape, dtype=x.dtype)",
    "NaN": "torch.full(shape, float('nan'), dtype=x.dtype)",
    "some NaN": "torch.randn(shape, dtype=x.dtype).clamp(min=0).log().log()",
    "infinite": "torch.full(shape, float('inf'), dtype=x.dtype)",
    "noise": "torch.randn(shape, dtype=x.dtype)",
    "seeded noise": "(torch.manual_seed(0), torch.randn(shape, dtype=x.dtype))[1]",
    "parameters only": "sum((p.sum() for p in parameters), torch.ones(shape, dtype=x.dtype))",
}
LAYER = """
import torch
from torch import nn
class {name}(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        for name in ("query", "key", "value", "proj", "q_proj", "k_proj", "v_proj", "out_proj", "w1"):
            setattr(self, name, nn.Linear(32, 32))
    def forward(self, x, *args, **kwargs):
        shape, parameters = {shape}, list(self.parameters())
        return {out}
"""
FUNCTION = """
import torch
def apply_rope(x, positions):
    shape, parameters = x.shape, []
    return {out}
"""


@pytest.mark.parametrize("out", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize(
    "name", ["causal-self-attention", "multi-head-attention", "dense-synthesizer", "vit-patch-embedding", "rope"]
)
def test_constant_nan_and_forged_tensors_earn_nothing(name, out, tmp_path):
    rubric = load_rubric(name)
    settings = rubric.exercises[0].interface.settings
    shape = "x.shape"
    if name == "vit-patch-embedding":
        shape = f"(x.shape[0], {(settings['image_size'] // settings['patch_size']) ** 2}, {settings['dim']})"
    template = FUNCTION if name == "rope" else LAYER
    grade = grade_source(name, template.format(name=rubric.exercises[0].interface.name, shape=shape, out=out), tmp_path)
    assert grade.total == 0, grade.properties
    assert any(said in grade.remark for said in ("NaN or infinite", "same for every input", "is noise"))


def test_a_constant_text_earns_nothing(tmp_path):
    grade = grade_source("span-corruption", "def corrupt(document, block_size, rng):\n    return 'x' * 64", tmp_path)
    assert (grade.total, grade.remark) == (0, "the call failed: its text is the same for every document")


def test_the_seeds_of_calls_are_derived_by_hmac_from_the_secret():
    expected = hmac.new(b"5", b"call 3", "sha256").digest()
    assert derive_seed(5, "call 3") == int.from_bytes(expected[:7], "little")
    # one known seed of a call must not give the next one: the difference of neighbors is not the same for every secret
    differences = {derive_seed(secret, "call 2") - derive_seed(secret, "call 1") for secret in range(50)}
    assert len(differences) == 50
