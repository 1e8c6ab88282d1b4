"""Objectives against their formulas."""

import itertools
import math

import pytest
import torch
from tiny_runs import CONFIG, Letters, gpt
from torch import nn

from qkv import training
from qkv.models import Seq2Seq, Seq2SeqConfig, Transcriber, TranscriberConfig


class Fixed(nn.Module):
    """Returns fixed logits."""

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


def test_classification_scores_classes_and_mixtures():
    logits = torch.randn(6, 4, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    score = training.classification()(Fixed(logits), {"images": torch.zeros(6), "targets": targets})
    assert mean(score) == pytest.approx(-logits.log_softmax(-1)[torch.arange(6), targets].mean().item(), abs=1e-12)
    assert mean(score, "accuracy") == (logits.argmax(-1) == targets).double().mean().item()
    shares = 0.3 * nn.functional.one_hot(targets, 4) + 0.7 * nn.functional.one_hot(targets.flip(0), 4)
    score = training.classification(key="x")(Fixed(logits), {"x": torch.zeros(6), "targets": shares.double()})
    assert mean(score) == pytest.approx(-(shares * logits.log_softmax(-1)).sum(-1).mean().item(), abs=1e-6)
    assert mean(score, "accuracy") == (logits.argmax(-1) == targets.flip(0)).double().mean().item()
    with pytest.raises(ValueError, match="needs images, targets; the batch has pictures, targets, not images"):
        training.classification()(Fixed(logits), {"pictures": torch.zeros(6), "targets": targets})


def test_language_model_counts_loss_mask_tokens_and_separates_documents():
    batch = Letters().batch(0, 0)
    model = gpt(dropout=0.0)
    score = training.language_model(accuracy=True)(model, batch)
    logits = model(batch["tokens"])
    expected = nn.functional.cross_entropy(logits[batch["loss_mask"]], batch["targets"][batch["loss_mask"]])
    assert score.count == batch["loss_mask"].sum() and mean(score) == pytest.approx(expected.item(), abs=1e-6)
    right = (logits.argmax(-1) == batch["targets"])[batch["loss_mask"]].double().mean()
    assert mean(score, "accuracy") == pytest.approx(right.item(), abs=1e-6)
    documents = torch.tensor([0, 0, 0, 1, 1, 1]).expand(4, 6)
    apart = training.language_model()(model, {**batch, "documents": documents})
    parts = [
        training.language_model()(model, {name: batch[name][:, side] for name in ("tokens", "targets", "loss_mask")})
        for side in (slice(0, 3), slice(3, 6))
    ]
    assert apart.total.item() == pytest.approx(sum(part.total.item() for part in parts), abs=1e-4)
    assert apart.total.item() != pytest.approx(score.total.item(), abs=1e-4)


def test_sequence_to_sequence_ignores_padding_of_the_source():
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(vocab_size=9, dim=16, heads=2, encoder_layers=1, decoder_layers=1)).eval()
    source, target = torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 4))
    present = torch.arange(5) < torch.tensor([[5], [3]])
    batch = {"source": source, "source_token_mask": present, "target_in": target, "targets": target.flip(1)}
    batch["loss_mask"] = torch.arange(4) < torch.tensor([[4], [2]])
    score = training.sequence_to_sequence(label_smoothing=0.1)(model, batch)
    again = training.sequence_to_sequence(label_smoothing=0.1)(
        model, {**batch, "source": source.masked_fill(~present, 7)}
    )
    assert score.count == 6 and score.total.item() == pytest.approx(again.total.item(), abs=1e-5)


def collapse(frames, blank=0):
    """Collapse a row of frames: repetitions joined, blanks removed."""
    return tuple(label for label, _ in itertools.groupby(frames) if label != blank)


def test_ctc_sums_over_all_alignments():
    logits = torch.randn(3, 4, 3)
    labels, lengths = torch.tensor([[1, 2], [2, 2], [1, 0]]), torch.tensor([4, 4, 2])
    label_lengths = torch.tensor([2, 2, 1])
    batch = {"features": torch.zeros(3, 4, 5), "lengths": lengths, "labels": labels, "label_lengths": label_lengths}
    score = training.ctc()(Fixed(logits), batch)
    expected = 0.0
    for row in range(3):
        p, wanted = logits[row].softmax(-1), tuple(labels[row, : label_lengths[row]].tolist())
        ways = itertools.product(range(3), repeat=int(lengths[row]))
        found = sum(math.prod(p[t, k].item() for t, k in enumerate(way)) for way in ways if collapse(way) == wanted)
        expected -= math.log(found)
    assert score.total.item() == pytest.approx(expected, abs=1e-4) and score.count == 5
    short = {**batch, "lengths": torch.tensor([4, 2, 2])}  # 2 2 needs a blank between: three frames
    score = training.ctc()(Fixed(logits), short)
    assert score.count == 3 and score.total.isfinite() and mean(score, "too_short") == pytest.approx(1 / 3)
    score.total.backward()


def test_ctc_uses_the_frame_count_of_a_transcriber():
    torch.manual_seed(0)
    model = Transcriber(
        TranscriberConfig(features=4, num_labels=5, frames_per_token=2, dim=16, heads=2, layers=1, dropout=0.0)
    )
    features, lengths = torch.randn(2, 10, 4), torch.tensor([10, 7])
    labels, label_lengths = torch.tensor([[1, 2, 3], [4, 1, 0]]), torch.tensor([3, 2])
    batch = {"features": features, "lengths": lengths, "labels": labels, "label_lengths": label_lengths}
    score = training.ctc()(model, batch)
    alone = training.ctc()(model, {name: tensor[1:] for name, tensor in batch.items()} | {"features": features[1:, :7]})
    first = training.ctc()(model, {name: tensor[:1] for name, tensor in batch.items()})
    assert score.total.item() == pytest.approx(first.total.item() + alone.total.item(), abs=1e-4)


def test_train_names_wrong_data_and_objectives(tmp_path, unchecked):
    empty = Letters()
    empty.num_batches = lambda _: 0
    with pytest.raises(ValueError, match="epoch 0 of the data has no batches"):
        training.train(gpt(), empty, training.language_model(), CONFIG, tmp_path / "a")
    for model in (nn.Linear(3, 3).requires_grad_(False), nn.Identity()):
        with pytest.raises(ValueError, match="has no trainable parameters: all are frozen, or there are none"):
            training.train(model, Letters(), training.language_model(), CONFIG, tmp_path / "c")
    with pytest.raises(ValueError, match=r"an objective must return the mean loss, .* got a list"):
        training.train(gpt(), Letters(), lambda model, batch: [model(batch["tokens"])], CONFIG, tmp_path / "b")


def test_supervised_is_the_mean_of_a_loss_function():
    logits, targets = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    loss = training.supervised(nn.functional.cross_entropy)(Fixed(logits), {"inputs": logits, "targets": targets})
    assert loss.count == 6 and mean(loss) == pytest.approx(nn.functional.cross_entropy(logits, targets).item())
