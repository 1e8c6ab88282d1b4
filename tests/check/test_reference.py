"""--like: the behavior of a reference is the contract, and its numbers are compared."""

import json

import pytest
import torch
from torch import nn

import qkv
from qkv.check import run
from qkv.check.mutants import MUTANTS
from qkv.check.mutants.layers import TextbookLayer
from qkv.check.mutants.positions import GroupedLayer
from qkv.cli.main import run as command


class Separate(nn.Module):
    """Separate projections, einsum, keys first: only the numbers are those of nn.MultiheadAttention."""

    def __init__(self, dim=32, num_heads=4, power=-0.5):
        super().__init__()
        self.num_heads, self.power = num_heads, power
        self.a, self.b, self.c, self.d = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)) for part in (self.a, self.b, self.c))
        weights = (torch.einsum("bshd,bthd->bsth", k, q) * q.shape[-1] ** self.power).softmax(1)
        return self.d(torch.einsum("bshd,bsth->bthd", v, weights).flatten(2))


@pytest.mark.parametrize("layer", [Separate, lambda: qkv.MultiHeadAttention(32, 4)], ids=["separate", "qkv"])
def test_run_like_torch_copies_weights_by_role_and_compares_outputs_and_gradients(layer):
    report = run(layer(), like="torch")
    like = next(finding for finding in report.findings if finding.check == "like")
    assert like.verdict == "pass"
    assert like.score is not None
    assert like.score < 1e-12
    assert "copied by what they do" in like.evidence
    assert (report.contract.scale, report.contract.softmax, report.contract.kind) == ("head", "keys", "bidirectional")


def test_run_like_torch_names_another_scale():
    report = run(Separate(power=-1.0), like="torch")
    assert {"scale", "like"} <= {finding.check for finding in report.failed}
    assert report.diagnosis is not None
    assert report.diagnosis.family == "scale"


def test_run_like_torch_compares_gradients():
    report = run(MUTANTS["weights detached"].make(), like="torch")
    like = next(finding for finding in report.failed if finding.check == "like (plain)")
    assert like.hint == "the outputs are right, the gradients are not"


class ForgetsLongDistances(Separate):
    """Right up to 24 tokens, as with a table of relative positions that ends too early."""

    def forward(self, x):
        return super().forward(x) + 0.1 * x.cumsum(1).narrow(1, 24, 1) if x.shape[1] > 24 else super().forward(x)


def forget_long_distances(q, k, v, causal=False):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out * 0.9 if q.shape[2] > 100 else out


def test_run_like_compares_long_sequences_too():
    report = run(ForgetsLongDistances(), like=Separate())
    like = next(finding for finding in report.failed if finding.check == "like")
    assert "with 33 tokens" in like.evidence
    report = run(forget_long_distances, like="torch")
    assert {"like (longer)", "like (longer, causal)"} <= {finding.check for finding in report.failed}


def test_run_like_itself_copies_weights_by_name():
    for layer in (TextbookLayer, GroupedLayer):
        report = run(layer(), like=layer())
        assert report.ok
        assert "weights of the same names" in report.findings[-1].evidence


def test_check_takes_a_reference_on_the_command_line(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def mine(q, k, v, causal=False):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)\n"
    )
    assert command(["check", f"{tmp_path}/mine.py:mine", "--like", "torch", "--json"]) == 0
    findings = {f["check"]: f["verdict"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["like (causal)"] == "pass"
    assert findings["alignment"] == "pass"
    assert command(["check", f"{tmp_path}/mine.py:mine", "--like", "no.such:thing"]) == 2
    assert "could not be imported" in capsys.readouterr().err
