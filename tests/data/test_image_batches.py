"""ImageBatches are pure functions of (epoch, index), the same in any process."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from qkv.data.batches import epoch_order, split_indices
from qkv.data.images.augmentation import ImageAugment
from qkv.data.images.dataset import ImageBatches, Images, Normalization, PatchDropout, split_images
from qkv.data.images.load import load_digits
from qkv.data.overlap import find_overlap
from qkv.data.text.language_modeling import TextWindows

FULL = ImageAugment(crop=1, flip=True, rand_augment=2, random_erasing=0.3, mix="either")


def small(n=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(n) % 5, tuple("abcde"))


def test_image_batches_are_bit_identical_in_any_order_and_process():
    def build():
        return ImageBatches(small(), 5, seed=3, augment=FULL)

    one, other = build(), pickle.loads(pickle.dumps(build()))
    places = [(e, i) for e in range(2) for i in range(one.num_batches(e))]
    first = {place: one.batch(*place) for place in places}
    for place in reversed(places):
        again = other.batch(*place)
        assert all(torch.equal(first[place][k], again[k]) for k in again)
    assert not torch.equal(first[0, 0]["images"], first[1, 0]["images"])
    differs = ImageBatches(small(), 5, seed=4, augment=FULL).batch(0, 0)
    assert not torch.equal(first[0, 0]["images"], differs["images"])


def test_image_batches_show_every_image_once_per_epoch():
    numbered = Images(torch.arange(23, dtype=torch.uint8).view(-1, 1, 1, 1), torch.zeros(23).long(), ("a",))
    batches = ImageBatches(numbered, 5, normalization=Normalization((0.0,), (1.0,)))
    orders = []
    for epoch in range(2):
        seen = torch.cat([batches.batch(epoch, i)["images"].flatten() for i in range(batches.num_batches(epoch))]) * 255
        assert seen.round().int().sort().values.tolist() == list(range(23))
        orders.append(seen.tolist())
    assert orders[0] != orders[1]
    whole = ImageBatches(numbered, 5, drop_last=True)
    assert whole.num_batches(0) == 4 and len(whole.batch(0, 3)["targets"]) == 5
    with pytest.raises(IndexError, match="batches 0 … 4, got index 5"):
        batches.batch(0, 5)


def test_normalization_gives_training_images_mean_0_and_std_1():
    images = small(64)
    batch = ImageBatches(images, 64, shuffle=False).batch(0, 0)["images"].double()
    assert batch.mean((0, 2, 3)).abs().max() < 1e-6
    assert (batch.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    flat = Images(torch.full((4, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(4).long(), ("a",))
    assert ImageBatches(flat, 4).batch(0, 0)["images"].eq(0).all(), "a constant channel is centered, not scaled"


def test_split_images_splits_validation_off_by_the_seed_and_keeps_test():
    parts = split_images({"train": small(50), "test": small(9, seed=1)}, validation=0.2, seed=1)
    again = split_images({"train": small(50), "test": small(9, seed=1)}, validation=0.2, seed=1)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (40, 10, 9)
    assert torch.equal(parts.validation.pixels, again.validation.pixels)
    for one, other in ((parts.train, parts.validation), (parts.train, parts.test), (parts.validation, parts.test)):
        assert not find_overlap(one.pixels, other.pixels).indices
    alone = split_images({"train": small(50)}, validation=0.2)
    assert len(alone.train) + len(alone.validation) + len(alone.test) == 50
    assert not find_overlap(alone.validation.pixels, alone.test.pixels).indices and len(alone.notes) == 2


def test_load_digits_is_complete_and_its_parts_are_disjoint():
    parts = load_digits()
    sizes = [len(part) for part in (parts.train, parts.validation, parts.test)]
    assert sizes == [1257, 180, 360]
    together = torch.cat([part.labels for part in (parts.train, parts.validation, parts.test)])
    assert together.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as UCI states
    assert int(parts.train.pixels.max()) == 255
    for one, other in ((parts.train, parts.validation), (parts.train, parts.test), (parts.validation, parts.test)):
        assert not find_overlap(one.pixels, other.pixels).indices
    # a nearest mean tells most of them apart: images and labels belong together
    means = torch.stack([parts.train.pixels[parts.train.labels == k].float().mean(0) for k in range(10)])
    nearest = torch.cdist(parts.test.pixels.float().flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == parts.test.labels).float().mean() > 0.85


def test_epoch_order_is_a_permutation_and_split_indices_are_disjoint():
    assert epoch_order(100, 0, 1).sort().values.tolist() == list(range(100))
    assert epoch_order(5, 0, 1, shuffle=False).tolist() == [0, 1, 2, 3, 4]
    kept, apart = split_indices(2, 0.01, 0)
    assert len(kept) == len(apart) == 1
    for count, share in ((1, 0.5), (10, 0.0), (10, 1.0)):
        with pytest.raises(ValueError, match=r"must be between 0 and 1|needs at least 2 items"):
            split_indices(count, share, 0)


class Places(Dataset):
    """Batches as a torch Dataset, for worker processes."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches.num_batches(0)

    def __getitem__(self, index):
        return self.batches.batch(0, index)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_worker_processes_make_the_same_batches(start):
    kinds = [ImageBatches(small(), 5, augment=FULL), TextWindows(torch.arange(200) % 7, 8, 4)]
    for batches in kinds if start == "fork" else kinds[:1]:
        loader = DataLoader(
            Places(batches), batch_size=None, num_workers=2 if start == "fork" else 1, multiprocessing_context=start
        )
        for index, made in enumerate(loader):
            assert all(torch.equal(made[k], v) for k, v in batches.batch(0, index).items())


def test_patch_dropout_shows_a_share_of_the_batches_in_part_and_the_same_images():
    whole = ImageBatches(small(400), 4, seed=3, augment=FULL)
    part = PatchDropout(whole, num_patches=16, dropped=0.5, share=0.75)
    assert part.num_batches(0) == whole.num_batches(0) == 100
    found = [part.batch(0, index) for index in range(100)]
    shown = [batch["patches"] for batch in found if "patches" in batch]
    assert 60 <= len(shown) <= 88, "75 expected, four standard deviations are 17"
    for patches in shown:
        assert patches.shape == (4, 8) and (patches == patches[0]).all(), (
            "as many rows as images, for several processes"
        )
        assert sorted(set(patches[0].tolist())) == patches[0].tolist() and 0 <= patches.min() <= patches.max() < 16
    often = torch.stack([patches[0] for patches in shown]).flatten().bincount(minlength=16) / len(shown)
    assert (often - 0.5).abs().max() < 0.25, "every patch is shown about half of the time"
    assert len({tuple(patches[0].tolist()) for patches in shown}) == len(shown)
    again = pickle.loads(pickle.dumps(part)).batch(0, 7)
    assert again.keys() == found[7].keys() and all(torch.equal(again[name], found[7][name]) for name in again)
    assert torch.equal(found[7]["images"], whole.batch(0, 7)["images"])
    assert all("patches" not in PatchDropout(whole, 16, 0.01, 1.0).batch(0, index) for index in range(5))
    with pytest.raises(ValueError, match=r"patch_dropout must be in \[0, 1\)"):
        PatchDropout(whole, 16, 1.0, 0.5)
