"""Preset model configs: the models of NYU DL HW4 (ViT), CS224N A5 (GPT, synthesizer, Perceiver) and the 2017 paper."""

from dataclasses import replace

from qkv.models.gpt import GPTConfig
from qkv.models.perceiver import PerceiverConfig
from qkv.models.seq2seq import Seq2SeqConfig
from qkv.models.vit import ViTConfig
from qkv.nn import DenseSynthesizer

_GPT = GPTConfig(vocab_size=256, max_length=128, dim=256, layers=4, heads=8, dropout=0.1)

PRESETS = {
    # Vaswani et al. (2017), base model: post-norm, sinusoids, one embedding for source, target and output; 63,082,496
    # parameters with the 37,000 shared tokens of English-German (the paper's table rounds to 65 million)
    "transformer-base": Seq2SeqConfig(
        vocab_size=37_000,
        dim=512,
        encoder_layers=6,
        decoder_layers=6,
        heads=8,
        mlp_dim=2048,
        dropout=0.1,
        attention_dropout=0.0,
        mlp_dropout=0.0,
    ),
    # CIFAR-100: 65 tokens, no final norm; 3,217,764 parameters
    "nyu-hw4-vit": ViTConfig(
        image_size=32,
        patch_size=4,
        num_classes=100,
        dim=256,
        layers=6,
        heads=8,
        mlp_dim=512,
        dropout=0.01,
        final_norm=False,
        init="pytorch",
    ),
    # characters, learned positions; 3,323,392 parameters
    "cs224n-a5-gpt": _GPT,
    # scores for 127 positions, the longest input of a text of 128; 3,076,988 parameters
    "cs224n-a5-gpt-synthesizer": replace(_GPT, score=DenseSynthesizer(127)),
    # RoPE instead of a position table; 3,290,624 parameters
    "cs224n-a5-gpt-rope": replace(_GPT, position="rope"),
    "cs224n-a5-perceiver": PerceiverConfig(
        vocab_size=256, max_length=128, dim=256, layers=4, heads=8, num_latents=32, coverage="prefix", dropout=0.1
    ),
}
