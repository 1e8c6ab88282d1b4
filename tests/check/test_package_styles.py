"""Styles of published packages: layouts, configs, tables and states that code outside of tutorials has."""

import copy
import math
import random
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from qkv.check import Contract, run
from qkv.check.calling import TargetLoader, make_implementation
from qkv.check.calling.building import build
from qkv.check.calling.lengths import candidate_lengths, find_length_rule

CAUSAL = Contract(kind="causal")
FREE = Contract()


def call_words(module, contract=FREE):
    return make_implementation(module, "f", contract).how


def failures(module, contract=FREE):
    return {finding.check: finding.evidence for finding in run(module, contract).failed}


class Layer(nn.Module):
    """Self-attention (b, t, c); subclasses differ in how they are called."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def attend(self, x, added=0.0, turn=lambda x: x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = turn(q) @ turn(k).mT / math.sqrt(q.shape[-1])
        return self.out(((scores + added).softmax(-1) @ v).transpose(1, 2).flatten(2))


# -- layouts and the parameters beside the input -----------------------------------------------------------------------


class SequenceFirstMask(Layer):
    """(t, b, c) with a mask (t, t, b or 1) that must be passed."""

    def forward(self, query, key, value, mask):
        t, b, _ = query.shape
        assert mask.shape[:2] == (t, t) and mask.shape[2] in (1, b)
        return self.attend(query.transpose(0, 1), torch.where(mask, 0.0, -1e30).permute(2, 0, 1)[:, None]).transpose(
            0, 1
        )


class SequenceFirstPositions(Layer):
    """(t, b, c) with the positions of the tokens."""

    batch_first = False

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(512, 32)

    def forward(self, x, positions):
        assert positions.shape == x.shape[:1]
        return self.attend((x + self.table(positions)[:, None]).transpose(0, 1)).transpose(0, 1)


def test_make_implementation_fills_masks_and_positions_of_layers_with_the_sequence_first():
    assert "(t, b, c)" in call_words(SequenceFirstMask())
    impl = make_implementation(SequenceFirstMask(), "f", CAUSAL)
    assert "a causal mask as mask= (t, t, " in impl.how
    assert "(t, b, c)" in call_words(SequenceFirstPositions())
    assert failures(SequenceFirstMask(), CAUSAL) == {}


class MaskWithoutRows(SequenceFirstMask):
    def forward(self, query, key, value, mask):
        assert mask.shape[2] == 1
        return super().forward(query, key, value, mask)


@pytest.mark.parametrize("kind", [SequenceFirstMask, MaskWithoutRows])
def test_run_finds_a_causal_mask_whose_last_axis_is_the_batch(kind):
    assert run(kind(), CAUSAL).kind == "causal"


def test_candidate_lengths_are_no_sizes_of_batches():
    errors = ["shape '[2, 3]' is invalid for input of size 16", "expected 2 rows, got 3"]
    assert all(length > 3 for length in candidate_lengths(nn.Linear(4, 4), errors))
    assert 16 in candidate_lengths(nn.Linear(4, 4), errors)


class ShortPath(Layer):
    """Full attention up to 8 tokens, and in buckets beyond, which need multiples of 16."""

    def forward(self, x):
        assert x.shape[1] <= 8 or x.shape[1] % 16 == 0, "tokens do not fill whole buckets"
        return self.attend(x)


def test_find_length_rule_prefers_steps_beyond_a_limit_to_short_lengths():
    assert find_length_rule(lambda n: n <= 12 or n % 32 == 0, 8).multiple == 32
    assert find_length_rule(lambda n: n <= 12, 8).longest == 12
    assert make_implementation(ShortPath(), "f", FREE).length_multiple == 16


class TwoClasses(Layer):
    """Two numbers for each row of the batch, whatever its length."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.attend(x)[:, 0])


def test_make_implementation_does_not_take_two_classes_for_a_batch_of_two():
    impl = make_implementation(TwoClasses(), "f", FREE)
    assert not impl.aligned
    assert impl.run(torch.randn(5, 7, 32, dtype=impl.dtype)).shape[0] == 5


class Codes(Layer):
    """A causal model of tokens of several codebooks."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.config = SimpleNamespace(num_codebooks=3, vocab_size=20)
        self.tables = nn.ModuleList(nn.Embedding(20, 32) for _ in range(3))
        self.heads_out = nn.Linear(32, 3 * 20)

    def forward(self, input_ids):
        if self.layout == "rows":
            input_ids = input_ids.view(-1, 3, input_ids.shape[1]).transpose(1, 2)
        assert input_ids.shape[2] == 3
        x = sum(table(input_ids[..., i]) for i, table in enumerate(self.tables))
        t = x.shape[1]
        x = self.attend(x, torch.full((t, t), -torch.inf).triu(1).to(x))
        logits = self.heads_out(x).unflatten(-1, (3, 20))
        return logits.transpose(1, 2).flatten(0, 1) if self.layout == "rows" else logits


@pytest.mark.parametrize(("layout", "words"), [("rows", "(b·3, t)"), ("last", "(b, t, 3)")])
def test_run_gives_one_token_to_each_codebook(layout, words):
    report = run(Codes(layout), CAUSAL)
    assert f"tokens {words}, the same in each codebook" in report.how
    assert report.kind == "causal"
    assert not report.failed


class Turned(Layer):
    """RoPE over some dims of each head, from tables that are passed in."""

    def __init__(self, dims):
        super().__init__()
        self.config = SimpleNamespace(rotary_dim=dims)
        self.dims = dims

    def turned(self, x, cos, sin):
        y, rest = x[..., : self.dims], x[..., self.dims :]
        first, second = y.chunk(2, -1)
        return torch.cat((y * cos + torch.cat((-second, first), -1) * sin, rest), -1)


class ThreeAxes(Turned):
    def forward(self, x, cos, sin):
        assert cos.ndim == 3 and cos.shape == sin.shape and cos.shape[-1] == self.dims
        return self.attend(x, turn=lambda y: self.turned(y, cos[:, None], sin[:, None]))


class Optional(Turned):
    def forward(self, x, position_embeddings=None):
        cos, sin = position_embeddings
        assert cos.ndim == 3
        return self.attend(x, turn=lambda y: self.turned(y, cos[:, None], sin[:, None]))


@pytest.mark.parametrize("kind", [ThreeAxes, Optional])
def test_make_implementation_passes_rotary_tables_of_the_rotated_dims(kind):
    module = kind(4 if kind is ThreeAxes else 8)
    assert "(1, t, d)" in call_words(module)
    assert failures(module, Contract(position="relative")) == {}


class PositionScores(Layer):
    """Scores with learned positions that the caller makes (in the style of ESPnet and conformers)."""

    def __init__(self):
        super().__init__()
        self.to_pos = nn.Linear(32, 32)

    def forward(self, x, pos_emb):
        return self.attend(x + self.to_pos(pos_emb))


def test_run_passes_positions_that_do_not_change_with_the_input():
    impl = make_implementation(PositionScores(), "f", FREE)
    assert "pos_emb=a fixed table" in impl.how
    assert run(PositionScores(), Contract(kind="bidirectional")).ok


class Pooled(nn.Module):
    """Keys from a map of half the size, after a class token or without one."""

    def __init__(self, *, class_token):
        super().__init__()
        self.first = int(class_token)
        self.to_q, self.to_kv, self.norm = nn.Linear(32, 32), nn.Linear(32, 64), nn.LayerNorm(32)

    def forward(self, x, feat_size: list[int]):
        height, width = feat_size
        assert height * width + self.first == x.shape[1]
        k, v = self.to_kv(self.norm(x)).chunk(2, -1)
        return (self.to_q(x) @ k.mT / 32**0.5).softmax(-1) @ v


@pytest.mark.parametrize("class_token", [True, False])
def test_make_implementation_passes_the_sides_of_a_map(class_token):
    words = call_words(Pooled(class_token=class_token))
    assert ("after a class token" in words) == class_token
    assert "feat_size=the sides of the map" in words


class TiedRows(nn.Module):
    """Attention along the columns of alignments (rows, columns, batch, features), with the same weights in each row."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        assert x.ndim == 4
        scores = torch.einsum("rinc,rjnc->nij", self.to_q(x), self.to_k(x)) / (32 * x.shape[0]) ** 0.5
        return torch.einsum("nij,rjnc->rinc", scores.softmax(-1), self.to_v(x))


def test_make_implementation_finds_maps_with_the_batch_as_their_third_axis():
    assert "maps (y, x, b, c)" in call_words(TiedRows())
    assert failures(TiedRows()) == {}


class Signal(nn.Module):
    """A classifier of signals (b, 3, samples), in patches of 8."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer, self.head = nn.Linear(24, 32), Layer(), nn.Linear(32, 5)

    def forward(self, series):
        assert series.shape[1] == 3
        x = series.unflatten(-1, (-1, 8)).permute(0, 2, 3, 1).flatten(2)
        return self.head(self.layer.attend(self.embed(x)).mean(1))


def test_make_implementation_reads_signals_of_a_few_channels():
    assert "signals (b, 3, 64)" in call_words(Signal())


class QueryAndContext(nn.Module):
    """Two required inputs under names that do not say which is the context."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, y):
        return (self.to_q(x) @ self.to_k(y).mT / 32**0.5).softmax(-1) @ self.to_v(y)


class ByPosition(QueryAndContext):
    def forward(self, *args, context=None):
        assert context is not None, "cross-attention needs a context"
        return super().forward(*args, context)


@pytest.mark.parametrize("kind", [QueryAndContext, ByPosition])
def test_run_checks_cross_attention_whose_inputs_could_be_either(kind):
    report = run(kind())
    assert report.ok, report.failed
    assert "cross attention" in {finding.check for finding in report.findings}


# -- building ----------------------------------------------------------------------------------------------------------


@dataclass
class StyleConfig:
    hidden_size: int = 32
    num_attention_heads: int = 4
    act: str = "gelu"


class StyleSelfAttention(Layer):
    """Its config has no annotation; the class beside it has the same stem."""

    def __init__(self, config):
        super().__init__(config.hidden_size, config.num_attention_heads)
        self.act = {"gelu": nn.GELU(), "relu": nn.ReLU()}[config.act]

    def forward(self, x):
        return self.attend(self.act(x))


class OtherAttention(StyleSelfAttention):
    """No config has its stem."""


def test_build_takes_the_config_class_beside_a_target():
    for kind in (StyleSelfAttention, OtherAttention):
        module, words = build(kind)
        assert isinstance(module, kind)
        assert "StyleConfig" in words


class Grid(nn.Module):
    def __init__(self, fmap_size, dim=32):
        super().__init__()
        height, width = fmap_size
        self.tables = {fmap_size: torch.randn(height, width, dim)}


class Depths(nn.Module):
    def __init__(self, depth):
        super().__init__()
        assert isinstance(depth, tuple), "depth must be a tuple"


def test_build_tries_tuples_for_the_lists_of_json():
    assert build(Grid, {"fmap_size": [4, 4]})[1] == "Grid(fmap_size=(4, 4))"
    assert build(Depths, {"depth": [1, 1]})[1] == "Depths(depth=(1, 1))"
    with pytest.raises(ValueError, match=r"Grid\(fmap_size=4\) failed: TypeError"):
        build(Grid, {"fmap_size": 4})


def test_target_loader_says_that_an_installed_package_lacks_a_module(tmp_path, monkeypatch):
    package = tmp_path / "style_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "style_user.py").write_text("from style_package.gone import f")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="which the installed style_package does not have: it needs another version"):
        TargetLoader().find("style_user:f")
    sys.modules.pop("style_package", None)


class OnlyPairs(Layer):
    def forward(self, x):
        assert x.shape[0] > 1, "a batch of one has no pairs"
        return self.attend(x)


class OnlyPairsOfTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.table = OnlyPairs(), nn.Embedding(16, 32)

    def forward(self, tokens):
        return self.layer(self.table(tokens))


@pytest.mark.parametrize("kind", [OnlyPairs, OnlyPairsOfTokens])
def test_run_reports_an_error_of_some_calls_as_the_targets(kind):
    with pytest.raises(ValueError, match="works for some inputs, and raises AssertionError: a batch of one"):
        run(kind())


# -- randomness and copies ---------------------------------------------------------------------------------------------


class Plain(Layer):
    def forward(self, x):
        return self.attend(x)


class LayerDrop(nn.Module):
    """Leaves out layers in training by random numbers that are not PyTorch's."""

    def __init__(self, draw):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.layerdrop, self.draw = 0.1, draw

    def forward(self, x):
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1).to(x)
        for layer in self.layers:
            if not (self.training and self.draw() < self.layerdrop):
                x = x + layer.attend(x, mask)
        return x


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_run_drops_the_same_layers_in_calls_that_it_compares(draw):
    assert "causal (training)" not in failures(LayerDrop(draw), CAUSAL)


def test_run_leaves_the_random_numbers_of_the_caller_alone():
    module = LayerDrop(random.random)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    run(module)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


class RoundedCopies(Plain):
    """Copies are made in float32, as those of Keras are."""

    def __deepcopy__(self, memo):
        other = type(self)()
        other.load_state_dict({name: value.float() for name, value in self.state_dict().items()})
        return other


class HalfCopies(Plain):
    def __deepcopy__(self, memo):
        other = type(self)()
        for ours, theirs in zip(self.parameters(), other.parameters(), strict=True):
            theirs.data = ours.data.bfloat16().to(ours.dtype)
        return other


@pytest.mark.parametrize("kind", [RoundedCopies, HalfCopies])
def test_run_compares_a_second_instance_with_the_same_weights(kind):
    assert not torch.equal(copy.deepcopy(kind().double()).qkv.weight.double(), kind().double().qkv.weight)
    report = run(kind())
    assert report.ok, report.failed


# -- what short sequences or one head do not show ----------------------------------------------------------------------


class NormOverHeads(nn.Module):
    """Weights mixed and normalized over the heads, which leaves nothing of a single one."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mix, self.norm = nn.Parameter(torch.randn(heads, heads)), nn.LayerNorm(heads)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        weights = self.norm(torch.einsum("bhij,hg->bijg", weights, self.mix)).permute(0, 3, 1, 2)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class SoftmaxOverHeads(NormOverHeads):
    """Which head matters is chosen by a softmax over them."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.mix, self.norm = nn.Parameter(torch.randn(heads)), None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out((out * self.mix.softmax(0)[:, None, None]).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kind", [NormOverHeads, SoftmaxOverHeads])
def test_run_accepts_that_one_head_has_nothing_to_mix(kind):
    assert run(kind).ok


class Extra(Layer):
    """A head whose output is returned on request."""

    def __init__(self):
        super().__init__()
        self.contacts = nn.Linear(32, 1)

    def forward(self, x, return_contacts=False):
        out = self.attend(x)
        return (out, self.contacts(out)) if return_contacts else out


class Forgotten(Extra):
    def forward(self, x, return_contacts=False):
        out = self.attend(x)
        return (out, out) if return_contacts else out


class Recurrent(nn.Module):
    """A state that is read by every block of 16 tokens, and written after it; state: whether it is learned."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(4, 32))
        self.read, self.write, self.out = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(32, 32)

    def forward(self, x):
        state, outs = self.start.expand(len(x), -1, -1), []
        for block in x.split(16, 1):
            k, v = self.read(state).chunk(2, -1)
            outs.append(self.out((block @ k.mT / 32**0.5).softmax(-1) @ v + block))
            k, v = self.write(block).chunk(2, -1)
            state = state + (state @ k.mT / 32**0.5).softmax(-1) @ v
        return torch.cat(outs, 1)


def test_run_reaches_parameters_with_a_flag_or_in_a_second_block():
    assert run(Extra()).ok
    assert "parameters reached" in failures(Forgotten())
    assert "parameters reached" not in failures(Recurrent())


class Capacity(Layer):
    """Only the 20 tokens with the largest outputs are kept; equal tokens tie."""

    def forward(self, x):
        out = self.attend(x)
        chosen = out.norm(dim=-1).topk(min(20, x.shape[1]), -1).indices
        return out * torch.zeros_like(out[..., 0]).scatter(-1, chosen, 1.0)[..., None]


def test_run_does_not_judge_repeated_tokens_of_code_that_chooses_or_keeps_a_state():
    for kind in (Capacity, Recurrent):
        assert "lengths agree" not in failures(kind())


class LostNormalizer(nn.Module):
    """Blocks of 16 keys, added up; the normalizer is that of the last one. No state, no choice: this is a bug."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        total, norm = 0.0, 0.0
        for keys, values in zip(k.split(16, 1), v.split(16, 1), strict=True):
            weights = (q @ keys.mT / 32**0.5).exp()
            total, norm = total + weights @ values, weights.sum(-1, keepdim=True)
        return total / norm


def test_run_still_finds_a_normalizer_that_is_lost_from_the_second_block_on():
    assert "lengths agree" in failures(LostNormalizer())
