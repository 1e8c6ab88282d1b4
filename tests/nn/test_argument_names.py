"""Names and calls from PyTorch and nanoGPT raise errors that give qkv's own."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import qkv

X = torch.randn(2, 5, 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: qkv.attention(X, X, X, attn_mask=None),
            "no argument attn_mask; write mask= for a boolean",
        ),
        (lambda: qkv.attention(X, X, X, is_causal=True), "attention has no argument is_causal; write causal="),
        (
            lambda: qkv.MultiHeadAttention(32, 4)(X, need_weights=True),
            "need_weights; write return_weights=",
        ),
        (lambda: qkv.MultiHeadAttention(32, 4, batch_first=True), "always \\(batch, tokens, dim\\)"),
        (lambda: qkv.MultiHeadAttention(32, 4, causal=True), "layer\\(x, causal=True\\)"),
        (lambda: qkv.MultiHeadAttention(32, 4)(X, X, X), "layer\\(x, memory\\) for cross-attention"),
        (lambda: qkv.models.GPTConfig(vocab_size=9, n_layer=2), "GPTConfig has no argument n_layer; write layers="),
        (lambda: qkv.models.GPTConfig(vocab_size=9, block_size=2), "write max_length="),
    ],
)
def test_explain_names_gives_the_right_name(call, message, unchecked):
    with pytest.raises(TypeError, match=message):
        call()


def test_attention_and_generate_refuse_what_is_no_tensor(unchecked):
    x = np.zeros((1, 2, 4), dtype=np.float32)
    with pytest.raises(ValueError, match=r"query must be a torch tensor, got a ndarray; convert it: torch.as_tensor"):
        qkv.attention(x, x, x)
    model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=9, dim=16, layers=1, heads=2))
    with pytest.raises(ValueError, match=r"got a list; for one text: torch.tensor\(\[ids\]\)"):
        model.generate([1, 2], 3)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        model.generate(torch.tensor([[1, 2]]), 3, top_k=0)
    with pytest.raises(ValueError, match=r"for a loss: F\.cross_entropy"):
        model(torch.tensor([[1, 2]]), torch.tensor([[1, 2]]))


@pytest.mark.parametrize("package", ["qkv", "qkv.training", "qkv.interp", "qkv.byhand", "qkv.claims"])
def test_dir_of_a_package_lists_its_public_names_before_they_are_used(package):
    code = f"import {package} as p; print(set(p.__all__) - set(dir(p)), {{'importlib', 'TYPE_CHECKING'}} & set(dir(p)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set() set()\n"
