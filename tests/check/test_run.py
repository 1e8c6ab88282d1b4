"""`qkv check` and `check.run`: what they report, and how they refuse."""

import json

import pytest
import torch
from torch import nn

from qkv.check import Contract, run
from qkv.cli.main import run as command

STUDENT = """
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.n_embd)
        self.layer = nn.TransformerEncoderLayer(config.n_embd, config.n_head, 64, batch_first=True)
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx):
        return self.head(self.layer(self.table(idx)))


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def unreadable(a):
    return "nothing"


class Odd(torch.nn.Module):
    def __init__(self, recipe):
        super().__init__()


number = 3
"""


@pytest.fixture
def student(tmp_path):
    path = tmp_path / "student.py"
    path.write_text(STUDENT)
    return path


def test_check_reports_a_leak_with_numbers_and_exit_code_1(student, capsys):
    assert command(["check", f"{student}:Leaky", "--kind", "causal", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["kind"] == "bidirectional"
    causal = next(finding for finding in report["findings"] if finding["check"] == "causal")
    assert causal["verdict"] == "fail"
    assert " changes (effect " in causal["evidence"]
    assert causal["evidence"].endswith("future tokens leak")
    assert "no causal mask" in causal["hint"]


def test_check_json_has_the_fields_of_report_and_finding(student, capsys):
    command(["check", f"{student}:attention", "--contract", "textbook", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert {"ok", "kind", "contract", "findings"} <= set(report)
    assert report["contract"]["kind"] == "causal"
    for finding in report["findings"]:
        assert {"check", "verdict", "score", "evidence", "hint"} <= set(finding)


def test_check_describes_what_is_not_promised(student, capsys):
    command(["check", f"{student}:attention", "--json"])
    findings = {f["check"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    failed = {name for name, finding in findings.items() if finding["verdict"] == "fail"}
    assert failed == {"fully masked row", "fully padded row"}  # NaN on finite input is never excused
    assert findings["scale"]["verdict"] == "described"
    assert "the scale is missing" in findings["scale"]["evidence"]
    assert findings["mask polarity"]["evidence"] == "True = may attend"


def test_check_fails_a_broken_promise(student, capsys):
    assert command(["check", f"{student}:attention", "--scale", "head"]) == 1
    shown = capsys.readouterr().out
    assert "NOT SOUND" in shown
    assert "scale is missing" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_check_reports_that_torch_gives_nan_for_a_fully_padded_row(capsys):
    assert command(["check", "torch.nn:MultiheadAttention"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "row 1 is all padding; the outputs of row 1 are NaN" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a target"),
        (["nothing.py:X"], "there is no file nothing.py"),
        (["no.such.package:X"], "could not be imported"),
        (["torch.nn"], "a target is file.py:Name or package.module:Name"),
        (["torch.nn:Nothing"], "torch.nn has no 'Nothing'"),
        (["{student}:Odd"], "needs 'recipe', which could not be guessed"),
        (["torch.nn:MultiheadAttention", "--args", "{dim: 3}"], "--args must be a JSON object"),
        (["torch.nn:MultiheadAttention", "--args", '{"num_heads": 5}'], "failed: "),
        (["torch.nn:MultiheadAttention", "--args", '{"embed_dims": 8}'], "takes no argument 'embed_dims'; did"),
        (["torch.nn:MultiheadAttention", "--kind", "window"], "--kind window and --window go together"),
        (["torch.nn:MultiheadAttention", "--scale", "wide"], '--scale must be "head" or a number'),
        (["torch.nn:MultiheadAttention", "--fresh"], "need the target hf:all"),
        (["{student}:number"], "neither a function of q, k, v nor a torch.nn.Module"),
        (["{student}:unreadable"], "could not be called"),
    ],
)
def test_check_refuses_what_cannot_be_checked_with_one_sentence_and_exit_code_2(arguments, message, student, capsys):
    assert command(["check", *(argument.replace("{student}", str(student)) for argument in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1


COUNTED = """
from pathlib import Path
import torch
from torch import nn

with (Path(__file__).parent / "count.txt").open("a") as count:
    count.write("executed\\n")


class Layer(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(32, 4, batch_first=True)


def attention(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def loss(logits, tokens):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["{file}:Layer", "--contract", "encoder"],
        ["{file}:attention", "--contract", "textbook"],
        ["{file}:loss"],
        ["{file}:loss", "--call", "loss"],
        ["{file}:attention", "--call", "f(q, k, v)"],
        ["{file}:attention", "--like", "torch"],
        ["{file}:attention", "--like", "{file}:attention"],
        ["{file}:Layer", "--like", "{file}:Layer"],
    ],
    ids=" ".join,
)
def test_check_executes_the_target_file_once(arguments, tmp_path, capsys):
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    assert command(["check", *(argument.replace("{file}", str(file)) for argument in arguments)]) in (0, 1)
    assert (tmp_path / "count.txt").read_text() == "executed\n"


def test_run_executes_a_file_again_when_it_is_called_again(tmp_path):
    file = tmp_path / "edited.py"
    file.write_text("def attention(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n")
    assert not run(f"{file}:attention", scale="head").ok
    file.write_text("def attention(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n")
    assert run(f"{file}:attention", scale="head").ok


def test_run_says_what_was_tried_on_a_module_that_cannot_be_called():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            raise RuntimeError("not today")

    with pytest.raises(ValueError, match=r"tried vectors \(b, t, c\): RuntimeError: not today"):
        run(Odd())


def test_run_is_inconclusive_for_a_layer_that_ignores_its_input():
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return 0.0 * self.linear(x)

    report = run(Deaf(), Contract(kind="causal"))
    kind = next(finding for finding in report.findings if finding.check == "kind")
    assert kind.verdict == "inconclusive"
    assert not [finding for finding in report.findings if finding.check == "causal"]


def test_run_redraws_trainable_weights_and_keeps_frozen_ones():
    class Zero(nn.Module):
        """An output projection of zeros hides every bug; redrawing it shows them."""

        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(8, 8)
            nn.init.zeros_(self.mix.weight)
            self.kept = nn.Parameter(torch.full((8,), 2.0), requires_grad=False)

        def forward(self, x):
            return self.mix(x.mean(1, keepdim=True) + 0 * x) * self.kept

    module = Zero()
    report = run(module, Contract(kind="causal"))
    assert [finding.check for finding in report.failed][:1] == ["causal"]
    assert torch.equal(module.kept, torch.full((8,), 2.0).double())
