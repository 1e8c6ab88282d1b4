"""Every public name of the design exists with its parameters and is in the reference."""

import importlib
import inspect

import make_reference
import pytest

PAGES = make_reference.pages()
# public name: its parameters, as inspect shows them without types and defaults; None where they are not fixed
PUBLIC = {
    "qkv.attention": "query, key, value, mask, *, bias, scale, causal, dropout_p, hard, return_weights",
    "qkv.MultiHeadAttention": "dim, heads, *, kv_heads, head_dim, score, position, dropout, bias",
    "qkv.load": None,
    **{f"qkv.masks.{name}": None for name in ("causal", "sliding_window", "chunked", "prefix", "padding")},
    **{f"qkv.positions.{name}": None for name in ("sinusoidal", "Rope", "Alibi", "T5Bias", "Shaw")},
    **{
        f"qkv.nn.{name}": None for name in ("Dot", "Additive", "LocationAware", "DenseSynthesizer", "RandomSynthesizer")
    },
    **{
        f"qkv.models.{name}{suffix}": None
        for name in (
            *("GPT", "ViT", "Encoder", "Seq2Seq", "Perceiver", "Transcriber"),
            *("RNN", "RNNSeq2Seq", "CNN", "MLP"),
        )
        for suffix in ("", "Config")
    },
    "qkv.interp.record": None,
    "qkv.interp.trace": "model, inputs",
    "qkv.interp.intervene": "model, *, ablate_heads, mask_edges, scale, pattern, patch",
    "qkv.check.run": "target, contract, *, arguments, call, adapter, like, seed, thorough, dtype, device, **promises",
    "qkv.check.assert_sound": None,
    "qkv.claims.run": None,
    "qkv.byhand.solve": "x, wq, wk, wv, *, q, k, v, wo, heads, scale, causal, mask, positions, convention",
    "qkv.byhand.verify": "problem, answer, tolerance",
    "qkv.training.train": None,
    "qkv.training.run_recipe": None,
    "qkv.training.Run": None,
    **{f"qkv.training.{name}Config": None for name in ("Train", "Optimizer", "Schedule", "Checkpoint")},
}


def parameters(function: object) -> str:
    """The parameters of a function or class, with * where keywords begin."""
    words, starred = [], False
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name)
    return ", ".join(words)


def test_reference_has_descriptions_with_arguments_and_examples():
    page = PAGES["qkv.md"]
    assert "## attention {#qkvattention}" in page and "- mask: " in page and "```pycon\n>>> " in page
    assert "# doctest:" not in page


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_exists_with_its_parameters_and_is_in_the_reference(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert callable(found)
    if PUBLIC[name] is not None:
        assert parameters(found).startswith(PUBLIC[name])
    heading = f"## {attribute} {{#{name.replace('.', '').lower()}}}"  # the anchor has the whole name: links use it
    assert heading in PAGES[f"{module}.md"].split("\n")
