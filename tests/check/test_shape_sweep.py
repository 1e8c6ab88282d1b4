"""Bugs that show only at some shape, dtype or state: check catches them, and passes the same code without them."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.shapes import LENGTHS, describe_shapes
from qkv.cli.main import run as command

pytestmark = pytest.mark.long  # minutes in all

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
ENCODER = Contract(kind="bidirectional", scale="head", softmax="keys")


class Layer(nn.Module):
    """Multi-head self-attention whose parts the bugs below replace."""

    causal = True

    def __init__(self, dim=32, heads=4, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def mask(self, t):
        return torch.ones(t, t, dtype=torch.bool).tril() if self.causal else torch.ones(t, t, dtype=torch.bool)

    def attend(self, q, k, v, mask):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        return self.drop(scores.softmax(-1)) @ v

    def drop(self, weights):
        return F.dropout(weights, self.dropout, training=self.training)

    def forward(self, x, token_mask=None):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mask = self.mask(t)
        if token_mask is not None:
            mask = mask & token_mask[:, None, None, :]
            mask = mask | ~mask.any(-1, keepdim=True)
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).reshape(b, t, c))


class Bidirectional(Layer):
    causal = False


class LeaksWithinBlocks(Layer):
    def mask(self, t):
        return super().mask(t) | ((torch.arange(t)[:, None] // 64 == torch.arange(t) // 64) & (torch.arange(t) >= 64))


class ForgetsMaskOfLongInputs(Layer):
    def mask(self, t):
        return super().mask(t) if t <= 32 else torch.ones(t, t, dtype=torch.bool)


class ScalesLongInputsOtherwise(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q if q.shape[2] < 60 else 0.5 * q, k, v, mask)


class AttendsToPaddedKey(Bidirectional):
    def attend(self, q, k, v, mask):
        extra = k.shape[2] % 2
        k, v = (F.pad(part, (0, 0, 0, extra)) for part in (k, v))
        return super().attend(q, k, v, F.pad(mask, (0, extra), value=True))


class DropsLastOddToken(Bidirectional):
    def mask(self, t):
        mask = super().mask(t)
        if t % 2 and t > 16:
            mask[:, -1] = False
        return mask


class LosesAxisOfOne(Layer):
    def attend(self, q, k, v, mask):
        out = super().attend(q, k, v, mask)
        return out if out.shape[2] > 1 else out.squeeze(2)


class WrongForOneQuery(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, mask) if q.shape[2] > 1 else 0.5 * v


class MixesLargeBatches(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q, k, v if len(v) < 4 else v.roll(1, 0), mask)


class KeepsLongestMask(Layer):
    kept = None

    def mask(self, t):
        if self.kept is None or self.kept.shape[0] < t:
            self.kept = super().mask(t)
        return self.kept[-t:, :t]


class SharesStateBetweenInstances(Layer):
    def attend(self, q, k, v, mask):
        first = type(self).__dict__.get("first")
        if first is None:
            type(self).first = first = id(self)
        return super().attend(q if first == id(self) else 0.5 * q, k, v, mask)


class BreaksAfterAnError(Layer):
    broken = False

    def forward(self, x, token_mask=None):
        was, self.broken = self.broken, True
        out = super().forward(x, token_mask) * (0.9 if was else 1.0)
        self.broken = False
        return out


class DropsInEval(Layer):
    def drop(self, weights):
        return F.dropout(weights, self.dropout)


class LeaksUnderDropout(Layer):
    def attend(self, q, k, v, mask):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
        return self.drop(scores).softmax(-1) @ v


class RoundsSoftmax(Layer):
    def attend(self, q, k, v, mask):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        low = torch.bfloat16 if scores.dtype == torch.float32 else scores.dtype
        return scores.to(low).softmax(-1).to(v.dtype) @ v


class ComputesOtherwiseWithGradients(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q * (1.1 if q.requires_grad and q.shape[2] > 16 else 1.0), k, v, mask)


class DetachesKeysOfLongInputs(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q, k.detach() if k.shape[2] > 16 else k, v, mask)


class IgnoresPaddingOfLongInputs(Bidirectional):
    def forward(self, x, token_mask=None):
        return super().forward(x, None if x.shape[1] > 32 else token_mask)


class WritesIntoPaddedInput(Bidirectional):
    def forward(self, x, token_mask=None):
        if token_mask is not None:
            x[~token_mask] = 0.0
        return super().forward(x, token_mask)


class LeaksWithThreeHeads(Layer):
    def mask(self, t):
        return super().mask(t) if self.heads != 3 else torch.ones(t, t, dtype=torch.bool).tril(1)


class ScalesByEight(Layer):
    def attend(self, q, k, v, mask):
        return super().attend(q * (q.shape[-1] / 8) ** 0.5, k, v, mask)


BUGS = {  # the bug, its contract, and how the name of a check that fails begins
    LeaksWithinBlocks: (TEXTBOOK, "causal"),
    ForgetsMaskOfLongInputs: (TEXTBOOK, "causal"),
    ScalesLongInputsOtherwise: (TEXTBOOK, "truncation"),
    AttendsToPaddedKey: (ENCODER, "lengths agree"),
    DropsLastOddToken: (ENCODER, "kind"),
    LosesAxisOfOne: (TEXTBOOK, "truncation"),
    WrongForOneQuery: (Contract(kind="causal"), "truncation"),
    MixesLargeBatches: (None, "batch"),
    KeepsLongestMask: (None, "state"),
    SharesStateBetweenInstances: (None, "state"),
    BreaksAfterAnError: (None, "state"),
    DropsInEval: (None, "deterministic in eval"),
    LeaksUnderDropout: (TEXTBOOK, "causal (training)"),
    RoundsSoftmax: (None, "dtype"),
    ComputesOtherwiseWithGradients: (None, "paths agree"),
    DetachesKeysOfLongInputs: (None, "gradient"),
    IgnoresPaddingOfLongInputs: (Contract(padding=True), "padding in rows"),
    WritesIntoPaddedInput: (Contract(padding=True), "inputs not mutated"),
    LeaksWithThreeHeads: (TEXTBOOK, "causal (3 heads of 40)"),
    ScalesByEight: (TEXTBOOK, "scale"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_run_catches_a_bug_that_shows_at_some_shape_dtype_or_state(bug):
    contract, check = BUGS[bug]
    report = run(bug, contract)
    failed = [finding.check for finding in report.failed]
    assert any(name.startswith(check) for name in failed), failed


@pytest.mark.parametrize(
    ("layer", "contract"),
    [(Layer, TEXTBOOK), (Layer, None), (Bidirectional, ENCODER), (Bidirectional, Contract(padding=True))],
)
def test_run_passes_the_layer_that_these_bugs_were_planted_in(layer, contract):
    report = run(layer, contract)
    assert report.ok, ([(f.check, f.evidence) for f in report.failed], report.unproven)


def test_run_states_the_shapes_of_each_property():
    findings = {finding.check: finding for finding in run(Layer, TEXTBOOK).findings}
    assert all(finding.shapes for finding in findings.values() if finding.verdict == "pass")
    for length in LENGTHS:
        assert str(length) in findings["causal"].shapes
    assert "bfloat16" in findings["dtype"].shapes
    assert describe_shapes([{"b": 1, "t": 2}, {"b": 3, "t": 2}]) == "b 1, 3 · t 2"


def test_run_with_a_window_needs_a_length_above_it():
    class Window(Layer):
        def mask(self, t):
            return super().mask(t).triu(-39)  # 40 tokens

    assert run(Window, kind="window", window=40).ok
    report = run(Window, kind="window", window=41)
    assert [finding.check for finding in report.failed] == ["kind"]
    assert "window" in report.failed[0].hint


# -- promises that nothing tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promises", "word"),
    [({"cache": True}, "cache"), ({"grouped": "repeated"}, "grouped"), ({"loss": "next"}, "loss")],
)
def test_run_does_not_pass_a_promise_that_nothing_tests(promises, word):
    report = run(Layer, **promises)
    assert report.failed == () and not report.ok
    assert [missing.split()[0] for missing in report.unproven] == [word]
    assert "provide" in report.unproven[0]


def test_check_exits_with_1_and_says_what_to_provide_for_an_untested_promise(capsys):
    assert command(["check", "torch.nn:Linear", "--args", '{"in_features": 8, "out_features": 8}', "--cache"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("NOT PROVEN") and "not tested cache True" in shown
    command(["check", "torch.nn:Linear", "--args", '{"in_features": 8, "out_features": 8}', "--cache", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False and shown["unproven"]


# -- thorough, dtype, device -------------------------------------------------------------------------------------------


def test_run_thorough_shrinks_a_drawn_shape_and_replays_it_with_the_seed(monkeypatch):
    monkeypatch.setattr("qkv.check.shapes.LONG_LENGTHS", (300,))
    monkeypatch.setattr("qkv.check.checks.formula.LONG_SHAPES", ())

    def attention(q, k, v):
        out = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return out * 1.01 if k.shape[-2] == 96 or q.shape[-1] == 56 else out

    first, again = (
        next(finding for finding in run(attention, thorough=True, seed=5).findings if finding.check == "drawn shapes")
        for _ in range(2)
    )
    assert first.verdict == "fail" and first.evidence == again.evidence
    assert "seed 5" in first.evidence


def test_run_dtype_fails_what_does_not_run_in_it():
    class OnlyDouble(Layer):
        def forward(self, x, token_mask=None):
            return super().forward(x + torch.zeros(1, dtype=torch.float64).expand(x.shape), token_mask)

    dtype = next(finding for finding in run(OnlyDouble, dtype="bfloat16").findings if finding.check == "dtype")
    assert dtype.verdict == "fail" and "bfloat16 raises" in dtype.evidence
    assert run(Layer, dtype="bfloat16").ok


@pytest.mark.parametrize(
    ("options", "words"), [({"dtype": "float7"}, "dtype must be"), ({"device": "cuda:9"}, "device")]
)
def test_run_refuses_a_dtype_or_device_that_does_not_exist(options, words):
    with pytest.raises(ValueError, match=words):
        run(Layer, **options)
