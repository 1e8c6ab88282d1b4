"""LayerKVCache and KVCache: append, drop, reorder, copy, positions, sliding window."""

import pytest
import torch

from qkv.nn import KVCache, LayerKVCache


@pytest.mark.parametrize("gradients", [False, True])
def test_layer_kv_cache_returns_what_was_appended_in_order(randn, gradients):
    cache, keys, values = LayerKVCache(), randn(2, 3, 40, 4), randn(2, 3, 40, 5)
    start = 0
    for length in (3, 1, 1, 0, 20, 1, 14):
        with torch.set_grad_enabled(gradients):
            k, v = cache.append(keys[:, :, start : start + length], values[:, :, start : start + length])
        start += length
        assert cache.length == start
        assert k is not None and torch.equal(k, keys[:, :, :start]) and torch.equal(v, values[:, :, :start])
    assert torch.equal(cache.get()[1], values)


@torch.no_grad()
def test_layer_kv_cache_append_does_not_change_earlier_results(randn):
    cache, x = LayerKVCache(), randn(1, 1, 30, 2)
    seen = [cache.append(x[:, :, i : i + 1], x[:, :, i : i + 1])[1] for i in range(30)]
    assert all(torch.equal(values, x[:, :, : i + 1]) for i, values in enumerate(seen))


def test_layer_kv_cache_buffers_grow_by_doubling(randn):
    cache, places = LayerKVCache(), set()
    for _ in range(1000):
        with torch.no_grad():
            keys, _ = cache.append(randn(1, 1, 1, 2), randn(1, 1, 1, 2))
        assert keys is not None
        places.add(keys.data_ptr())
    assert len(places) <= 10


def test_layer_kv_cache_works_without_keys(randn):
    cache, values = LayerKVCache(), randn(1, 1, 4, 2)
    for i in range(4):
        keys, held = cache.append(None, values[:, :, i : i + 1])
        assert keys is None and torch.equal(held, values[:, :, : i + 1])


def test_layer_kv_cache_passes_gradients_to_everything_appended(randn):
    cache, x = LayerKVCache(), randn(1, 1, 6, 2).requires_grad_()
    total = sum(cache.append(x[:, :, i : i + 1], 2 * x[:, :, i : i + 1])[1].sum() for i in range(6))
    (gradient,) = torch.autograd.grad(total, x)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert gradient[0, 0, :, 0].tolist() == [12.0, 10.0, 8.0, 6.0, 4.0, 2.0]


def test_layer_kv_cache_drop_removes_the_oldest(randn):
    cache, x = LayerKVCache(), randn(2, 1, 9, 2)
    cache.append(x[:, :, :6], x[:, :, :6])
    cache.weights = torch.arange(6.0).expand(2, 1, 6)
    cache.drop(0)
    cache.drop(4)
    assert cache.length == 2 and cache.weights.tolist() == [[[4.0, 5.0]]] * 2
    keys, values = cache.append(x[:, :, 6:], x[:, :, 6:])
    assert torch.equal(values, x[:, :, 4:]) and keys is not None and torch.equal(keys, values)


def test_kv_cache_drop_of_more_than_cached_leaves_nothing(randn):
    cache, whole, x = LayerKVCache(), KVCache(), randn(2, 1, 3, 2)
    cache.append(x, x)
    cache.drop(5)
    assert cache.length == 0
    assert torch.equal(cache.append(x, x)[1], x)
    whole.advance(3, None, x.device)
    whole.layer(0).append(x, x)
    whole.drop(5)
    assert whole.length == whole.layer(0).length == 0 and whole.dropped == 3
    assert whole.advance(2, None, x.device).queries.tolist() == [3, 4]


@pytest.mark.parametrize("rows", [[1, 0], [1, 1, 0], [0]])
def test_layer_kv_cache_reorder_keeps_rows_in_the_given_order(randn, device, rows):
    cache, x = LayerKVCache(), randn(2, 1, 4, 2)
    cache.append(x, 2 * x)
    cache.weights = torch.tensor([[[1.0]], [[2.0]]], device=device)
    cache.reorder(torch.tensor(rows, device=device))
    keys, values = cache.get()
    assert keys is not None and torch.equal(keys, x[rows]) and torch.equal(values, 2 * x[rows])
    assert cache.weights.flatten().tolist() == [row + 1.0 for row in rows]
    more = randn(len(rows), 1, 1, 2)
    assert torch.equal(cache.append(more, more)[1], torch.cat((2 * x[rows], more), dim=-2))


@torch.no_grad()
def test_layer_kv_cache_copy_is_independent(randn):
    cache, x, y = LayerKVCache(), randn(1, 1, 3, 2), randn(1, 1, 3, 2)
    for i in range(3):
        cache.append(x[:, :, i : i + 1], x[:, :, i : i + 1])
    cache.weights = torch.zeros(1, 1, 3)
    twin = cache.copy()
    _, ours = cache.append(x[:, :, :1], x[:, :, :1])
    _, theirs = twin.append(y[:, :, :1], y[:, :, :1])
    cache.drop(2)
    assert torch.equal(ours, torch.cat((x, x[:, :, :1]), -2)) and torch.equal(theirs, torch.cat((x, y[:, :, :1]), -2))
    assert twin.length == 4 and twin.weights is not None and twin.weights.shape[-1] == 3
    assert LayerKVCache(fixed=True).copy().fixed


def test_layer_kv_cache_filled_is_true_for_fixed_caches_only(randn):
    x = randn(1, 1, 3, 2)
    for fixed in (False, True):
        cache = LayerKVCache(fixed=fixed)
        assert not cache.filled
        cache.append(x, x)
        assert cache.filled == fixed


def test_kv_cache_positions_continue_after_earlier_calls(device):
    cache = KVCache()
    assert cache.advance(3, None, device).queries.tolist() == [0, 1, 2]
    positions = cache.advance(2, None, device)
    assert positions.queries.tolist() == [3, 4] and positions.keys.tolist() == [0, 1, 2, 3, 4]
    cache.drop(2)
    positions = cache.advance(1, None, device)
    assert positions.queries.tolist() == [5] and positions.keys.tolist() == [2, 3, 4, 5]


def test_kv_cache_positions_count_real_tokens_across_calls_and_drops(device):
    cache = KVCache()
    cache.advance(2, None, device)
    flags = torch.tensor([[True, False, True], [False, False, True]], device=device)
    positions = cache.advance(3, flags, device)
    assert positions.queries.tolist() == [[2, 2, 3], [1, 1, 2]]
    assert positions.keys.tolist() == [[0, 1, 2, 2, 3], [0, 1, 1, 1, 2]]
    cache.drop(3)
    positions = cache.advance(1, None, device)
    assert positions.queries.tolist() == [[4], [3]] and positions.keys.tolist() == [[2, 3, 4], [1, 2, 3]]
    assert cache.token_mask is not None and cache.token_mask.tolist() == [[False, True, True], [False, True, True]]


def test_kv_cache_reorder_moves_rows_of_all_layers(randn, device):
    cache, x = KVCache(), randn(2, 1, 3, 2)
    cache.advance(3, torch.tensor([[True, True, True], [False, True, True]], device=device), device)
    cache.layer("a").append(x, x)
    cache.layer("memory", fixed=True).append(x, x)
    cache.drop(1)
    cache.reorder(torch.tensor([1, 1, 0], device=device))
    assert cache.token_mask is not None and cache.token_mask.tolist() == [[True, True]] * 3
    assert torch.equal(cache.layer("a").get()[1], x[[1, 1, 0], :, 1:])
    assert torch.equal(cache.layer("memory").get()[1], x[[1, 1, 0]])
    assert cache.advance(1, None, device).queries.tolist() == [[2], [2], [3]]


def test_kv_cache_copy_is_independent(randn, device):
    cache, x = KVCache(window=4), randn(1, 1, 3, 2)
    cache.advance(3, torch.tensor([[False, True, True]], device=device), device)
    cache.layer(0).append(x, x)
    twin = cache.copy()
    twin.advance(1, None, device)
    twin.layer(0).append(x[:, :, :1], x[:, :, :1])
    twin.drop(2)
    assert (cache.length, cache.dropped, cache.layer(0).length) == (3, 0, 3)
    assert cache.token_mask is not None and cache.token_mask.tolist() == [[False, True, True]]
    assert (twin.window, twin.length, twin.dropped, twin.layer(0).length) == (4, 2, 2, 2)


@pytest.mark.parametrize("holes", [False, True])
def test_kv_cache_trim_keeps_what_the_sliding_window_needs(device, holes):
    cache, window, longest = KVCache(window=4), 4, 0
    text = (torch.rand(2, 200) < 0.7).to(device) if holes else torch.ones(2, 200, dtype=torch.bool, device=device)
    for i in range(200):
        cache.advance(1, text[:, i : i + 1] if holes else None, device)
        cache.trim()
        assert cache.length + cache.dropped == i + 1
        held = text[:, i + 1 - cache.length : i + 1].sum(-1)
        assert (held >= text[:, : i + 1].sum(-1).clamp(max=window - 1)).all(), "the next query sees these"
        longest = max(longest, cache.length)
    assert longest <= (6 if holes else 2) * window
    assert cache.dropped > 150


def test_kv_cache_trim_without_window_drops_nothing(device):
    cache = KVCache()
    cache.advance(50, None, device)
    cache.trim()
    assert cache.length == 50 and cache.dropped == 0


@pytest.mark.usefixtures("unchecked")
def test_kv_cache_rejects_wrong_windows_and_batch_sizes(device):
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        KVCache(window=0)
    cache = KVCache()
    cache.advance(2, torch.ones(2, 2, dtype=torch.bool), torch.device("cpu"))
    with pytest.raises(ValueError, match="the cache has 2 rows, got 3"):
        cache.advance(1, torch.ones(3, 1, dtype=torch.bool), torch.device("cpu"))
    layer = LayerKVCache()
    layer.append(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
    with pytest.raises(ValueError, match="the cache has 2 rows, got 1"):
        layer.append(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4))
    assert layer.length == 3 and cache.length == 2
