"""Losses, gradient accumulation and splits as targets of check."""

import json

import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.cli.main import run as command


def nano_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def test_check_loss_describes_shifted_labels_and_judges_a_promise():
    assert run(nano_loss).ok
    assert "the caller must shift" in run(nano_loss).findings[0].evidence
    assert run(nano_loss, Contract(loss="same")).ok
    assert not run(nano_loss, Contract(loss="next")).ok


def test_check_loss_reads_a_hand_written_loss_by_its_gradient():
    def cost(logits, tokens):
        chances = logits.exp() / logits.exp().sum(-1, keepdim=True)
        return -chances[:, :-1].gather(-1, tokens[:, 1:, None]).log().sum()

    report = run(cost, Contract(loss="next"), call="loss")
    assert report.ok
    assert "tokens i+1 (14 positions are scored)" in report.findings[0].evidence


def test_check_split_is_declared_with_call(tmp_path, capsys):
    (tmp_path / "parts.py").write_text(
        "def halves(x):\n    return x[:100], x[100:]\n\ndef thirds(x):\n    return x[:100], x[90:]\n"
    )
    assert command(["check", f"{tmp_path}/parts.py:halves", "--call", "split"]) == 0
    assert "a split of data" in capsys.readouterr().out
    assert command(["check", f"{tmp_path}/parts.py:thirds", "--call", "split", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["diagnosis"]["family"] == "split"
    assert "10 on both sides" in report["findings"][0]["evidence"]


def test_check_accumulation_warns_of_a_mean_of_means_over_unequal_batches():
    def accumulate(model, batches, loss_fn):
        for inputs, targets in batches:
            (loss_fn(model(inputs), targets) / len(batches)).backward()

    report = run(accumulate)
    assert report.ok
    assert [f.check for f in report.findings if f.verdict == "warn"] == ["unequal batches"]


def test_check_own_loss_reads_the_loss_that_a_model_returns():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.vocab_size = 40
            self.table, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

        def forward(self, tokens, labels=None):
            logits = self.head(self.table(tokens).cumsum(1))
            if labels is None:
                return logits
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]), logits

    found = {f.check: f for f in run(Small(), Contract(kind="causal", loss="next")).findings}
    assert found["loss alignment"].verdict == "pass"
    assert "labels i+1 (11 positions are scored)" in found["loss alignment"].evidence
    assert torch.is_grad_enabled()
