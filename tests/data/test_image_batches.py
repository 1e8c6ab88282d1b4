"""Pictures as batches: pure functions of their place, the same in any process."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from qkv.data.augment import Augment
from qkv.data.digit_images import digits
from qkv.data.image_batches import ImageBatches
from qkv.data.images import Images, Normalisation, split
from qkv.data.order import epoch_order, held_out
from qkv.data.overlap import overlap
from qkv.data.text import TextWindows

FULL = Augment(crop=1, flip=True, operations=2, erase=0.3, mix="either")


def small(n=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(n) % 5, tuple("abcde"))


def test_a_batch_is_made_again_bit_by_bit_in_any_order_and_process():
    def build():
        return ImageBatches(small(), 5, seed=3, augment=FULL)

    one, other = build(), pickle.loads(pickle.dumps(build()))
    places = [(e, i) for e in range(2) for i in range(one.count(e))]
    first = {place: one.batch(*place) for place in places}
    for place in reversed(places):
        again = other.batch(*place)
        assert all(torch.equal(first[place][k], again[k]) for k in again)
    assert not torch.equal(first[0, 0]["images"], first[1, 0]["images"])
    differs = ImageBatches(small(), 5, seed=4, augment=FULL).batch(0, 0)
    assert not torch.equal(first[0, 0]["images"], differs["images"])


def test_every_epoch_shows_every_picture_once():
    numbered = Images(torch.arange(23, dtype=torch.uint8).view(-1, 1, 1, 1), torch.zeros(23).long(), ("a",))
    batches = ImageBatches(numbered, 5, normalisation=Normalisation((0.0,), (1.0,)))
    orders = []
    for epoch in range(2):
        seen = torch.cat([batches.batch(epoch, i)["images"].flatten() for i in range(batches.count(epoch))]) * 255
        assert seen.round().int().sort().values.tolist() == list(range(23))
        orders.append(seen.tolist())
    assert orders[0] != orders[1]
    whole = ImageBatches(numbered, 5, whole=True)
    assert whole.count(0) == 4 and len(whole.batch(0, 3)["targets"]) == 5
    with pytest.raises(IndexError, match="batches 0 … 4; got 5"):
        batches.batch(0, 5)


def test_normalised_training_pictures_have_mean_0_and_deviation_1():
    images = small(64)
    batch = ImageBatches(images, 64, shuffled=False).batch(0, 0)["images"].double()
    assert batch.mean((0, 2, 3)).abs().max() < 1e-6
    assert (batch.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    flat = Images(torch.full((4, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(4).long(), ("a",))
    assert torch.isfinite(ImageBatches(flat, 4).batch(0, 0)["images"]).all()


def test_validation_is_cut_by_the_seed_and_test_stays_apart():
    parts = split({"train": small(50), "test": small(9, seed=1)}, validation=0.2, seed=1)
    again = split({"train": small(50), "test": small(9, seed=1)}, validation=0.2, seed=1)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (40, 10, 9)
    assert torch.equal(parts.validation.pixels, again.validation.pixels)
    for one, other in ((parts.train, parts.validation), (parts.train, parts.test), (parts.validation, parts.test)):
        assert not overlap(one.pixels, other.pixels).places
    alone = split({"train": small(50)}, validation=0.2)
    assert len(alone.train) + len(alone.validation) + len(alone.test) == 50
    assert not overlap(alone.validation.pixels, alone.test.pixels).places and len(alone.notes) == 2


def test_the_digits_that_ship_are_whole_and_their_parts_share_nothing():
    parts = digits()
    sizes = [len(part) for part in (parts.train, parts.validation, parts.test)]
    assert sizes == [1257, 180, 360]
    together = torch.cat([part.labels for part in (parts.train, parts.validation, parts.test)])
    assert together.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI states
    assert int(parts.train.pixels.max()) == 255
    for one, other in ((parts.train, parts.validation), (parts.train, parts.test), (parts.validation, parts.test)):
        assert not overlap(one.pixels, other.pixels).places
    # a nearest mean tells most of them apart: pictures and labels belong together
    means = torch.stack([parts.train.pixels[parts.train.labels == k].float().mean(0) for k in range(10)])
    nearest = torch.cdist(parts.test.pixels.float().flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == parts.test.labels).float().mean() > 0.85


def test_orders_are_permutations_and_shares_are_kept_apart():
    assert epoch_order(100, 0, 1).sort().values.tolist() == list(range(100))
    assert epoch_order(5, 0, 1, shuffled=False).tolist() == [0, 1, 2, 3, 4]
    kept, apart = held_out(2, 0.01, 0)
    assert len(kept) == len(apart) == 1
    for count, share in ((1, 0.5), (10, 0.0), (10, 1.0)):
        with pytest.raises(ValueError, match=r"share between 0 and 1|from 2 items"):
            held_out(count, share, 0)


class Places(Dataset):
    """How a loop's workers ask for batches."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches.count(0)

    def __getitem__(self, index):
        return self.batches.batch(0, index)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_make_the_batches_that_the_main_process_makes(start):
    kinds = [ImageBatches(small(), 5, augment=FULL), TextWindows(torch.arange(200) % 7, 8, 4)]
    for batches in kinds if start == "fork" else kinds[:1]:
        loader = DataLoader(
            Places(batches), batch_size=None, num_workers=2 if start == "fork" else 1, multiprocessing_context=start
        )
        for index, made in enumerate(loader):
            assert all(torch.equal(made[k], v) for k, v in batches.batch(0, index).items())
