"""Masks against their docstrings written as rules for one query and one key."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import BATCH, HEADS, MASKS, SIZES, table

from qkv import masks
from qkv.nn.masks import AndMask, Mask, as_mask, position_band


def lazy(name: str, t: int, s: int) -> Mask | None:
    given_mask = MASKS[name][0](t, s)
    return None if given_mask is None else as_mask(given_mask)


NAMES = sorted(name for name in MASKS if name != "none")
QUICK = settings(deadline=None, max_examples=150, derandomize=True, database=None)
LENGTH = st.integers(1, 9)
BOUND = st.none() | st.integers(0, 4)


def window(t, s, left, right, seed):
    return masks.sliding_window(t, s, left, right)


def chunks(t, s, left, right, seed):
    return masks.chunked(t, s, 1 + seed % 5, left)


def prefix(t, s, left, right, seed):
    return masks.prefix(t, s, seed % 7)


def prefix_by_row(t, s, left, right, seed):
    return masks.prefix(t, s, torch.tensor([seed % 7, 2]))


def token_mask(t, s, left, right, seed):
    return masks.padding(flags(seed, 2, s))


def tensor(t, s, left, right, seed):
    return as_mask(flags(seed, *((2, 1, t, s), (1, s), (t, 1))[seed % 3]))


def positions(t, s, left, right, seed):
    return position_band(torch.arange(t) // 2, torch.arange(s) // 2, left, right)


def flags(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


KINDS = [window, chunks, prefix, prefix_by_row, token_mask, tensor, positions]
RECIPES = st.lists(st.tuples(st.sampled_from(KINDS), BOUND, BOUND, st.integers(0, 999)), min_size=1, max_size=3)


def made(recipe, t: int, s: int) -> Mask:
    """Any mask of t queries and s keys, or several of them together."""
    parts = [make(t, s, left, right, seed) for make, left, right, seed in recipe]
    return parts[0] if len(parts) == 1 else AndMask.of(*parts)


def written_out(mask: Mask, t: int, s: int) -> torch.Tensor:
    dense = mask.to_dense()
    return dense.expand(*dense.shape[:-2], t, s)


def run(cuts: tuple[int, int], length: int) -> range:
    return range(*sorted(cut % (length + 1) for cut in cuts))


CUTS = st.tuples(st.integers(0, 9), st.integers(0, 9))


@pytest.mark.parametrize(("t", "s"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_mask_to_dense_equals_its_rule(name, t, s):
    mask = lazy(name, t, s)
    assert mask is not None
    assert torch.equal(mask.to_dense().expand(BATCH, HEADS, t, s), table(MASKS[name][1], t, s))


@QUICK
@given(RECIPES, LENGTH, LENGTH, CUTS, CUTS)
def test_mask_tile_is_a_rectangle_of_to_dense(recipe, t, s, cuts, other_cuts):
    mask, rows, columns = made(recipe, t, s), run(cuts, t), run(other_cuts, s)
    tile = mask.tile(rows, columns)
    expected = written_out(mask, t, s)[..., rows.start : rows.stop, columns.start : columns.stop]
    assert torch.equal(tile.expand(*tile.shape[:-2], len(rows), len(columns)), expected)


@QUICK
@given(RECIPES, LENGTH, LENGTH, CUTS)
def test_mask_key_range_holds_every_allowed_key(recipe, t, s, cuts):
    mask, rows = made(recipe, t, s), run(cuts, t)
    reach = mask.key_range(rows) if mask.shape[1] == s else range(s)
    assert 0 <= reach.start <= reach.stop <= s
    beyond = written_out(mask, t, s)[..., rows.start : rows.stop, :].clone()
    beyond[..., reach.start : reach.stop] = False
    assert not beyond.any()


@QUICK
@given(RECIPES, LENGTH, LENGTH, CUTS)
def test_mask_is_full_means_all_keys_in_the_key_range_are_allowed(recipe, t, s, cuts):
    mask, rows = made(recipe, t, s), run(cuts, t)
    if mask.is_full(rows) and rows:
        reach = mask.key_range(rows)
        assert written_out(mask, t, s)[..., rows.start : rows.stop, reach.start : reach.stop].all()


@QUICK
@given(RECIPES, RECIPES, LENGTH, LENGTH)
def test_mask_and_allows_what_all_parts_allow(recipe, other_recipe, t, s):
    one, other = made(recipe, t, s), made(other_recipe, t, s)
    expected = written_out(one, t, s) & written_out(other, t, s)
    for both in (one & other, other & one, AndMask.of(one, other)):
        assert torch.equal(written_out(both, t, s).expand(expected.shape), expected)


def test_mask_key_range_is_no_wider_than_necessary():
    assert masks.causal(4, 6).key_range(range(1, 3)) == range(5)
    assert masks.sliding_window(9, 9, 2, 1).key_range(range(4, 6)) == range(2, 7)
    assert masks.chunked(9, 9, 3, 1).key_range(range(6, 8)) == range(3, 9)
    assert masks.prefix(9, 9, 5).key_range(range(2)) == range(5)
    assert (masks.causal(9) & masks.sliding_window(9, 9, 2, 2)).key_range(range(4, 6)) == range(2, 6)


def test_mask_is_full_is_known_where_it_saves_a_tensor():
    assert masks.causal(1, 9).is_full(range(1)) and masks.causal(9).is_full(range(3, 4))
    assert masks.sliding_window(9, 9, None, None).is_full(range(9))
    assert masks.chunked(9, 9, 3, 1).is_full(range(3, 6)) and not masks.chunked(9, 9, 3, 1).is_full(range(3, 7))
    assert not masks.causal(9).is_full(range(3, 5))


def test_mask_and_tensor_combine_from_either_side():
    tensor = torch.tensor([[True, False], [True, True]])
    for both in (tensor & masks.causal(2), masks.causal(2) & tensor):  # pyright: ignore[reportOperatorIssue]
        assert isinstance(both, Mask)
        assert both.to_dense().tolist() == [[True, False], [True, True]]


def test_position_band_counts_positions_and_not_indices():
    positions = torch.tensor([[0, 0, 0, 1, 1, 2]])  # two of padding, then a hole before the last
    dense = position_band(positions, positions, left=1, right=0).to_dense()[0, 0]
    for i, p in enumerate(positions[0].tolist()):
        assert dense[i].tolist() == [p - 1 <= other <= p for other in positions[0].tolist()]


def test_position_band_with_size_cuts_chunks_by_positions():
    positions = torch.tensor([0, 0, 1, 2, 3, 4])
    dense = position_band(positions, positions, left=1, right=0, size=2).to_dense()[0, 0]
    for i, p in enumerate(positions.tolist()):
        assert dense[i].tolist() == [0 <= p // 2 - other // 2 <= 1 for other in positions.tolist()]


def test_causal_equals_the_sliding_window_without_left_bound():
    assert masks.causal(5) == masks.sliding_window(5, 5, None, 0) == masks.sliding_window(5)
    assert masks.causal(5) != masks.causal(5, 6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.causal(-1), "0 or more, got t=-1, s=-1"),
        (lambda: masks.chunked(3, -2), "0 or more, got t=3, s=-2"),
        (
            lambda: masks.sliding_window(3, 3, -1),
            "left of a sliding window must be 0 or more, or None for all keys, got -1",
        ),
        (lambda: masks.sliding_window(3, 3, 0, -2), "right of a sliding window must be .* got -2"),
        (lambda: masks.chunked(3, 3, 0), "chunk size must be at least 1, got size=0"),
        (lambda: masks.chunked(3, 3, 2, -1), "left_chunks must be 0 or more, or None for all chunks, got -1"),
        (lambda: masks.prefix(3, 3, -1), "the prefix must be 0 keys or more, got -1"),
        (lambda: masks.prefix(3, 3, torch.zeros(2)), r"an integer or .*got torch.float32 of \(2,\)"),
        (lambda: masks.prefix(3, 3, torch.zeros(2, 2).long()), r"tensor \(b,\), got torch.int64 of \(2, 2\)"),
        (lambda: masks.prefix(3, 3, torch.zeros(2).bool()), r"tensor \(b,\), got torch.bool of \(2,\)"),
        (lambda: masks.padding(torch.ones(2, 3)), r"boolean tensor \(b, s\).*got torch.float32 of shape \(2, 3\)"),
        (lambda: masks.padding(torch.ones(3).bool()), r"got torch.bool of shape \(3,\)"),
        (lambda: masks.causal(3) & masks.causal(4), r"cannot combine masks for different numbers of queries: \[3, 4\]"),
        (lambda: masks.causal(3) & masks.padding(torch.ones(1, 5).bool()), r"different numbers of keys: \[3, 5\]"),
        (lambda: masks.causal(3, 1) & masks.causal(3), r"cannot combine masks for different numbers of keys: \[1, 3\]"),
        (lambda: masks.causal(3) & torch.ones(3, 3), "mask must be boolean .True = may attend., got torch.float32"),
        (lambda: masks.causal(3) & 5, "mask must be a boolean tensor or a Mask, got int"),  # pyright: ignore[reportOperatorIssue]
    ],
)
def test_masks_reject_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
