"""What `qkv check` says, and how."""

import json
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from qkv.check import Contract, assert_sound, run
from qkv.check.influence import Influence, name_kind
from qkv.check.junit import junit
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
    return a


number = 3
"""


@pytest.fixture
def student(tmp_path):
    path = tmp_path / "student.py"
    path.write_text(STUDENT)
    return path


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (lambda i, j: j <= i, "causal"),
        (lambda i, j: j == j, "bidirectional"),
        (lambda i, j: (j <= i) & (j > i - 3), "window of 3"),
        (lambda i, j: (j <= i + 1) & (j >= i - 2), "window, 2 back and 1 ahead"),
        (lambda i, j: (j <= i) | (j < 4), "prefix of 4"),
        (lambda i, j: j // 3 <= i // 3, "chunks of 3"),
        (lambda i, j: (j // 3 <= i // 3) & (j // 3 >= i // 3 - 1), "chunks of 3, 1 before"),
        (lambda i, j: j == i, "each token alone"),
        (lambda i, j: (i + j) % 2 == 0, "irregular"),
    ],
)
def test_the_kind_is_read_off_the_influence_map(pattern, name):
    i, j = torch.arange(10)[:, None], torch.arange(10)[None, :]
    felt = (pattern(i, j) & torch.ones(10, 10, dtype=torch.bool)).double()
    assert name_kind(Influence(felt, 1e-6)) == name


def test_a_leak_is_reported_with_numbers_and_exit_code_1(student, capsys):
    assert command(["check", f"{student}:Leaky", "--kind", "causal", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["kind"] == "bidirectional"
    causal = next(finding for finding in report["findings"] if finding["check"] == "causal")
    assert causal["verdict"] == "fail"
    assert "changing token" in causal["evidence"]
    assert "no causal mask" in causal["hint"]


def test_what_is_not_promised_is_described_and_not_failed(student, capsys):
    command(["check", f"{student}:attention", "--json"])
    findings = {f["check"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    failed = {name for name, finding in findings.items() if finding["verdict"] == "fail"}
    assert failed == {"fully masked row", "fully padded row"}  # NaN on finite input is never excused
    assert findings["scale"]["verdict"] == "described"
    assert "the scale is missing" in findings["scale"]["evidence"]
    assert findings["mask polarity"]["evidence"] == "True = may attend"


def test_a_promise_that_is_broken_fails(student, capsys):
    assert command(["check", f"{student}:attention", "--scale", "head"]) == 1
    shown = capsys.readouterr().out
    assert "NOT SOUND" in shown
    assert "scale is missing" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_torch_gives_nan_for_a_row_that_is_all_padding_and_it_is_said(capsys):
    assert command(["check", "torch.nn:MultiheadAttention"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "row 1 is all padding; the outputs of rows [1] are NaN" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a target"),
        (["nothing.py:X"], "there is no file nothing.py"),
        (["no.such.package:X"], "could not be imported"),
        (["torch.nn"], "a target is file.py:Name or package.module:Name"),
        (["torch.nn:Nothing"], "torch.nn has no 'Nothing'"),
        (["torch.nn:Conv2d"], "wants 'out_channels', which could not be guessed"),
        (["torch.nn:MultiheadAttention", "--args", "{dim: 3}"], "--args is a JSON object"),
        (["torch.nn:MultiheadAttention", "--args", '{"num_heads": 5}'], "failed: "),
        (["torch.nn:MultiheadAttention", "--args", '{"embed_dims": 8}'], "takes no argument 'embed_dims'; did"),
        (["torch.nn:MultiheadAttention", "--kind", "window"], "--kind window and --window go together"),
        (["torch.nn:MultiheadAttention", "--scale", "wide"], 'a scale is "head" or a number'),
        (["{student}:number"], "neither a function of q, k, v nor a torch.nn.Module"),
        (["{student}:unreadable"], "neither a function of q, k, v nor a torch.nn.Module"),
    ],
)
def test_what_cannot_be_checked_gets_one_sentence_and_exit_code_2(arguments, said, student, capsys):
    assert command(["check", *(argument.replace("{student}", str(student)) for argument in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_a_module_that_cannot_be_called_is_told_what_was_tried():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            raise RuntimeError("not today")

    with pytest.raises(ValueError, match=r"tried vectors \(b, t, c\): RuntimeError: not today"):
        run(Odd())


def test_a_layer_that_ignores_its_input_is_inconclusive_and_never_passes():
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return 0.0 * self.linear(x)

    report = run(Deaf(), Contract(kind="causal"))
    kind = next(finding for finding in report.findings if finding.check == "kind")
    assert kind.verdict == "inconclusive"


def test_assert_sound_tells_what_is_wrong():
    with pytest.raises(AssertionError, match="kind: promised window of 3; measured bidirectional"):
        assert_sound(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True), kind="window", window=3)
    assert_sound(torch.nn.functional.scaled_dot_product_attention, causal=True)


def test_junit_counts_what_failed_and_parses(student, tmp_path):
    target = tmp_path / "report.xml"
    assert command(["check", f"{student}:Leaky", "--kind", "causal", "--junit", str(target)]) == 1
    suite = ElementTree.parse(target).getroot()
    failures = suite.findall("testcase/failure")
    assert int(suite.attrib["failures"]) == len(failures) > 0
    assert junit(run(torch.nn.functional.scaled_dot_product_attention)).startswith("<?xml")


def test_trainable_weights_are_drawn_anew_and_frozen_ones_kept():
    class Zero(nn.Module):
        """An output projection of zeros hides every mistake; drawing it anew shows them."""

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
