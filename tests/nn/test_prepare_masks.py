"""Positions and masks of a model call, with caches, sliding windows, chunks and padding."""

import pytest
import torch
from reference import close

from qkv.nn import Additive, Block, BlockConfig, KVCache, LocationAware, masks
from qkv.nn.attention import BLOCK
from qkv.nn.embeddings import get_position
from qkv.nn.masks import BandMask, DenseMask
from qkv.nn.prepare_masks import check_token_mask, materialize_small, prepare_causal, prepare_chunked
from qkv.nn.rope import Rope
from qkv.positions import Alibi, Shaw, T5Bias

WIDTH, TOKENS = 8, 12
PRESENT = {
    "whole": None,
    "padded": [
        [0] * 5 + [1] * 7,
        [0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1],
        [1] * 3 + [0] * 6 + [1] * 3,  # a hole longer than the window
        [1] * 8 + [0] * 4,
    ],
}


def flags(name, device):
    return None if PRESENT[name] is None else torch.tensor(PRESENT[name], dtype=torch.bool, device=device)


def run(blocks, x, token_mask, window, cuts):
    """A small causal model of two blocks, fed in pieces of the given lengths."""
    cache, outs, stop = KVCache(window), [], 0
    for length in cuts:
        start, stop = stop, stop + length
        y = x[:, start:stop]
        positions, mask = prepare_causal(y, None if token_mask is None else token_mask[:, start:stop], cache, window)
        for index, block in enumerate(blocks):
            y = block(y, mask=mask, positions=positions, cache=cache.layer(index))
        cache.trim()
        outs.append(y)
    return torch.cat(outs, dim=1), cache


def by_hand(blocks, x, token_mask, window):
    """The same without a cache, with the mask written from its meaning: one row at a time, missing tokens left out."""
    rows = []
    for row in range(x.shape[0]):
        there = torch.ones(TOKENS, dtype=torch.bool, device=x.device) if token_mask is None else token_mask[row]
        y = x[row : row + 1, there]
        n = y.shape[1]
        mask = torch.tensor([[i - (window or n) < j <= i for j in range(n)] for i in range(n)], device=x.device)
        for block in blocks:
            y = block(y, mask=mask)
        rows.append(torch.zeros_like(x[row]).masked_scatter(there[:, None], y[0]))
    return torch.stack(rows)


KINDS = {
    "rope": {"position": Rope()},
    "alibi": {"position": Alibi()},
    "t5": {"position": T5Bias(8, 6, bidirectional=False)},
    "shaw": {"position": Shaw(3)},
    "none": {},
    "additive": {"score": Additive(4)},
    "location-aware": {"score": LocationAware(4, 2, 5)},
}


@pytest.mark.parametrize("padding", PRESENT)
@pytest.mark.parametrize(
    ("kind", "window"),
    [*((kind, window) for kind in KINDS for window in (None, 3)), ("rope", 1), ("rope", 5), ("location-aware", 5)],
)
@torch.no_grad()
def test_prepare_causal_with_window_padding_and_cache_equals_the_text_alone(randn, device, kind, window, padding):
    blocks = [Block(BlockConfig(WIDTH, 2, 16, **KINDS[kind])).double().to(device) for _ in range(2)]
    x, token_mask = randn(4, TOKENS, WIDTH), flags(padding, device)
    there = torch.ones(4, TOKENS, dtype=torch.bool, device=device) if token_mask is None else token_mask
    expected = by_hand(blocks, x, token_mask, window)
    for cuts in ([TOKENS], [1] * TOKENS, [3, 4, 2, 3]):
        out, cache = run(blocks, x, token_mask, window, cuts)
        close(out[there], expected[there])
        assert cache.length + cache.dropped == TOKENS
        assert window is None or token_mask is not None or cache.dropped, "a window forgets"


def test_prepare_causal_with_window_keeps_the_cache_small(randn, device):
    blocks = [Block(BlockConfig(WIDTH, 2, 16)).double().to(device)]
    _, cache = run(blocks, randn(1, TOKENS, WIDTH), None, 3, [1] * TOKENS)
    assert cache.length <= 6 and cache.layer(0).length == cache.length


def test_prepare_causal_of_one_token_needs_no_mask(randn, device):
    cache = KVCache()
    prepare_causal(randn(1, 5, WIDTH), None, cache)
    positions, mask = prepare_causal(randn(1, 1, WIDTH), None, cache)
    assert mask is None and positions.queries.tolist() == [5]


def test_materialize_small_makes_small_masks_dense_only(device):
    assert materialize_small(masks.causal(9), 9, device) == masks.causal(9)
    assert isinstance(materialize_small(masks.sliding_window(9, 9, 2, 0), 9, device), DenseMask)
    large = masks.sliding_window(BLOCK + 1, BLOCK + 1, 2, 0)
    assert materialize_small(large, BLOCK + 1, device) is large
    assert isinstance(materialize_small(masks.sliding_window(1, 9, 2, 0), 1, device), BandMask)
    assert materialize_small(masks.causal(1, 9), 1, device) is None


@pytest.mark.parametrize("padding", PRESENT)
@pytest.mark.parametrize(("size", "left"), [(None, None), (1, 0), (4, None), (4, 1), (3, 0)])
def test_prepare_chunked_cuts_chunks_by_real_tokens(randn, device, padding, size, left):
    token_mask = flags(padding, device)
    x = randn(4, TOKENS, WIDTH)
    _, mask = prepare_chunked(x, token_mask, None, size, left)
    if mask is None:
        assert padding == "whole" and size is None
        return
    dense = masks.as_mask(mask).to_dense(device).expand(4, 1, TOKENS, TOKENS)
    for row in range(4):
        there = [True] * TOKENS if token_mask is None else token_mask[row].tolist()
        tokens = [place for place in range(TOKENS) if there[place]]
        for i, query in enumerate(tokens):
            for j, key in enumerate(tokens):
                ago = 0 if size is None else i // size - j // size
                assert dense[row, 0, query, key].item() == (size is None or 0 <= ago <= (99 if left is None else left))
        absent = [place for place in range(TOKENS) if not there[place]]
        assert not dense[row, 0, :, absent].any()


@pytest.mark.usefixtures("unchecked")
def test_check_token_mask_rejects_wrong_masks_and_drops_trivial_ones(randn, device):
    x = randn(2, 3, WIDTH)
    assert check_token_mask(torch.ones(2, 3, dtype=torch.bool, device=device), x) is None
    some = torch.tensor([[True, False, True]] * 2, device=device)
    assert check_token_mask(some, x) is some
    with pytest.raises(ValueError, match=r"\(batch, tokens\) = \(2, 3\), got torch.bool of \(2, 4\)"):
        check_token_mask(torch.ones(2, 4, dtype=torch.bool, device=device), x)
    with pytest.raises(ValueError, match=r"token_mask must be boolean.*got torch.float32 of \(2, 3\)"):
        check_token_mask(torch.ones(2, 3, device=device), x)
    with pytest.raises(ValueError, match=r"one of learned, sinusoidal, none, rope, alibi, t5, shaw.*got 'ropes'"):
        get_position("ropes", causal=True)  # pyright: ignore[reportArgumentType]
