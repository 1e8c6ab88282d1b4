"""Sentence pairs as batches."""

import pickle

import pytest
import torch
from shared_data import shared

from qkv.data.batches import generator_for
from qkv.data.overlap import find_overlap
from qkv.data.text.tokenizers import PAD, START, STOP, bpe_tokenizer, encode_all
from qkv.data.text.translation import PairBatches, read_pairs


def random_pairs(count, seed=0):
    """Pairs whose lengths are distributed like captions: the target near the source, and every pair its own numbers."""
    generator = generator_for(seed)
    sizes = (4 + 4 * torch.randn(count, generator=generator).abs() * 2).int().tolist()
    wobble = torch.randint(-2, 4, (count,), generator=generator).tolist()
    sources = [torch.full((n,), 3 + i) for i, n in enumerate(sizes)]
    targets = [torch.full((max(n + w, 1),), 3 + i) for i, (n, w) in enumerate(zip(sizes, wobble, strict=True))]
    return sources, targets


@pytest.mark.parametrize("budget", [{"batch_size": 7}, {"max_tokens": 200}])
def test_pair_batches_hold_whole_pairs_shifted_by_one_and_ended(budget):
    sources, targets = random_pairs(100)
    batches = PairBatches(sources, targets, seed=1, **budget)
    twin, seen = pickle.loads(pickle.dumps(batches)), []
    for index in range(batches.num_batches(0)):
        batch, again = batches.batch(0, index), twin.batch(0, index)
        assert all(torch.equal(batch[k], again[k]) for k in batch)
        assert batch["source_token_mask"].dtype == torch.bool
        if "max_tokens" in budget:
            assert max(batch["source"].numel(), batch["targets"].numel()) <= 200
        for row in range(len(batch["source"])):
            source = batch["source"][row][batch["source_token_mask"][row]]
            wanted = batch["targets"][row][batch["loss_mask"][row]]
            number = int(source[0]) - 3
            assert source.tolist() == [*sources[number].tolist(), STOP]
            assert wanted.tolist() == [*targets[number].tolist(), STOP]
            assert batch["target_in"][row][batch["loss_mask"][row]].tolist() == [START, *targets[number].tolist()]
            assert batch["source"][row][~batch["source_token_mask"][row]].eq(PAD).all()
            assert batch["target_in"][row][~batch["loss_mask"][row]].eq(PAD).all()
            seen.append(number)
    assert sorted(seen) == list(range(100))


def test_padding_fraction_is_small_and_counted_right():
    sources, targets = random_pairs(20_000)
    for budget in ({"batch_size": 64}, {"max_tokens": 2000}):
        assert PairBatches(sources, targets, **budget).padding_fraction(1) < 0.05
    batches = PairBatches(*random_pairs(300), batch_size=16)
    made = [batches.batch(2, i) for i in range(batches.num_batches(2))]
    there = sum(int(b["source_token_mask"].sum() + b["loss_mask"].sum()) for b in made)
    places = sum(b["source"].numel() + b["targets"].numel() for b in made)
    assert batches.padding_fraction(2) == pytest.approx(1 - there / places)


def test_pair_batches_leave_out_pairs_that_are_too_long():
    sources, targets = [torch.arange(9), torch.arange(3)], [torch.arange(2), torch.arange(3)]
    batches = PairBatches(sources, targets, batch_size=2, max_length=8)
    assert batches.num_skipped == 1 and batches.batch(0, 0)["source"].shape == (1, 4)
    with pytest.raises(ValueError, match="none of 2 pairs fits into max_length=2"):
        PairBatches(sources, targets, batch_size=2, max_length=2)
    with pytest.raises(ValueError, match="give one of batch_size and max_tokens"):
        PairBatches(sources, targets)


def test_read_pairs_names_lines_that_do_not_pair(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n\nfour\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"equally many lines, but .*a has 4 and .*b has 3"):
        read_pairs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_text("eins\n\n\nvier\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"b, line 2 is empty, but its translation is not"):
        read_pairs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_text("eins\nzwei\n\nvier", encoding="utf-8")
    assert read_pairs(tmp_path / "a", tmp_path / "b")[-1] == ("four", "vier")


@pytest.mark.parametrize(
    ("count", "budgets"),
    [
        (12_000, [{"batch_size": 64}]),
        pytest.param(29_000, [{"batch_size": 64}, {"batch_size": 128}, {"max_tokens": 2048}], marks=pytest.mark.long),
    ],
)
def test_multi30k_has_little_padding_and_nearly_disjoint_parts(count, budgets):
    folder = shared("multi30k")
    parts = {
        name: read_pairs(folder / f"{name}.en", folder / f"{name}.de") for name in ("train", "val", "test_2016_flickr")
    }
    assert [len(part) for part in parts.values()] == [29000, 1014, 1000]
    train = parts["train"]
    tokenizer = bpe_tokenizer((line for pair in train[:4000] for line in pair), 2000)
    sources, targets = (encode_all(tokenizer, [pair[side] for pair in train[:count]]) for side in (0, 1))
    for budget in budgets:
        assert PairBatches(sources, targets, **budget).padding_fraction(0) < 0.05
    assert find_overlap(train, parts["val"]).fraction < 0.01
    assert find_overlap(train, parts["test_2016_flickr"]).fraction < 0.01
