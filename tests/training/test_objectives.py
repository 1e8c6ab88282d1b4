"""Objectives against their formulas; settings and reports as plain data."""

import itertools
import json
import math
import tomllib
from dataclasses import replace

import pytest
import torch
from loop_runs import SETTINGS, Letters, Notes, gpt, run
from torch import nn

from qkv import training as loop
from qkv.models import Seq2Seq, Seq2SeqConfig, Transcriber, TranscriberConfig
from qkv.training.metrics_log import read
from qkv.training.recipes.plain import to_toml, with_nothing


class Fixed(nn.Module):
    """Answers with what it was given beforehand."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, *_, **__):
        return self.logits


def mean(score, name=None):
    total, count = (score.total, score.count) if name is None else (score.metrics[name], score.count)
    if isinstance(total, tuple):
        total, count = total
    return (total / count).item()


def test_classes_and_mixtures_of_classes_are_scored():
    logits = torch.randn(6, 4, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    score = loop.classification()(Fixed(logits), {"images": torch.zeros(6), "targets": targets})
    assert mean(score) == pytest.approx(-logits.log_softmax(-1)[torch.arange(6), targets].mean().item(), abs=1e-12)
    assert mean(score, "accuracy") == (logits.argmax(-1) == targets).double().mean().item()
    shares = 0.3 * nn.functional.one_hot(targets, 4) + 0.7 * nn.functional.one_hot(targets.flip(0), 4)
    score = loop.classification(key="x")(Fixed(logits), {"x": torch.zeros(6), "targets": shares.double()})
    assert mean(score) == pytest.approx(-(shares * logits.log_softmax(-1)).sum(-1).mean().item(), abs=1e-6)
    assert mean(score, "accuracy") == (logits.argmax(-1) == targets.flip(0)).double().mean().item()
    with pytest.raises(ValueError, match="reads images, targets; the batch has pictures, targets, not images"):
        loop.classification()(Fixed(logits), {"pictures": torch.zeros(6), "targets": targets})


def test_only_scored_tokens_count_and_documents_stay_apart():
    batch = Letters().batch(0, 0)
    model = gpt(dropout=0.0)
    score = loop.language_model(accuracy=True)(model, batch)
    logits = model(batch["tokens"])
    expected = nn.functional.cross_entropy(logits[batch["scored"]], batch["targets"][batch["scored"]])
    assert score.count == batch["scored"].sum() and mean(score) == pytest.approx(expected.item(), abs=1e-6)
    right = (logits.argmax(-1) == batch["targets"])[batch["scored"]].double().mean()
    assert mean(score, "accuracy") == pytest.approx(right.item(), abs=1e-6)
    documents = torch.tensor([0, 0, 0, 1, 1, 1]).expand(4, 6)
    apart = loop.language_model()(model, {**batch, "documents": documents})
    parts = [
        loop.language_model()(model, {name: batch[name][:, side] for name in ("tokens", "targets", "scored")})
        for side in (slice(0, 3), slice(3, 6))
    ]
    assert apart.total.item() == pytest.approx(sum(part.total.item() for part in parts), abs=1e-4)
    assert apart.total.item() != pytest.approx(score.total.item(), abs=1e-4)


def test_a_source_that_is_not_there_is_not_read():
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(vocab_size=9, dim=16, heads=2, encoder_layers=1, decoder_layers=1)).eval()
    source, target = torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 4))
    present = torch.arange(5) < torch.tensor([[5], [3]])
    batch = {"source": source, "source_present": present, "target_in": target, "targets": target.flip(1)}
    batch["scored"] = torch.arange(4) < torch.tensor([[4], [2]])
    score = loop.sequence_to_sequence(smoothing=0.1)(model, batch)
    again = loop.sequence_to_sequence(smoothing=0.1)(model, {**batch, "source": source.masked_fill(~present, 7)})
    assert score.count == 6 and score.total.item() == pytest.approx(again.total.item(), abs=1e-5)


def spelled(frames, blank=0):
    """What a row of frames says: repetitions joined, blanks left out."""
    return tuple(label for label, _ in itertools.groupby(frames) if label != blank)


def test_ctc_sums_over_every_way_to_place_the_labels():
    logits = torch.randn(3, 4, 3)
    labels, lengths = torch.tensor([[1, 2], [2, 2], [1, 0]]), torch.tensor([4, 4, 2])
    label_lengths = torch.tensor([2, 2, 1])
    batch = {"features": torch.zeros(3, 4, 5), "lengths": lengths, "labels": labels, "label_lengths": label_lengths}
    score = loop.ctc()(Fixed(logits), batch)
    expected = 0.0
    for row in range(3):
        p, wanted = logits[row].softmax(-1), tuple(labels[row, : label_lengths[row]].tolist())
        ways = itertools.product(range(3), repeat=int(lengths[row]))
        found = sum(math.prod(p[t, k].item() for t, k in enumerate(way)) for way in ways if spelled(way) == wanted)
        expected -= math.log(found)
    assert score.total.item() == pytest.approx(expected, abs=1e-4) and score.count == 5
    short = {**batch, "lengths": torch.tensor([4, 2, 2])}  # 2 2 needs a blank between: three frames
    score = loop.ctc()(Fixed(logits), short)
    assert score.count == 3 and score.total.isfinite() and mean(score, "too_short") == pytest.approx(1 / 3)
    score.total.backward()


def test_a_transcriber_that_joins_frames_says_how_many_are_left():
    torch.manual_seed(0)
    model = Transcriber(TranscriberConfig(features=4, labels=5, stack=2, dim=16, heads=2, layers=1, dropout=0.0))
    features, lengths = torch.randn(2, 10, 4), torch.tensor([10, 7])
    labels, label_lengths = torch.tensor([[1, 2, 3], [4, 1, 0]]), torch.tensor([3, 2])
    batch = {"features": features, "lengths": lengths, "labels": labels, "label_lengths": label_lengths}
    score = loop.ctc()(model, batch)
    alone = loop.ctc()(model, {name: tensor[1:] for name, tensor in batch.items()} | {"features": features[1:, :7]})
    first = loop.ctc()(model, {name: tensor[:1] for name, tensor in batch.items()})
    assert score.total.item() == pytest.approx(first.total.item() + alone.total.item(), abs=1e-4)


def test_settings_go_to_toml_and_json_and_back():
    settings = replace(SETTINGS, schedule=loop.Schedule("wsd", warmup=3, decay=4), clip=None)
    plain = settings.as_dict()
    assert loop.Settings.from_dict(json.loads(json.dumps(plain))) == settings
    again = loop.Settings.from_dict(with_nothing(loop.Settings, tomllib.loads(to_toml(plain))))
    assert again == settings
    assert loop.Settings.from_dict({"steps": 5, "optimiser": {"lr": 1}}).optimiser.lr == 1.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "mine.toml: Settings missing 1 required positional argument: 'steps'"),
        ({"steps": 5, "step": 3}, "Settings has no field 'step'; did you mean steps"),
        ({"steps": 5, "optimiser": {"learning": 3}}, "optimiser has no field 'learning'; It has name, lr"),
        ({"steps": 5, "optimiser": 3}, "optimiser is a group of fields; got 3"),
        ({"steps": "5"}, "steps is a whole number; got '5'"),
        ({"steps": True}, "steps is a whole number; got True"),
        ({"steps": 5, "clip": "a"}, "clip is a number or nothing; got 'a'"),
        ({"steps": 5, "clip": 0.0}, "clip is above 0; got 0.0"),
        (
            {"steps": 5, "optimiser": {"betas": [0.9]}},
            r"optimiser.betas is a list of a number and a number; got \(0.9,\)",
        ),
        ({"steps": 5, "optimiser": {"betas": [0.9, 1.0]}}, "betas is from 0 up to, but not, 1; got 1.0"),
        ({"steps": 5, "optimiser": {"name": "sgd"}}, "optimiser.name is 'adamw' or 'muon'; got 'sgd'"),
        ({"steps": 5, "schedule": {"warmup": 6}}, "a warm-up of 6 and a decay of 0 do not fit into steps=5"),
        ({"steps": 5, "schedule": {"decay": 2}}, "schedule.decay=2 belongs to kind='wsd'; the kind is 'cosine'"),
        ({"steps": 5, "average": 1.0}, "average is from 0"),
        ({"steps": 5, "seed": -1}, "seed is a whole number from 0"),
        ({"steps": 5, "optimiser": {"lr": math.inf}}, "optimiser.lr is at least 0; got inf"),
    ],
)
def test_settings_that_do_not_fit_are_named(plain, message):
    with pytest.raises(ValueError, match=message):
        loop.Settings.from_dict(plain, "mine.toml")


def test_data_and_objectives_that_do_not_fit_are_named(tmp_path):
    empty = Letters()
    empty.count = lambda _: 0
    with pytest.raises(ValueError, match="epoch 0 of the data has no batches"):
        loop.train(gpt(), empty, loop.language_model(), SETTINGS, tmp_path / "a")
    for model in (nn.Linear(3, 3).requires_grad_(False), nn.Identity()):
        with pytest.raises(ValueError, match="has no parameter to train: all are frozen, or there are none"):
            loop.train(model, Letters(), loop.language_model(), SETTINGS, tmp_path / "c")
    with pytest.raises(ValueError, match="an objective returns a Score; got Tensor"):
        loop.train(gpt(), Letters(), lambda model, batch: model(batch["tokens"]).sum(), SETTINGS, tmp_path / "b")


def test_whoever_listens_hears_of_a_run(tmp_path):
    heard = Notes()
    outcome = run(tmp_path, report=heard)
    assert heard.began == [0] and heard.saves == [3, 6, 9, 12] and heard.ended == [outcome]
    assert [progress.step for progress in heard.steps] == [2, 4, 6, 8, 10, 12]
    assert all(p.items_per_second > 0 and p.memory > 2**20 and math.isfinite(p.loss) for p in heard.steps)
    assert heard.steps[-1].seconds_left == 0.0
    told = [line for line in read(tmp_path) if "loss" in line]
    assert [line["loss"] for line in told] == [progress.loss for progress in heard.steps]
    assert json.loads(json.dumps(outcome.as_dict()))["finished"] is True
