"""The reference is what the source says."""

import importlib
from pathlib import Path

import make_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
PINNED = {
    "qkv": "attention MultiHeadAttention load",
    "qkv.masks": "causal window chunks prefix present",
    "qkv.positions": "sinusoidal Rope Alibi T5Bias Shaw",
    "qkv.nn": "Dot Additive LocationAware DenseSynthesizer RandomSynthesizer",
    "qkv.models": "GPT GPTConfig ViT ViTConfig Encoder Seq2Seq Perceiver RNN RNNSeq2Seq CNN MLP",
    "qkv.interp": "record change at",
    "qkv.check": "run assert_sound",
    "qkv.claims": "run",
    "qkv.byhand": "work",
    "qkv.training.recipes": "train",
}


def test_the_page_is_what_the_script_writes():
    assert PAGE.read_text(encoding="utf-8") == make_reference.reference(), "python docs/make_reference.py writes it"


def test_every_pinned_name_is_there_in_the_page_and_in_the_package():
    headings = set(PAGE.read_text(encoding="utf-8").split("\n"))
    for door, names in PINNED.items():
        for name in names.split():
            assert f"### {door}.{name}" in headings
            assert callable(getattr(importlib.import_module(door), name)), name
