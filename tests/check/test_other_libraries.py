"""Correct attention of other libraries, and our own models, raise no alarm under their contracts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv
from qkv import models
from qkv.check import TEXTBOOK, Contract, run

pytestmark = pytest.mark.long  # minutes in all

CAUSAL = Contract(kind="causal")
# true findings about PyTorch: a fully padded row is NaN, and so is a causal layer's left padding, which reaches other
# tokens in the next layer on one of its two paths
TORCH = {"fully padded row", "padding content (left)", "source: fully padded row", "paths agree"}


def alarms(target, contract=None):
    report = run(target, contract)
    return {finding.check: finding.evidence for finding in report.failed}, report


def lower_right(q, k, v):
    from torch.nn.attention.bias import causal_lower_right

    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(q.shape[-2], k.shape[-2]))


def flex(q, k, v, causal=False):
    from torch.nn.attention.flex_attention import flex_attention

    rule = (lambda score, b, h, i, j: torch.where(i >= j, score, -torch.inf)) if causal else None
    return flex_attention(q, k, v, score_mod=rule)


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, lower_right, qkv.attention])
def test_run_passes_attention_kernels(function):
    found, report = alarms(function, TEXTBOOK if function is not lower_right else CAUSAL)
    assert found == {}
    assert report.kind == "causal"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_run_passes_flex_attention():
    found, report = alarms(flex, CAUSAL)
    assert found == {}
    assert report.kind == "causal"


TORCH_MODULES = {
    "attention": lambda: nn.MultiheadAttention(32, 4, batch_first=True),
    "attention, sequence first": lambda: nn.MultiheadAttention(32, 4),
    "encoder layer": lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
    "decoder layer": lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
    "decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2),
    "whole": lambda: nn.Transformer(32, 4, 2, 2, 64, batch_first=True),
    "whole, sequence first": lambda: nn.Transformer(32, 4, 2, 2, 64),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", TORCH_MODULES)
@pytest.mark.filterwarnings("ignore:.*nested.*")
def test_run_fails_modules_of_torch_only_for_their_nan(name, causal):
    found, report = alarms(TORCH_MODULES[name](), CAUSAL if causal else None)
    assert set(found) <= TORCH, found
    if not causal:
        assert "paths agree" not in found
    assert report.kind == ("causal" if causal else "bidirectional")


OURS = {
    "layer": (lambda: qkv.MultiHeadAttention(32, 4), CAUSAL),
    "GPT": (lambda: models.GPT(models.GPTConfig(vocab_size=64, dim=32, heads=4, layers=2)), CAUSAL),
    "encoder": (lambda: models.Encoder(models.EncoderConfig(vocab_size=64, dim=32, heads=4, layers=2)), None),
    "ViT": (
        lambda: models.ViT(models.ViTConfig(image_size=32, patch_size=8, dim=32, heads=4, layers=2, num_classes=10)),
        None,
    ),
    "RNN": (lambda: models.RNN(models.RNNConfig(vocab_size=64, dim=32)), CAUSAL),
    "CNN": (lambda: models.CNN(models.CNNConfig(image_size=32, num_classes=10)), None),
    "MLP": (lambda: models.MLP(models.MLPConfig(image_size=32, num_classes=10)), None),
}


@pytest.mark.parametrize("name", OURS)
def test_run_passes_our_models(name):
    make, contract = OURS[name]
    assert alarms(make(), contract)[0] == {}


@pytest.mark.parametrize("kind", [models.Seq2Seq, models.RNNSeq2Seq])
def test_run_passes_our_encoder_decoders_on_both_sides(kind):
    config = {"Seq2Seq": models.Seq2SeqConfig, "RNNSeq2Seq": models.RNNSeq2SeqConfig}[kind.__name__]
    small = {"dim": 32} | ({"heads": 4, "encoder_layers": 2, "decoder_layers": 2} if kind is models.Seq2Seq else {})
    found, report = alarms(kind(config(vocab_size=64, **small)), CAUSAL)
    assert found == {}
    assert {"cross attention", "source: padding content (left)"} <= {finding.check for finding in report.findings}


X_TRANSFORMERS = {
    "plain": {}, "rotary": {"rotary_pos_emb": True}, "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True}, "flash": {"attn_flash": True},
}  # fmt: skip


@pytest.mark.parametrize("name", X_TRANSFORMERS)
@pytest.mark.filterwarnings("ignore")
def test_run_passes_x_transformers(name):
    library = pytest.importorskip("x_transformers")
    layers = library.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **X_TRANSFORMERS[name])
    model = library.TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers)
    found, report = alarms(model, CAUSAL)
    assert found == {}
    assert report.kind == "causal"


HUGGING_FACE = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration",
    "BartForConditionalGeneration", "ViTForImageClassification", "BigBirdForCausalLM",
)  # fmt: skip


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.filterwarnings("ignore")
def test_run_passes_a_sample_of_transformers(name):
    pytest.importorskip("transformers")
    found, report = alarms(f"hf:{name}")
    assert found == {}
    if name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        assert report.kind == "causal"
