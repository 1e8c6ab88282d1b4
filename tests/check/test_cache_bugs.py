"""The bug of a KV cache is found by simulation: what a piece reads of the cache, and at which positions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import run


def rotate(x, places):
    angles = places[:, None] * 1e4 ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Cached(nn.Module):
    """Rotary self-attention whose cache is passed in and returned; its methods are right."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def start(self, old):
        return old

    def join(self, old, new, part):
        return torch.cat((old, new), 2)

    def store(self, k, v):
        return k, v

    def mask(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril(s - t)

    def rotate_read(self, k, old):
        return k

    def forward(self, x, past_kv=None):
        t, old = x.shape[1], 0 if past_kv is None else past_kv[2]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        places = torch.arange(t) + (self.start(old) if old else 0)
        q, k = rotate(q, places), rotate(k, places)
        if past_kv is not None:
            k, v = self.join(past_kv[0], k, "k"), self.join(past_kv[1], v, "v")
        read = self.rotate_read(k, old)
        out = F.scaled_dot_product_attention(q, read, v, attn_mask=self.mask(t, k.shape[2]))
        return self.out(out.transpose(1, 2).flatten(2)), (*self.store(k, v), old + t)


class NoOffset(Cached):
    def start(self, old):
        return 0


class OneTooFar(Cached):
    def start(self, old):
        return old + 1


class StopsGrowing(Cached):
    def start(self, old):
        return min(old, 30)


class NewestFirst(Cached):
    def join(self, old, new, part):
        return torch.cat((new, old), 2)


class ValuesNewestFirst(Cached):
    def join(self, old, new, part):
        return torch.cat((new, old) if part == "v" else (old, new), 2)


class LosesTheLast(Cached):
    def join(self, old, new, part):
        return torch.cat((old[:, :, :-1], new), 2)


class HoldsTwice(Cached):
    def join(self, old, new, part):
        return torch.cat((old, old[:, :, -1:], new), 2)


class Unused(Cached):
    def join(self, old, new, part):
        return new


class TopLeft(Cached):
    def mask(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril()


class Swapped(Cached):
    def store(self, k, v):
        return v, k


class RotatedAgain(Cached):
    def rotate_read(self, k, old):
        return torch.cat((rotate(k[:, :, :old], torch.arange(old)), k[:, :, old:]), 2)


class Slots(nn.Module):
    """Keeps its cache in slots; `start_pos` says where a piece begins."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))
        self.keys = self.values = torch.zeros(2, 100, heads, dim // heads)

    def slots(self, places):
        return places

    def count(self, end):
        return end

    def forward(self, x, start_pos=None):
        b, t, _ = x.shape
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.wq, self.wk, self.wv))
        if start_pos is not None:
            places = self.slots(torch.arange(start_pos, start_pos + t))
            self.keys, self.values = self.keys.to(x).clone(), self.values.to(x).clone()
            self.keys[:b, places], self.values[:b, places] = k, v
            end = self.count(start_pos + t)
            k, v = self.keys[:b, :end], self.values[:b, :end]
        s = k.shape[1]
        mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2))


class OneSlotEarly(Slots):
    def slots(self, places):
        return places - (places[0] > 0).long()


class WrapsAround(Slots):
    def slots(self, places):
        return places % 8


class ReadsTooFar(Slots):
    def count(self, end):
        return end + 2


@pytest.mark.parametrize(
    ("bug", "family", "words"),
    [
        (NoOffset, "positions with cache", "positions restart at 0 in each piece"),
        (OneTooFar, "positions with cache", "one too far"),
        (StopsGrowing, "positions with cache", "stop growing at 30"),
        (RotatedAgain, "positions with cache", "rotated again when they are read"),
        (NewestFirst, "cache order", "before the cached ones"),
        (ValuesNewestFirst, "cache order", "key 0 with value 1"),
        (LosesTheLast, "cache order", "the last token of a piece is lost"),
        (HoldsTwice, "cache order", "the cache holds token 0 more than once"),
        (Unused, "cache order", "what is cached is not used"),
        (TopLeft, "mask with cache", "aligned at the start"),
        (Swapped, "inputs swapped", "keys and values are swapped in the cache"),
        (OneSlotEarly, "cache order", "one slot early, over the last cached ones"),
        (WrapsAround, "cache order", "after 8 tokens new ones are written over the first"),
        (ReadsTooFar, "mask with cache", "slots after the newest token are read"),
    ],
)
def test_run_names_the_one_bug_of_a_cache(bug, family, words):
    report = run(bug, kind="causal", cache=True)
    assert {finding.check.partition(" (")[0] for finding in report.failed} == {"cache"}
    found = report.diagnosis
    assert found is not None
    assert (found.family, found.exact) == (family, True)
    assert words in found.words


@pytest.mark.parametrize("sound", [Cached, Slots])
def test_run_raises_no_alarm_for_a_right_cache(sound):
    assert run(sound, kind="causal", cache=True).ok
