"""Losses, gradient accumulation and splits as targets of check."""

import json

import pytest
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


def in_chunks(logits, tokens):
    """Shifts inside each chunk of 32, so the label of the first token of each later chunk is lost."""
    parts = zip(logits.split(32, dim=1), tokens.split(32, dim=1), strict=True)
    chosen = [p[:, :-1].log_softmax(-1).gather(-1, y[:, 1:, None]) for p, y in parts]
    return -torch.cat(chosen, dim=1).mean()


def truncated(logits, labels, vocab_size):
    """Scores the first 100 positions only."""
    scored, wanted = logits[:, :-1][:, :100], labels[:, 1:][:, :100]
    return F.cross_entropy(scored.reshape(-1, vocab_size), wanted.reshape(-1))


def mean_of_chunks(logits, tokens):
    """A mean of the means of chunks of 16, of which the last may be shorter."""
    logits, tokens = logits[:, :-1], tokens[:, 1:]
    means = [F.cross_entropy(logits[:, i : i + 16].mT, tokens[:, i : i + 16]) for i in range(0, tokens.shape[1], 16)]
    return sum(means) / len(means)


@pytest.mark.parametrize(
    ("function", "condition", "words"),
    [
        (in_chunks, "from 33 tokens on", "position 31"),
        (truncated, "from 102 tokens on", "position 100"),
        (mean_of_chunks, "at some lengths from 18 tokens on", "weights"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_check_loss_compares_lengths_and_says_from_which_on_it_is_wrong(function, condition, words):
    report = run(function, Contract(loss="next"), call="loss")
    assert not report.ok
    assert report.findings[0].condition == condition
    assert words in report.findings[0].evidence


def test_check_loss_accepts_chunks_after_the_shift_and_losses_of_a_part():
    def chunked(logits, tokens):
        logits, tokens = logits[:, :-1], tokens[:, 1:]
        parts = zip(logits.split(16, dim=1), tokens.split(16, dim=1), strict=True)
        return sum(F.cross_entropy(p.mT, y, reduction="sum") for p, y in parts) / tokens.numel()

    def answer_only(logits, tokens):
        return F.cross_entropy(logits[:, -4:-1].mT, tokens[:, -3:])

    for function in (chunked, answer_only):
        assert run(function, Contract(loss="next"), call="loss").ok


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
