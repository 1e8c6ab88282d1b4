"""Pairs of sentences as batches."""

import pickle

import pytest
import torch
from shared_data import shared

from qkv.data.batches import generator_for
from qkv.data.overlap import overlap
from qkv.data.pairs import PairBatches, read_pairs
from qkv.data.tokens import PAD, START, STOP, all_ids, bpe_tokenizer


def made_up(count, seed=0):
    """Pairs whose lengths are spread as captions' are: the target near the source, and every pair its own numbers."""
    generator = generator_for(seed)
    sizes = (4 + 4 * torch.randn(count, generator=generator).abs() * 2).int().tolist()
    wobble = torch.randint(-2, 4, (count,), generator=generator).tolist()
    sources = [torch.full((n,), 3 + i) for i, n in enumerate(sizes)]
    targets = [torch.full((max(n + w, 1),), 3 + i) for i, (n, w) in enumerate(zip(sizes, wobble, strict=True))]
    return sources, targets


@pytest.mark.parametrize("budget", [{"rows": 7}, {"tokens": 200}])
def test_a_batch_holds_whole_pairs_shifted_by_one_and_ended(budget):
    sources, targets = made_up(100)
    batches = PairBatches(sources, targets, seed=1, **budget)
    twin, seen = pickle.loads(pickle.dumps(batches)), []
    for index in range(batches.count(0)):
        batch, again = batches.batch(0, index), twin.batch(0, index)
        assert all(torch.equal(batch[k], again[k]) for k in batch)
        assert batch["source_present"].dtype == torch.bool
        if "tokens" in budget:
            assert max(batch["source"].numel(), batch["targets"].numel()) <= 200
        for row in range(len(batch["source"])):
            source = batch["source"][row][batch["source_present"][row]]
            wanted = batch["targets"][row][batch["scored"][row]]
            number = int(source[0]) - 3
            assert source.tolist() == [*sources[number].tolist(), STOP]
            assert wanted.tolist() == [*targets[number].tolist(), STOP]
            assert batch["target_in"][row][batch["scored"][row]].tolist() == [START, *targets[number].tolist()]
            assert batch["source"][row][~batch["source_present"][row]].eq(PAD).all()
            assert batch["target_in"][row][~batch["scored"][row]].eq(PAD).all()
            seen.append(number)
    assert sorted(seen) == list(range(100))


def test_padding_is_small_on_made_up_pairs_and_counted_right():
    sources, targets = made_up(20_000)
    for budget in ({"rows": 64}, {"tokens": 2000}):
        assert PairBatches(sources, targets, **budget).padding(1) < 0.05
    batches = PairBatches(*made_up(300), rows=16)
    made = [batches.batch(2, i) for i in range(batches.count(2))]
    there = sum(int(b["source_present"].sum() + b["scored"].sum()) for b in made)
    places = sum(b["source"].numel() + b["targets"].numel() for b in made)
    assert batches.padding(2) == pytest.approx(1 - there / places)


def test_pairs_too_long_are_left_out_and_counted():
    sources, targets = [torch.arange(9), torch.arange(3)], [torch.arange(2), torch.arange(3)]
    batches = PairBatches(sources, targets, rows=2, length=8)
    assert batches.left_out == 1 and batches.batch(0, 0)["source"].shape == (1, 4)
    with pytest.raises(ValueError, match="none of 2 pairs fits into length=2"):
        PairBatches(sources, targets, rows=2, length=2)
    with pytest.raises(ValueError, match="one of the two"):
        PairBatches(sources, targets)


def test_lines_that_do_not_pair_are_named(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n\nfour\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\nzwei\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"equally many lines; .*a has 4, .*b has 3"):
        read_pairs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_text("eins\n\n\nvier\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"b, line 2 is empty and its partner is not"):
        read_pairs(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").write_text("eins\nzwei\n\nvier", encoding="utf-8")
    assert read_pairs(tmp_path / "a", tmp_path / "b")[-1] == ("four", "vier")


@pytest.mark.parametrize(
    ("count", "budgets"),
    [
        (12_000, [{"rows": 64}]),
        pytest.param(29_000, [{"rows": 64}, {"rows": 128}, {"tokens": 2048}], marks=pytest.mark.long),
    ],
)
def test_multi30k_has_little_padding_and_its_parts_share_nearly_nothing(count, budgets):
    folder = shared("multi30k")
    parts = {
        name: read_pairs(folder / f"{name}.en", folder / f"{name}.de") for name in ("train", "val", "test_2016_flickr")
    }
    assert [len(part) for part in parts.values()] == [29000, 1014, 1000]
    train = parts["train"]
    tokenizer = bpe_tokenizer((line for pair in train[:4000] for line in pair), 2000)
    sources, targets = (all_ids(tokenizer, [pair[side] for pair in train[:count]]) for side in (0, 1))
    for budget in budgets:
        assert PairBatches(sources, targets, **budget).padding(0) < 0.05
    assert overlap(train, parts["val"]).share < 0.01
    assert overlap(train, parts["test_2016_flickr"]).share < 0.01
