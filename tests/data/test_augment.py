"""Batched changes of pictures, against what each means for one picture."""

import pytest
import torch

from qkv.data.augment import Augment, beta, cutmix, mixup, random_crop, random_erase, random_flip
from qkv.data.batches import generator_for
from qkv.data.rand_augment import CHANGES, KINDS, _moved, rand_augment


def pictures(b=16, c=3, side=8):
    return torch.randint(1, 256, (b, c, side, side), dtype=torch.uint8, generator=generator_for(1))


def test_each_crop_is_a_window_of_its_own_picture_in_black():
    before = pictures(40)
    after = random_crop(before, 2, generator_for(0))
    wide = torch.nn.functional.pad(before, (2,) * 4)
    places = set()
    for one, whole in zip(after, wide, strict=True):
        found = [(y, x) for y in range(5) for x in range(5) if torch.equal(one, whole[:, y : y + 8, x : x + 8])]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 10, "crops differ from picture to picture"


def test_a_flip_mirrors_about_half_and_leaves_the_rest():
    before = pictures(200)
    after = random_flip(before, generator_for(0))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m or s for m, s in zip(mirrored, same, strict=True))
    assert 70 < sum(mirrored) < 130


def test_mixup_is_the_weighted_mean_of_two_pictures_and_of_their_targets():
    x, targets = torch.randn(6, 3, 8, 8), torch.arange(6)
    mixed, shares = mixup(x, targets, 6, 1.0, generator_for(3))
    assert torch.allclose(shares.sum(1), torch.ones(6))
    assert torch.allclose(mixed, torch.einsum("bk,kchw->bchw", shares, x), atol=1e-6)  # class k is picture k here


def test_cutmix_pastes_a_rectangle_and_shares_targets_by_its_area():
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


def test_beta_numbers_have_the_moments_of_the_distribution():
    generator = generator_for(0)
    drawn = torch.tensor([beta(0.4, generator) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(0.5, abs=0.03)
    assert drawn.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)  # 1 / (4(2α + 1))


def test_erasing_blanks_one_rectangle_of_about_the_share_asked_for():
    x = torch.ones(400, 2, 16, 16)
    erased = random_erase(x, 0.5, generator_for(0)) == 0
    assert torch.equal(erased[:, 0], erased[:, 1]), "all channels"
    hit = erased[:, 0].flatten(1).any(1)
    assert 150 < hit.sum() < 250
    for mask in erased[hit][:50, 0]:
        assert mask.sum() == mask.any(1).sum() * mask.any(0).sum(), "a full rectangle"
    assert erased[hit][:, 0].float().mean() == pytest.approx(0.175, abs=0.03)  # the mean of 0.02 … 0.33


def test_moves_of_strength_none_change_nothing_and_a_shift_is_a_shift():
    x = pictures(6).float() / 255
    kind = torch.arange(1, 6).repeat(2)[:6]
    assert torch.allclose(_moved(x, kind, torch.zeros(6)), x, atol=1e-5)
    amount = torch.full((6,), 0.25 / 0.9)  # a quarter of a half width: one pixel of eight
    moved = _moved(x, torch.full((6,), KINDS.index("translate-x")), amount)
    assert torch.allclose(moved[..., :-1], x[..., 1:], atol=1e-5)
    assert torch.allclose(moved[..., -1], torch.zeros(6, 3, 8), atol=1e-5)
    down = _moved(x, torch.full((6,), KINDS.index("translate-y")), amount)
    assert torch.allclose(down[..., :-1, :], x[..., 1:, :], atol=1e-5)


def test_colour_changes_of_strength_none_change_nothing():
    x, none = pictures(4).float() / 255, torch.zeros(4, 1, 1, 1)
    for name, change in CHANGES.items():
        assert torch.allclose(change(x, none), x, atol=1e-5), name
    grey = CHANGES["saturation"](x, torch.full_like(none, -1 / 0.9))
    assert torch.allclose(grey[:, 0], grey[:, 2], atol=1e-5)
    assert torch.allclose(CHANGES["brightness"](x, torch.full_like(none, 0.5)), 1.45 * x)
    assert len((CHANGES["posterise"](x, none + 1) * 255).round().unique()) <= 16


def test_rand_augment_gives_bytes_and_changes_most_pictures():
    before = pictures(60, side=12)
    after = rand_augment(before, 2, 9.0, generator_for(0))
    assert after.dtype == torch.uint8 and after.shape == before.shape
    assert (after != before).flatten(1).any(1).float().mean() > 0.9
    assert torch.equal(after, rand_augment(before, 2, 9.0, generator_for(0)))
    assert rand_augment(pictures(3, c=1, side=2), 3, 10.0, generator_for(0)).shape == (3, 1, 2, 2)


@pytest.mark.parametrize(
    "settings", [{"crop": -1}, {"strength": 11.0}, {"erase": 1.5}, {"alpha": 0.0}, {"mix": "cut"}, {"operations": -2}]
)
@pytest.mark.usefixtures("unchecked")
def test_settings_out_of_range_are_refused_by_name(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Augment(**settings)
