"""Hugging Face folders loaded by qkv and written back: equal outputs in both directions."""

import json
from typing import Any

import pytest
import torch
from hf_models import (
    BARTS,
    BERTS,
    EVERY,
    GPTS,
    LLAMAS,
    VITS,
    compute_outputs,
    from_pretrained,
    make_hf_model,
    plain,
    random_tokens,
    use_float64,
    without_head,
)

import qkv
from qkv.checkpoints import left_out_tensors, save_hf
from qkv.checkpoints.huggingface.config_reader import IGNORED_KEYS, ConfigReader
from qkv.checkpoints.huggingface.family import SAME, match_tensors
from qkv.checkpoints.huggingface.folder import FAMILIES
from qkv.models.folder import get_untied_state

NO_TOKEN = -1  # no stop token: generation runs to its full length


def close(theirs, ours, tolerance):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", [*GPTS, *BERTS, *VITS, *BARTS])
def test_load_gives_the_outputs_of_hugging_face(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path)
    close(*compute_outputs(name, theirs, qkv.load(tmp_path)), 1e-8)


@pytest.mark.parametrize("name", LLAMAS)
def test_load_gives_the_outputs_of_llama_to_float32_and_exactly_in_float64(name, tmp_path, monkeypatch):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path)
    ours: Any = qkv.load(tmp_path)
    close(*compute_outputs(name, theirs, ours), 1e-6)
    use_float64(theirs, monkeypatch)
    close(*compute_outputs(name, theirs, ours), 1e-10)


@pytest.mark.parametrize("name", plain(EVERY))
def test_load_ignores_no_number_that_changes_the_outputs_of_hugging_face(name, tmp_path):
    """IGNORED_KEYS holds for every family: a token's id can be the first position of another."""
    make_hf_model(name).save_pretrained(tmp_path)
    config, ours = json.loads((tmp_path / "config.json").read_text()), qkv.load(tmp_path)
    read_config = FAMILIES[config["model_type"]].read_config
    for key in sorted(key for key in IGNORED_KEYS & set(config) if type(config[key]) is int):
        changed = config[key] + 1
        try:
            read_config(ConfigReader({**config, key: changed}, "config.json"))
        except ValueError:  # refused
            continue
        expected, found = compute_outputs(name, make_hf_model(name, **{key: changed}), ours)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0, msg=lambda text, key=key: f"{key}: {text}")


def transforms(ours, theirs):
    """How qkv reads each of their tensors: some tables begin with rows that nothing uses."""
    family = FAMILIES[theirs.config.model_type]
    pairs = match_tensors(family.table(ours.config), get_untied_state(ours))
    return {name: pair.transform for pair in pairs for name in (pair.theirs, pair.theirs.removeprefix(family.prefix))}


@pytest.mark.parametrize("name", EVERY)
def test_save_hf_writes_back_a_folder_with_equal_tensors(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    save_hf(ours, tmp_path / "back")
    again = from_pretrained(tmp_path / "back", name)
    mine, yours, known = theirs.state_dict(), again.state_dict(), transforms(ours, theirs)
    assert set(mine) == set(yours)
    read = {key: known.get(key, SAME).read for key in mine}
    assert [key for key in mine if not all(map(torch.equal, read[key](mine[key]), read[key](yours[key])))] == []
    close(*compute_outputs(name, again, qkv.load(tmp_path / "back")), 1e-6 if name in LLAMAS else 1e-8)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_saved_by_qkv_in_between_loses_nothing(name, tmp_path):
    make_hf_model(name).save_pretrained(tmp_path / "theirs")
    first = qkv.load(tmp_path / "theirs")
    first.save(tmp_path / "ours")
    second = qkv.load(tmp_path / "ours")
    assert second.config == first.config
    save_hf(second, tmp_path / "back")
    kept, written = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("theirs", "back"))
    assert written == kept
    assert set(left_out_tensors(second)) == set(left_out_tensors(first))
    from_pretrained(tmp_path / "back", name)


@pytest.mark.parametrize("name", ["gpt2", "llama, tied", "llama, biases", "bart", "bert, masked"])
def test_load_reads_a_folder_in_shards(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    close(*compute_outputs(name, theirs, qkv.load(tmp_path)), 1e-6)


@pytest.mark.parametrize("name", plain({**GPTS, **LLAMAS}))
def test_left_padding_gives_the_outputs_of_hugging_face(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path)
    tokens, token_mask = random_tokens(3, 9), torch.ones(3, 9, dtype=torch.bool)
    token_mask[0, :4] = token_mask[1, :1] = False
    positions = (token_mask.long().cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=token_mask.long(), position_ids=positions).logits
        found = qkv.load(tmp_path)(tokens, token_mask)
    close(expected[token_mask], found[token_mask], 1e-6)


@pytest.mark.parametrize("name", plain({**BERTS, **BARTS}))
def test_right_padding_gives_the_outputs_of_hugging_face(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path)
    ours, tokens, token_mask = qkv.load(tmp_path), random_tokens(2, 9), torch.ones(2, 9, dtype=torch.bool)
    token_mask[0, 5:] = False
    with torch.no_grad():
        if name in BERTS:
            expected = without_head(theirs)(tokens, attention_mask=token_mask.long()).last_hidden_state[token_mask]
            found = ours(tokens, token_mask)[token_mask]
        else:
            target = random_tokens(2, 5)
            expected = theirs(input_ids=tokens, attention_mask=token_mask.long(), decoder_input_ids=target).logits
            found = ours(tokens, target, token_mask)
    close(expected, found, 1e-8)


@pytest.mark.parametrize("name", [*plain({**GPTS, **LLAMAS}), "gpt2, untied", "llama, llama3"])
def test_greedy_generation_equals_hugging_face_token_for_token(name, tmp_path):
    theirs = make_hf_model(name)
    theirs.save_pretrained(tmp_path)
    tokens = random_tokens(2, 4)
    theirs.generation_config.eos_token_id = None
    expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False)
    ours: Any = qkv.load(tmp_path)
    for cached in (True, False):
        assert ours.generate(tokens, 20, use_cache=cached).tolist() == expected.tolist()


def test_greedy_translation_equals_hugging_face_token_for_token(tmp_path):
    theirs = make_hf_model("bart")
    theirs.save_pretrained(tmp_path)
    tokens = random_tokens(1, 6)
    expected = theirs.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=10,
        do_sample=False,
        num_beams=1,
        eos_token_id=None,
    )
    ours: Any = qkv.load(tmp_path)
    found = ours.generate(tokens, 10, start_token=1, stop_token=NO_TOKEN)
    assert found[0].tolist() == expected[0, 1:].tolist()


def test_save_hf_writes_a_head_with_the_architecture_that_has_one(tmp_path):
    make_hf_model("bart, bare").save_pretrained(tmp_path / "theirs")
    ours: Any = qkv.load(tmp_path / "theirs")
    with torch.no_grad():
        ours.head.bias.add_(1.0)
    save_hf(ours, tmp_path / "back")
    again: Any = qkv.load(tmp_path / "back")
    assert torch.equal(again.head.bias, ours.head.bias)
    from_pretrained(tmp_path / "back", "bart")


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_load_keeps_the_precision_of_the_file(kind, tmp_path):
    dtype = getattr(torch, kind)
    make_hf_model("llama").to(dtype).save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    save_hf(ours, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == kind


def test_load_reads_rope_theta_and_rope_scaling_of_older_files(tmp_path):
    theirs = make_hf_model("llama, llama3")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    (tmp_path / "config.json").write_text(json.dumps(config))
    close(*compute_outputs("llama, llama3", theirs, qkv.load(tmp_path)), 1e-6)


def test_load_reads_gamma_and_beta_of_older_bert_files(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = make_hf_model("bert, masked")
    theirs.save_pretrained(tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file({**old, "bert.embeddings.position_ids": torch.arange(32)[None]}, tmp_path / "model.safetensors")
    close(*compute_outputs("bert, masked", theirs, qkv.load(tmp_path)), 1e-8)


def test_load_reads_older_gpt2_files_without_prefix_and_with_a_mask(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = make_hf_model("gpt2")
    theirs.save_pretrained(tmp_path)
    old = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(2)}
    save_file({**old, **masks}, tmp_path / "model.safetensors")
    close(*compute_outputs("gpt2", theirs, qkv.load(tmp_path)), 1e-8)
    save_hf(qkv.load(tmp_path), tmp_path / "back")
    close(*compute_outputs("gpt2", from_pretrained(tmp_path / "back", "gpt2"), qkv.load(tmp_path)), 1e-8)


def test_load_accepts_tied_tables_that_are_in_the_file_twice(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = make_hf_model("llama, tied")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": table.clone()}, tmp_path / "model.safetensors")
    ours: Any = qkv.load(tmp_path)
    assert ours.head.weight is ours.tokens.weight
    close(*compute_outputs("llama, tied", theirs, ours), 1e-6)
    save_file({**tensors, "lm_head.weight": table + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        qkv.load(tmp_path)
