"""Batched image augmentation, compared with its definition for one image."""

import pytest
import torch

from qkv.data.batches import generator_for
from qkv.data.images.augmentation import (
    COLOR_OPERATIONS,
    OPERATIONS,
    ImageAugment,
    _affine,
    cutmix,
    mixup,
    rand_augment,
    random_crop,
    random_erase,
    random_flip,
    sample_beta,
)


def images(b=16, c=3, side=8):
    return torch.randint(1, 256, (b, c, side, side), dtype=torch.uint8, generator=generator_for(1))


def test_random_crop_cuts_a_window_out_of_each_padded_image():
    before = images(40)
    after = random_crop(before, 2, generator_for(0))
    wide = torch.nn.functional.pad(before, (2,) * 4)
    places = set()
    for one, whole in zip(after, wide, strict=True):
        found = [(y, x) for y in range(5) for x in range(5) if torch.equal(one, whole[:, y : y + 8, x : x + 8])]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 10, "crops differ from image to image"


def test_random_flip_mirrors_about_half_of_the_images():
    before = images(200)
    after = random_flip(before, generator_for(0))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m or s for m, s in zip(mirrored, same, strict=True))
    assert 70 < sum(mirrored) < 130


def test_mixup_is_the_weighted_mean_of_two_images_and_of_their_targets():
    x, targets = torch.randn(6, 3, 8, 8), torch.arange(6)
    mixed, shares = mixup(x, targets, 6, 1.0, generator_for(3))
    assert torch.allclose(shares.sum(1), torch.ones(6))
    assert torch.allclose(mixed, torch.einsum("bk,kchw->bchw", shares, x), atol=1e-6)  # class k is image k here


def test_cutmix_pastes_a_rectangle_and_mixes_targets_by_its_area():
    for seed in range(30):
        x = torch.arange(4.0)[:, None, None, None].expand(4, 1, 10, 12).contiguous()
        mixed, shares = cutmix(x, torch.arange(4), 4, 1.0, generator_for(seed))
        for row in range(4):
            pasted = mixed[row, 0] != row
            assert shares[row, row] == pytest.approx(1 - pasted.float().mean().item(), abs=1e-6)
            other = mixed[row, 0][pasted].unique()
            assert len(other) <= 1
            if len(other):  # the pasted pixels fill their bounding box, and come from the same place
                rows, columns = pasted.any(1).nonzero(), pasted.any(0).nonzero()
                assert pasted.sum() == len(rows) * len(columns)
                assert shares[row, int(other)] == pytest.approx(pasted.float().mean().item(), abs=1e-6)


def test_sample_beta_has_the_moments_of_the_distribution():
    generator = generator_for(0)
    drawn = torch.tensor([sample_beta(0.4, generator) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(0.5, abs=0.03)
    assert drawn.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)  # 1 / (4(2α + 1))


def test_random_erase_blanks_one_rectangle_of_about_the_expected_area():
    x = torch.ones(400, 2, 16, 16)
    erased = random_erase(x, 0.5, generator_for(0)) == 0
    assert torch.equal(erased[:, 0], erased[:, 1]), "all channels"
    hit = erased[:, 0].flatten(1).any(1)
    assert 150 < hit.sum() < 250
    for mask in erased[hit][:50, 0]:
        assert mask.sum() == mask.any(1).sum() * mask.any(0).sum(), "a full rectangle"
    assert erased[hit][:, 0].float().mean() == pytest.approx(0.175, abs=0.03)  # the mean of 0.02 … 0.33


def test_rand_augment_affine_of_amount_0_changes_nothing_and_a_translation_shifts_pixels():
    x = images(6).float() / 255
    kind = torch.arange(1, 6).repeat(2)[:6]
    assert torch.allclose(_affine(x, kind, torch.zeros(6)), x, atol=1e-5)
    amount = torch.full((6,), 0.25 / 0.9)  # a quarter of a half width: one pixel of eight
    moved = _affine(x, torch.full((6,), OPERATIONS.index("translate-x")), amount)
    assert torch.allclose(moved[..., :-1], x[..., 1:], atol=1e-5)
    assert torch.allclose(moved[..., -1], torch.zeros(6, 3, 8), atol=1e-5)
    down = _affine(x, torch.full((6,), OPERATIONS.index("translate-y")), amount)
    assert torch.allclose(down[..., :-1, :], x[..., 1:, :], atol=1e-5)


def test_rand_augment_color_operations_of_amount_0_change_nothing():
    x, none = images(4).float() / 255, torch.zeros(4, 1, 1, 1)
    for name, change in COLOR_OPERATIONS.items():
        assert torch.allclose(change(x, none), x, atol=1e-5), name
    gray = COLOR_OPERATIONS["saturation"](x, torch.full_like(none, -1 / 0.9))
    assert torch.allclose(gray[:, 0], gray[:, 2], atol=1e-5)
    assert torch.allclose(COLOR_OPERATIONS["brightness"](x, torch.full_like(none, 0.5)), 1.45 * x)
    assert len((COLOR_OPERATIONS["posterize"](x, none + 1) * 255).round().unique()) <= 16


def test_rand_augment_returns_bytes_and_changes_most_images():
    before = images(60, side=12)
    after = rand_augment(before, 2, 9.0, generator_for(0))
    assert after.dtype == torch.uint8 and after.shape == before.shape
    assert (after != before).flatten(1).any(1).float().mean() > 0.9
    assert torch.equal(after, rand_augment(before, 2, 9.0, generator_for(0)))
    assert rand_augment(images(3, c=1, side=2), 3, 10.0, generator_for(0)).shape == (3, 1, 2, 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"crop": -1},
        {"magnitude": 11.0},
        {"random_erasing": 1.5},
        {"mix_alpha": 0.0},
        {"mix": "cut"},
        {"rand_augment": -2},
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_image_augment_names_a_setting_out_of_range(settings):
    with pytest.raises(ValueError, match=rf"^{next(iter(settings))} must be"):
        ImageAugment(**settings)
