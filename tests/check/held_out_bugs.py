"""Bugs written by other hands than the mutants: other styles, other names, whole models. Nothing is tuned to them."""

# ruff: noqa: N803, N806

import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from qkv.check import ENCODER, TEXTBOOK, Contract

HELD_OUT = {}


def held_out(family, contract=TEXTBOOK):
    def keep(thing):
        HELD_OUT[thing.__name__] = (thing, contract, family)
        return thing

    return keep


# -- plain functions -------------------------------------------------------------------------------------


@held_out("scale")
def attention_2d(Q, K, V):
    s = torch.matmul(Q, K.T) / Q.size(-1)
    return torch.matmul(torch.softmax(s, dim=1), V)


HELD_OUT["attention_2d"] = (attention_2d, ENCODER, "scale")


@held_out("softmax axis", ENCODER)
def attn_bad_dim(query, key, value, mask=None):
    d = query.size(-1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(d)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    p = F.softmax(scores, dim=2)
    return torch.einsum("bhqk,bhkd->bhqd", p, value)


@held_out("mask not −∞")
def soft_mask_attention(q, k, v, is_causal=False):
    att = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(k.size(-1)))
    if is_causal:
        n = att.size(-1)
        att = att + torch.triu(torch.full((n, n), -3.0, dtype=att.dtype), diagonal=1)
    return F.softmax(att, dim=-1) @ v


@held_out("mask off by one")
def sees_next(q, k, v, causal=False):
    bias = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype)
    if causal:
        bias.masked_fill_(torch.ones_like(bias, dtype=torch.bool).triu(2), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@held_out("scale")
def prescaled_twice(q, k, v, mask=None, causal=False):
    q = q / q.shape[-1] ** 0.5
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@held_out("inputs swapped", ENCODER)
def mixed_up(q, k, v):
    return F.scaled_dot_product_attention(q, v, k)


@held_out("softmax replaced", ENCODER)
def linear_attention(q, k, v):
    w = q @ k.mT / math.sqrt(q.shape[-1])
    return (w / w.shape[-1]) @ v


# -- layers ----------------------------------------------------------------------------------------------


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.n_embd = n_embd

    def scale(self, k):
        return k.shape[-1] ** -0.5

    def wei(self, w, T):
        w = w.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(w, dim=-1)

    def forward(self, x):
        k, q = self.key(x), self.query(x)
        w = q @ k.transpose(-2, -1) * self.scale(k)
        return self.wei(w, x.shape[1]) @ self.value(x)


class MultiHead(nn.Module):
    head = Head

    def __init__(self, n_embd, num_heads, block_size):
        super().__init__()
        self.heads = nn.ModuleList([self.head(n_embd, n_embd // num_heads, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class ModelScaleHead(Head):
    def scale(self, k):
        return self.n_embd**-0.5


class NoSoftmaxMaskHead(Head):
    def wei(self, w, T):
        return F.softmax(w, dim=-1) * self.tril[:T, :T]


class ZeroFillHead(Head):
    def wei(self, w, T):
        return F.softmax(w.masked_fill(self.tril[:T, :T] == 0, 0), dim=-1)


class WrongAxisHead(Head):
    def wei(self, w, T):
        return F.softmax(w.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=1)


@held_out("scale")
class HeadsModelScale(MultiHead):
    head = ModelScaleHead


@held_out("mask after softmax")
class HeadsAfter(MultiHead):
    head = NoSoftmaxMaskHead


@held_out("mask not −∞")
class HeadsZeroFill(MultiHead):
    head = ZeroFillHead


@held_out("softmax axis")
class HeadsWrongAxis(MultiHead):
    head = WrongAxisHead


@held_out("heads mixed")
class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd = config.n_head, config.n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (a.reshape(B, self.n_head, T, C // self.n_head) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


@held_out("heads mixed")
class MergeForgotten(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (a.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.contiguous().view(B, T, C))


@held_out("scale")
class ScaleArgument(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


@held_out("low precision")
class HalfSoftmax(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (a.reshape(B, T, self.n_head, -1).permute(0, 2, 1, 3) for a in (q, k, v))
        att = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1))
        att = att.masked_fill(torch.triu(torch.ones(T, T), 1).bool(), float("-inf"))
        att = torch.softmax(att.half(), -1).type_as(v)
        return self.c_proj(torch.matmul(att, v).permute(0, 2, 1, 3).reshape(B, T, C))


@held_out("random in eval")
class AlwaysDropping(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).chunk(3, dim=-1)
        q, k, v = (a.reshape(B, T, self.n_head, -1).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.2)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


# -- rotary, grouped, cached -----------------------------------------------------------------------------


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rope(x, pos, base=10000.0):
    d = x.shape[-1]
    inv = 1.0 / (base ** (torch.arange(0, d, 2).double() / d))
    emb = torch.outer(pos.double(), inv)
    emb = torch.cat((emb, emb), dim=-1)
    return x * emb.cos().to(x) + rotate_half(x) * emb.sin().to(x)


class LlamaStyle(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4, num_kv_heads=2):
        super().__init__()
        self.h, self.g, self.d = num_heads, num_kv_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.d, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.d, bias=False)
        self.o_proj = nn.Linear(num_heads * self.d, hidden_size, bias=False)

    def rq(self, q, pos):
        return rope(q, pos)

    def rk(self, k, pos):
        return rope(k, pos)

    def rep(self, x):
        return x[:, :, None].expand(-1, -1, self.h // self.g, -1, -1).flatten(1, 2)

    def repv(self, x):
        return self.rep(x)

    def start(self, past):
        return 0 if past is None else past[0].shape[2]

    def join(self, old, new):
        return torch.cat([old, new], dim=2)

    def mask(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril(s - t)

    def forward(self, hidden_states, attention_mask=None, past_key_value=None):
        b, t, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, t, self.h, self.d).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, t, self.g, self.d).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, t, self.g, self.d).transpose(1, 2)
        pos = torch.arange(t) + self.start(past_key_value)
        q, k = self.rq(q, pos), self.rk(k, pos)
        if past_key_value is not None:
            k, v = self.join(past_key_value[0], k), self.join(past_key_value[1], v)
        m = self.mask(t, k.shape[2])
        if attention_mask is not None and attention_mask.shape[1] == k.shape[2]:
            m = self.pad(m, attention_mask.bool())
        y = F.scaled_dot_product_attention(q, self.rep(k), self.repv(v), attn_mask=m)
        return self.o_proj(y.nan_to_num(0.0).transpose(1, 2).reshape(b, t, -1)), (k, v)

    def pad(self, m, present):
        return m & present[:, None, None, :]


ROTARY = Contract(kind="causal", scale="head", softmax="keys", position="rotary")
CACHED = Contract(kind="causal", cache=True)


@held_out("rotary", ROTARY)
class RopeQOnly(LlamaStyle):
    def rk(self, k, pos):
        return k


@held_out("rotary", ROTARY)
class RopeBackK(LlamaStyle):
    def rk(self, k, pos):
        return rope(k, -pos)


@held_out("rotary", ROTARY)
class RopeShifted(LlamaStyle):
    def rq(self, q, pos):
        return rope(q, pos + 1)


@held_out("rotary", ROTARY)
class RopePartial(LlamaStyle):
    def rq(self, q, pos):
        return torch.cat((rope(q[..., :4], pos), q[..., 4:]), dim=-1)

    rk = rq


@held_out("rotary", ROTARY)
class RopeInterleavedK(LlamaStyle):
    def rk(self, k, pos):
        even = rope(torch.cat((k[..., ::2], k[..., 1::2]), -1), pos)
        return torch.stack(even.chunk(2, -1), -1).flatten(-2)


@held_out("head layout", Contract(kind="causal", grouped="repeated"))
class RepTiled(LlamaStyle):
    def rep(self, x):
        return x.repeat(1, self.h // self.g, 1, 1)


@held_out("head layout", Contract(kind="causal"))
class RepMixed(LlamaStyle):
    def repv(self, x):
        return x.repeat(1, self.h // self.g, 1, 1)


@held_out("positions with cache", CACHED)
class NoOffsetCache(LlamaStyle):
    def start(self, past):
        return 0


@held_out("positions with cache", CACHED)
class OffsetOneTooMany(LlamaStyle):
    def start(self, past):
        return 0 if past is None else past[0].shape[2] + 1


@held_out("cache order", CACHED)
class Prepending(LlamaStyle):
    def join(self, old, new):
        return torch.cat([new, old], dim=2)


@held_out("cache order", CACHED)
class Forgetting(LlamaStyle):
    def join(self, old, new):
        return torch.cat([old[:, :, 1:], new], dim=2) if old.shape[2] > 4 else torch.cat([old, new], dim=2)


@held_out("mask with cache", CACHED)
class TopLeftCache(LlamaStyle):
    def mask(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril()


@held_out("mask with cache", CACHED)
class UnmaskedCache(LlamaStyle):
    def mask(self, t, s):
        return torch.ones(t, s, dtype=torch.bool).tril() if t == s else torch.ones(t, s, dtype=torch.bool)


@held_out("padding", CACHED)
class PadInverted(LlamaStyle):
    def pad(self, m, present):
        return m & ~present[:, None, None, :]


@held_out("padding", CACHED)
class PadRows(LlamaStyle):
    def pad(self, m, present):
        return m & present[:, None, :, None]


@held_out("padding", CACHED)
class PadForgotten(LlamaStyle):
    def pad(self, m, present):
        return m


# -- blocks and models -----------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, 64), nn.ReLU(), nn.Linear(64, d_model))

    def causal(self, n):
        return torch.triu(torch.ones(n, n, dtype=torch.bool), 1)

    def forward(self, x):
        y = self.ln1(x)
        a, _ = self.attn(y, y, y, attn_mask=self.causal(x.shape[1]), need_weights=False)
        x = x + a
        return x + self.ff(self.ln2(x))


@held_out("mask transposed")
class BlockTransposed(Block):
    def causal(self, n):
        return torch.tril(torch.ones(n, n, dtype=torch.bool), -1)


@held_out("mask off by one")
class BlockWide(Block):
    def causal(self, n):
        return torch.triu(torch.ones(n, n, dtype=torch.bool), 2)


@held_out("no mask")
class BlockNaked(Block):
    def causal(self, n):
        return None


@held_out("leak")
class BlockSequenceNorm(Block):
    def forward(self, x):
        return super().forward(x - x.mean(dim=1, keepdim=True) * 0.3)


@held_out("batch mixed")
class BlockBatchNorm(Block):
    def forward(self, x):
        x = super().forward(x)
        return x / x.std(dim=0, keepdim=True, correction=0).add(1.0)


@held_out("unreached", Contract(kind="causal"))
class BlockUnused(Block):
    def __init__(self, d_model=32, nhead=4):
        super().__init__(d_model, nhead)
        self.gamma = nn.Parameter(torch.ones(d_model))


class TinyGPT(nn.Module):
    def __init__(self, vocab_size=64, d_model=32, n_layers=3):
        super().__init__()
        self.vocab_size = vocab_size
        self.wte, self.wpe = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.blocks = nn.ModuleList([self.block(i)(d_model, 4) for i in range(n_layers)])
        self.lm_head = nn.Linear(d_model, vocab_size)

    def block(self, i):
        return Block

    def forward(self, input_ids, targets=None):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x)
        if targets is None:
            return SimpleNamespace(logits=logits, loss=None)
        return SimpleNamespace(logits=logits, loss=self.objective(logits, targets))

    def objective(self, logits, targets):
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), targets[:, 1:].reshape(-1))


@held_out("mask off by one", Contract(kind="causal"))
class LastBlockWide(TinyGPT):
    def block(self, i):
        return BlockWide if i == 2 else Block


@held_out("no mask", Contract(kind="causal"))
class MiddleBlockNaked(TinyGPT):
    def block(self, i):
        return BlockNaked if i == 1 else Block


@held_out("loss shift", Contract(kind="causal", loss="next"))
class DoubleShift(TinyGPT):
    def objective(self, logits, targets):
        return super().objective(logits[:, :-1], targets[:, 1:])


@held_out("loss mask", Contract(loss="next"))
def lm_loss(logits, input_ids, attention_mask=None):
    shift_logits, shift_labels = logits[..., :-1, :], input_ids[..., 1:]
    losses = -shift_logits.log_softmax(-1).gather(-1, shift_labels.unsqueeze(-1)).squeeze(-1)
    if attention_mask is None:
        return losses.mean()
    m = attention_mask[..., :-1].to(losses)
    return (losses * m).sum() / m.sum()


# correct code in the same styles
SOUND = {
    "MultiHead": (MultiHead, TEXTBOOK),
    "LlamaStyle": (LlamaStyle, Contract(kind="causal", scale="head", softmax="keys", position="rotary", cache=True)),
    "Block": (Block, TEXTBOOK),
    "TinyGPT": (TinyGPT, Contract(kind="causal", loss="next")),
}
