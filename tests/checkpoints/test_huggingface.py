"""From their folders and back: the same numbers in both directions."""

import json
from typing import Any

import pytest
import torch
from foreign import (
    BARTS,
    BERTS,
    EVERY,
    GPTS,
    LLAMAS,
    VITS,
    answers,
    exact_llama,
    foreign,
    reloaded,
    texts,
)

import qkv
from qkv.checkpoints import left_out, save_hf

NO_TOKEN = -1  # nothing stops the translation: it runs to its full length


def close(theirs, ours, tolerance):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", [*GPTS, *BERTS, *VITS, *BARTS])
def test_a_loaded_model_gives_their_numbers(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path)
    close(*answers(name, theirs, qkv.load(tmp_path)), 1e-8)


@pytest.mark.parametrize("name", LLAMAS)
def test_a_loaded_llama_gives_their_numbers_to_float32_and_exactly_where_theirs_are_exact(name, tmp_path, monkeypatch):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path)
    ours: Any = qkv.load(tmp_path)
    close(*answers(name, theirs, ours), 1e-6)
    exact_llama(theirs, monkeypatch)
    close(*answers(name, theirs, ours), 1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_what_qkv_writes_back_they_load_and_it_is_the_same(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path / "theirs")
    save_hf(qkv.load(tmp_path / "theirs"), tmp_path / "back")
    again = reloaded(tmp_path / "back", name)
    mine, yours = theirs.state_dict(), again.state_dict()
    assert set(mine) == set(yours)
    for key, tensor in mine.items():
        if not key.endswith("embed_positions.weight"):  # their first two rows are never read
            assert torch.equal(yours[key], tensor), key
    close(*answers(name, again, qkv.load(tmp_path / "back")), 1e-6 if name in LLAMAS else 1e-8)


@pytest.mark.parametrize("name", EVERY)
def test_a_detour_through_our_folder_loses_nothing(name, tmp_path):
    foreign(name).save_pretrained(tmp_path / "theirs")
    first = qkv.load(tmp_path / "theirs")
    first.save(tmp_path / "ours")
    second = qkv.load(tmp_path / "ours")
    assert second.config == first.config
    save_hf(second, tmp_path / "back")
    kept, written = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("theirs", "back"))
    assert written == kept
    assert set(left_out(second)) == set(left_out(first))
    reloaded(tmp_path / "back", name)


@pytest.mark.parametrize("name", ["gpt2", "llama, tied", "llama, biases", "bart", "bert, masked"])
def test_a_folder_in_shards_is_the_same_model(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    close(*answers(name, theirs, qkv.load(tmp_path)), 1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3"])
def test_shorter_texts_padded_on_the_left_get_their_numbers(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path)
    tokens, present = texts(3, 9), torch.ones(3, 9, dtype=torch.bool)
    present[0, :4] = present[1, :1] = False
    positions = (present.long().cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=present.long(), position_ids=positions).logits
        found = qkv.load(tmp_path)(tokens, present)
    close(expected[present], found[present], 1e-6)


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_shorter_texts_padded_on_the_right_get_their_numbers(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path)
    ours, tokens, present = qkv.load(tmp_path), texts(2, 9), torch.ones(2, 9, dtype=torch.bool)
    present[0, 5:] = False
    with torch.no_grad():
        if name == "bert":
            expected = theirs(tokens, attention_mask=present.long()).last_hidden_state[present]
            found = ours(tokens, present)[present]
        else:
            target = texts(2, 5)
            expected = theirs(input_ids=tokens, attention_mask=present.long(), decoder_input_ids=target).logits
            found = ours(tokens, target, present)
    close(expected, found, 1e-8)


@pytest.mark.parametrize("name", ["gpt2", "gpt2, untied", "llama", "llama, llama3", "mistral", "qwen2", "qwen3"])
def test_greedy_generation_is_theirs_token_for_token(name, tmp_path):
    theirs = foreign(name)
    theirs.save_pretrained(tmp_path)
    tokens = texts(2, 4)
    theirs.generation_config.eos_token_id = None
    expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False)
    ours: Any = qkv.load(tmp_path)
    for cached in (True, False):
        assert ours.generate(tokens, 20, cached=cached).tolist() == expected.tolist()


def test_greedy_translation_is_theirs_token_for_token(tmp_path):
    theirs = foreign("bart")
    theirs.save_pretrained(tmp_path)
    tokens = texts(1, 6)
    expected = theirs.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=10,
        do_sample=False,
        num_beams=1,
        eos_token_id=None,
    )
    ours: Any = qkv.load(tmp_path)
    found = ours.generate(tokens, 10, start=1, stop=NO_TOKEN)
    assert found[0].tolist() == expected[0, 1:].tolist()


def test_a_head_that_a_bare_model_has_no_place_for_is_written_with_the_whole_one(tmp_path):
    foreign("bart, bare").save_pretrained(tmp_path / "theirs")
    ours: Any = qkv.load(tmp_path / "theirs")
    with torch.no_grad():
        ours.head.bias.add_(1.0)
    save_hf(ours, tmp_path / "back")
    again: Any = qkv.load(tmp_path / "back")
    assert torch.equal(again.head.bias, ours.head.bias)
    reloaded(tmp_path / "back", "bart")


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_model_keeps_the_precision_of_its_file(kind, tmp_path):
    dtype = getattr(torch, kind)
    foreign("llama").to(dtype).save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    save_hf(ours, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == kind


def test_older_files_say_where_the_rotation_is_in_two_places(tmp_path):
    theirs = foreign("llama, llama3")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    (tmp_path / "config.json").write_text(json.dumps(config))
    close(*answers("llama, llama3", theirs, qkv.load(tmp_path)), 1e-6)


def test_older_files_of_bert_call_a_norm_gamma_and_beta(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = foreign("bert, masked")
    theirs.save_pretrained(tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file({**old, "bert.embeddings.position_ids": torch.arange(32)[None]}, tmp_path / "model.safetensors")
    close(*answers("bert, masked", theirs, qkv.load(tmp_path)), 1e-8)


def test_older_files_of_gpt2_have_no_prefix_and_hold_the_mask(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = foreign("gpt2")
    theirs.save_pretrained(tmp_path)
    old = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(2)}
    save_file({**old, **masks}, tmp_path / "model.safetensors")
    close(*answers("gpt2", theirs, qkv.load(tmp_path)), 1e-8)
    save_hf(qkv.load(tmp_path), tmp_path / "back")
    close(*answers("gpt2", reloaded(tmp_path / "back", "gpt2"), qkv.load(tmp_path)), 1e-8)


def test_tied_tables_may_stand_in_the_file_twice(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = foreign("llama, tied")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": table.clone()}, tmp_path / "model.safetensors")
    ours: Any = qkv.load(tmp_path)
    assert ours.head.weight is ours.tokens.weight
    close(*answers("llama, tied", theirs, ours), 1e-6)
    save_file({**tensors, "lm_head.weight": table + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        qkv.load(tmp_path)
