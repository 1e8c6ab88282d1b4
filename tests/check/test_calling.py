"""Code in many styles is called correctly without being told how."""

import math

import pytest
import torch
from torch import nn

from qkv.check import Contract, run
from qkv.check.calling import make_implementation

CAUSAL = Contract(kind="causal")


class Base(nn.Module):
    """Causal self-attention; the subclasses differ in how they are called."""

    def __init__(self, d_model: int = 32, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def attend(self, x, allowed=None, added=None, before=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if before is not None:
            k, v = torch.cat((before[0], k), 2), torch.cat((before[1], v), 2)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if added is not None:
            scores = scores + added
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -1e30)
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        return self.out(out), (k, v)


class TrueAttends(Base):
    def forward(self, x, mask=None):
        return self.attend(x, mask)[0]


class TrueBlocks(Base):
    def forward(self, x, mask=None):
        return self.attend(x, None if mask is None else ~mask)[0]


class Added(Base):
    def forward(self, x, attn_mask=None):
        return self.attend(x, added=attn_mask)[0]


class ZeroOne(Base):
    def forward(self, x, mask=None):
        return self.attend(x, added=None if mask is None else (1 - mask) * -1e30)[0]


class Required(Base):
    """The mask is required and has four axes."""

    def forward(self, x, mask):
        if mask.ndim != 4:
            raise ValueError("a mask has four axes")
        return self.attend(x, mask.bool())


class Always(Base):
    """Always causal; (b, t) padding, 1 for real tokens; a cache is passed in and returned."""

    def forward(self, x, mask=None, kv_cache=None):
        t = x.shape[1]
        s = t + (0 if kv_cache is None else kv_cache[0].shape[2])
        allowed = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        if mask is not None:
            allowed = allowed & mask.bool()[:, None, None, :]
        return self.attend(x, allowed, before=kv_cache)


class Einsum(nn.Module):
    """Weights as bare parameters, heads by einsum."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        d = d_model // n_heads
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(n_heads, d_model, d)) for _ in range(3))
        self.W_O = nn.Parameter(torch.zeros(n_heads, d, d_model))

    def forward(self, x):
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~past, -torch.inf).softmax(-1)
        return torch.einsum("bhts,bhsd,hdc->btc", weights, v, self.W_O)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TrueAttends, "a causal mask as mask= (t, t), True = may attend"),
        (TrueBlocks, "a causal mask as mask= (t, t), True = may not attend"),
        (Added, "a causal mask as attn_mask= (t, t), added: 0 and −∞"),
        (ZeroOne, "a causal mask as mask= (t, t), 1 = may attend, integers"),
        (Required, "a causal mask as mask= (b, 1, t, t), True = may attend"),
        (Always, "padding as mask= (b, t), True = may attend, cache as kv_cache"),
        (Einsum, "vectors (b, t, c)"),
    ],
)
def test_run_finds_the_call_of_a_layer(kind, said):
    check_call(kind, said)


def check_call(kind, said):
    """The report of code that is sound, causal and called as expected."""
    report = run(kind, CAUSAL)
    assert {finding.check for finding in report.failed} == set(), report.failed
    assert report.kind == "causal"
    assert said in report.how
    return report


class TinyGPT(nn.Module):
    """In the style of nanoGPT: a config object, idx, and logits for every position only with targets."""

    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
            }
        )
        self.layer = Base(config.n_embd, config.n_head)
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx, targets=None):
        t = idx.shape[1]
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(t))
        x = x + self.layer.attend(x, torch.ones(t, t, dtype=torch.bool).tril())[0]
        return (self.head(x[:, [-1]]), None) if targets is None else (self.head(x), 0.0)


class FromDictionary(TinyGPT):
    """A dictionary of sizes, and one call that returns all logits."""

    def __init__(self, cfg):
        sizes = {"n_embd": cfg["emb_dim"], "n_head": cfg["n_heads"], "block_size": cfg["context_length"]}
        super().__init__(type("", (), {"vocab_size": cfg["vocab_size"], **sizes}))

    def forward(self, in_idx):
        return super().forward(in_idx, in_idx)[0]


class StartPosition(nn.Module):
    """Keeps its KV cache itself, and is told where a piece begins."""

    def __init__(self, vocab_size: int, dim: int, n_heads: int):
        super().__init__()
        self.table, self.layer, self.head = (
            nn.Embedding(vocab_size, dim),
            Base(dim, n_heads),
            nn.Linear(dim, vocab_size),
        )
        self.held = None

    def forward(self, tokens, start_pos: int):
        t, s = tokens.shape[1], tokens.shape[1] + start_pos
        before = None if start_pos == 0 else self.held
        past = torch.ones(t, s, dtype=torch.bool).tril(start_pos)
        x, self.held = self.layer.attend(self.table(tokens), past, before=before)
        return self.head(x)


class InPlace(nn.Module):
    """Fills a dictionary that is passed in."""

    def __init__(self, vocab_size: int, dim: int, n_heads: int):
        super().__init__()
        self.table, self.layer, self.head = (
            nn.Embedding(vocab_size, dim),
            Base(dim, n_heads),
            nn.Linear(dim, vocab_size),
        )

    def forward(self, tokens, cache=None):
        t = tokens.shape[1]
        before = None if not cache else cache["kv"]
        s = t + (0 if before is None else before[0].shape[2])
        x, kept = self.layer.attend(self.table(tokens), torch.ones(t, s, dtype=torch.bool).tril(s - t), before=before)
        if cache is not None:
            cache["kv"] = kept
        return self.head(x)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TinyGPT, "tokens (b, t), targets= the same"),
        (FromDictionary, "tokens (b, t)"),
        (StartPosition, "cache as start_pos, a number; the module keeps its cache"),
        (InPlace, "cache as cache= {}, filled in place"),
    ],
)
def test_run_finds_the_call_of_a_model(kind, said):
    report = check_call(kind, said)
    if "cache" in said:
        cached = [finding for finding in report.findings if finding.check.startswith("cache (")]
        assert [finding.verdict for finding in cached] == ["pass"] * 3


def test_run_catches_a_cache_that_forgets():
    class Forgets(StartPosition):
        def forward(self, tokens, start_pos: int):
            if start_pos and self.held is not None:
                self.held = tuple(part.roll(1, 2) * 1.1 for part in self.held)
            return super().forward(tokens, start_pos)

    assert "cache (steps)" in {finding.check for finding in run(Forgets, CAUSAL).failed}


class Patches(nn.Module):
    """A vision transformer without positions or a class token, with an unusual parameter name."""

    def __init__(self, mixed: bool = False):
        super().__init__()
        self.patches, self.layer, self.head = nn.Conv2d(3, 32, 8, 8), Base(32, 4), nn.Linear(32, 5)
        self.mixed = mixed

    def forward(self, batch):
        x = self.patches(batch).flatten(2).transpose(1, 2)
        x = x + self.layer.attend(x)[0]
        return self.head(x.mean((0, 1), keepdim=True).expand(len(x), 1, -1)[:, 0] if self.mixed else x.mean(1))


def test_run_checks_an_image_model_tile_by_tile():
    report = run(Patches())
    assert report.ok
    assert report.kind == "every input seen: the output changes for each of 16 inputs"
    assert "images (b, 3, 32, 32)" in report.how
    assert {finding.check for finding in run(Patches(mixed=True)).failed} >= {"batch (alone)"}


class Translator(nn.Module):
    """An encoder–decoder in the style of the annotated transformer: both masks are required."""

    def __init__(self, src_vocab: int = 64, tgt_vocab: int = 64):
        super().__init__()
        self.source, self.target = nn.Embedding(src_vocab, 32), nn.Embedding(tgt_vocab, 32)
        self.encoder, self.decoder, self.q, self.kv = Base(), Base(), nn.Linear(32, 32), nn.Linear(32, 64)
        self.head = nn.Linear(32, tgt_vocab)

    def forward(self, src, tgt, src_mask, tgt_mask):
        keys = None if src_mask is None else src_mask[:, None, None, :]
        memory = self.encoder.attend(self.source(src), keys)[0]
        x = self.target(tgt)
        x = x + self.decoder.attend(x, tgt_mask)[0]
        k, v = self.kv(memory).chunk(2, -1)
        scores = self.q(x) @ k.mT / 32**0.5
        if src_mask is not None:
            scores = scores.masked_fill(~src_mask[:, None], -1e30)
        return self.head(x + scores.softmax(-1) @ v)


def test_run_checks_both_sides_of_an_encoder_decoder():
    report = run(Translator(), CAUSAL)
    assert report.ok, report.failed
    assert "source padding as src_mask= (b, t), True = may attend" in report.how
    passed = {finding.check for finding in report.findings if finding.verdict == "pass"}
    assert {"causal", "cross attention", "source: padding content (right)", "source: batch (alone)"} <= passed


def test_run_catches_a_causal_mask_on_cross_attention():
    class Decoder(nn.Module):
        def __init__(self, masked: bool):
            super().__init__()
            self.attention, self.masked = nn.MultiheadAttention(32, 4, batch_first=True), masked

        def forward(self, x, memory):
            hidden = ~torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool).tril() if self.masked else None
            return self.attention(x, memory, memory, attn_mask=hidden)

    assert run(Decoder(False), CAUSAL).ok is False  # each output sees its own token only, not the past
    findings = {masked: {f.check: f.verdict for f in run(Decoder(masked)).findings} for masked in (False, True)}
    assert findings[False]["cross attention"] == "pass"
    assert findings[True]["cross attention"] == "described"
    assert "cross attention" in {finding.check for finding in run(Decoder(True), CAUSAL).failed}


def heads_second(q, k, v, causal=False):
    """(b, t, h, d), as in flash-attention."""
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal
    ).transpose(1, 2)


def with_integers(query, key, value, mask, d_k):
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)
    if mask is not None:
        scores = scores + (1 - mask) * -1e30
    return scores.softmax(-1) @ value, scores


@pytest.mark.parametrize(("function", "said"), [(heads_second, "(b, t, h, d)"), (with_integers, "mask= a causal mask")])
def test_run_finds_the_call_of_a_function(function, said):
    report = run(function, Contract(kind="causal", scale="head", softmax="keys"))
    assert report.kind == "causal"
    assert {finding.check for finding in report.failed} == set(), report.failed
    assert said in report.how


def test_make_implementation_passes_the_mask_that_is_promised():
    impl = make_implementation(TrueBlocks(), "TrueBlocks", Contract(kind="causal", mask="true-attends"))
    assert "may not attend" not in impl.how
    assert not run(TrueBlocks(), Contract(kind="causal", mask="true-attends")).ok
    assert impl.dim == 32


class Strange(Base):
    """Names that cannot be guessed."""

    def forward(self, stuff, *, hide, twice: int):
        return {"first": stuff, "second": (self.attend(stuff, ~hide)[0] * twice,)}


def test_run_follows_a_declared_call():
    text = 'f(x, hide=blocked, twice=2)["second"][0]'
    report = run(Strange, CAUSAL, call=text)
    assert report.ok, report.failed
    assert report.kind == "causal"
    assert text in report.how

    def strange(nothing, keys, values, queries, forbidden):
        return None, with_integers(
            queries, keys, values, None if forbidden is None else 1 - forbidden.long(), queries.shape[-1]
        )[0]

    report = run(strange, Contract(kind="causal", scale="head"), call="f(None, k, v, q, blocked)[1]")
    assert report.kind == "causal"
    assert report.ok, report.failed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f(x", "must be one call"),
        ("f(__import__('os'))", "not a known word|is not known"),
        ("f(*x)", "neither a known word"),
        ("f(y)", "'y' is not known"),
        ("f(x, hide=None, twice=1)", "could not be called as"),
        ("f(1)", "uses neither"),
    ],
)
def test_run_refuses_a_wrong_declared_call_with_one_sentence(text, said):
    with pytest.raises(ValueError, match=said) as refused:
        run(Strange, CAUSAL, call=text)
    assert "\n" not in str(refused.value)


def test_run_checks_a_checkpoint_folder_with_its_own_weights(tmp_path):
    from qkv.models import GPT, GPTConfig

    GPT(GPTConfig(vocab_size=64, dim=32, heads=4, layers=2)).save(tmp_path / "model")
    report = run(str(tmp_path / "model"), CAUSAL)
    assert report.ok, report.failed
    assert report.kind == "causal"
    assert "with the weights of" in report.how
