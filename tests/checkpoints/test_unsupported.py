"""What qkv does not support is refused by name: an architecture, a config key, a tensor, a file."""

import json
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch
from hf_models import EVERY, make_hf_model, plain
from safetensors.torch import load_file, save_file

import qkv
from qkv.checkpoints import load_tokenizer, save_hf
from qkv.checkpoints.huggingface.config_reader import IGNORED_KEYS, ConfigReader
from qkv.checkpoints.huggingface.folder import FAMILIES
from qkv.checkpoints.loading import load_any


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Hugging Face folder for each name, written once."""
    place, written = tmp_path_factory.mktemp("folders"), {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = place / str(len(written))
            make_hf_model(name).save_pretrained(written[name])
        return written[name]

    return folder


def copy(
    folder: Path, target: Path, *, config: dict | None = None, without: str = "", tensors: dict | None = None
) -> Path:
    """A copy of a folder with other config values or tensors."""
    target.mkdir()
    settings = {**json.loads((folder / "config.json").read_text()), **(config or {})}
    (target / "config.json").write_text(json.dumps({key: value for key, value in settings.items() if key != without}))
    found = {**load_file(folder / "model.safetensors"), **(tensors or {})}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, target / "model.safetensors")
    return target


def test_load_lists_the_known_architectures_for_an_unknown_one(folders, tmp_path):
    with pytest.raises(ValueError, match=f"of type 'mamba'; qkv reads {', '.join(FAMILIES)}"):
        qkv.load(copy(folders("gpt2"), tmp_path / "a", config={"model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"'BertForSequenceClassification'; qkv reads .*BertForMaskedLM"):
        qkv.load(copy(folders("bert"), tmp_path / "b", config={"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(ValueError, match="of type None"):
        qkv.load(copy(folders("bert"), tmp_path / "c", without="model_type"))


@pytest.mark.parametrize(
    ("name", "switch", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "reorder_and_upcast_attn", True),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "activation_function", "quick_gelu"),
        ("gpt2", "new_trick", 1),
        ("gpt2", "quantization_config", {"bits": 4}),
        ("gpt2", "n_layer", "two"),
        ("gpt2", "n_layer", -1),
        ("gpt2", "layer_norm_epsilon", "small"),
        ("gpt2", "tie_word_embeddings", "yes"),
        ("opt", "do_layer_norm_before", False),
        ("opt", "_remove_final_layer_norm", True),
        ("opt", "word_embed_proj_dim", 8),
        ("opt", "enable_bias", False),
        ("llama", "hidden_act", "gelu"),
        ("llama", "sliding_window", 4),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "rope_scaling", {"type": "linear", "factor": 2.0}),
        ("llama", "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0]}),
        ("llama", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0}),
        ("llama", "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "surprise": 1}),
        ("llama", "rope_parameters", {"rope_type": "linear"}),
        ("llama", "rope_parameters", "default"),
        ("llama", "num_local_experts", 8),
        ("llama", "attn_logit_softcapping", 50.0),
        ("mistral", "layer_types", ["full_attention", "sliding_attention"]),
        ("qwen2", "layer_types", ["full_attention", "sliding_attention"]),
        ("qwen2", "layer_types", ["sliding_attention", "sliding_attention"]),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
        ("roberta", "pad_token_id", 0),
        ("distilbert", "activation", "silu"),
        ("distilbert", "layer_norm_eps", 1e-5),
        ("vit", "qkv_bias", False),
        ("vit", "image_size", [8, 12]),
        ("bart", "decoder_attention_heads", 2),
        ("bart", "decoder_ffn_dim", 24),
        ("bart", "normalize_before", True),
        ("bart", "is_encoder_decoder", False),
        ("bart", "encoder_layers", 10**9),
        ("gpt2", "n_head", 3),
    ],
)
def test_load_names_a_config_value_that_qkv_does_not_support(name, switch, value, folders, tmp_path):
    named = {"encoder_layers": "1000000000 layers", "n_head": "heads=3"}.get(switch, switch)
    with pytest.raises(ValueError, match=named) as refused:
        qkv.load(copy(folders(name), tmp_path / "model", config={switch: value}))
    assert "config.json" in str(refused.value)
    assert "\n" not in str(refused.value)


TRAINING_KEYS = {
    "attn_pdrop", "embd_pdrop", "attention_dropout", "attention_probs_dropout_prob", "activation_dropout", "layerdrop",
    "encoder_layerdrop", "decoder_layerdrop", "qa_dropout", "seq_classif_dropout",
    "sinusoidal_pos_embds",  # how positions are initialized
}  # fmt: skip
CHECKED_ELSEWHERE = {
    "pretraining_tp", "encoder_stride", "pooler_output_size",
    "use_sliding_window", "max_window_layers",  # layer_types say what each layer does
}  # fmt: skip


@pytest.mark.parametrize("name", plain(EVERY))
def test_no_config_key_is_silently_ignored(name, folders, tmp_path):
    """Every number and flag of a config changes what is loaded, or is refused, or is known to be harmless."""
    settings = json.loads((folders(name) / "config.json").read_text())
    family = FAMILIES[settings["model_type"]]
    before = family.read_config(ConfigReader(settings, "config.json"))
    silent = []
    for key, value in settings.items():
        if isinstance(value, bool | int | float) and key not in IGNORED_KEYS:
            other = (not value) if isinstance(value, bool) else value + 1
            try:
                after = family.read_config(ConfigReader({**settings, key: other}, "config.json"))
            except ValueError:
                continue
            if after == before:
                silent.append(key)
    harmless = TRAINING_KEYS | CHECKED_ELSEWHERE | ({"tie_word_embeddings"} if "bert" in name else set())
    unread = sorted(set(silent) - harmless)
    assert not unread, f"{unread}: read or require them; or add them to TRAINING_KEYS"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *((name, "") for name in plain(EVERY)),
        ("llama", "lm_head.weight"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("bert", "embeddings.token_type_embeddings.weight"),
        ("vit", "vit.embeddings.cls_token"),
        ("bart", "model.decoder.layers.0.encoder_attn.k_proj.bias"),
    ],
)
def test_load_names_tensors_that_are_missing_extra_or_of_a_wrong_shape_or_dtype(name, tensor, folders, tmp_path):
    written = load_file(folders(name) / "model.safetensors")
    tensor = tensor or next(key for key in sorted(written) if ".1." in key)  # of the second layer
    right = written[tensor]
    stem = tensor.rsplit(".", 1)[0]
    cases = {
        "lacks 1 tensors": {tensor: None},
        "should be": {tensor: torch.zeros(*right.shape[:-1], right.shape[-1] + 1, dtype=right.dtype)},
        "has 1 tensors": {f"{stem}.surprise": torch.zeros(1)},
        "qkv reads float64": {tensor: torch.zeros(right.shape, dtype=torch.int8)},
    }
    for number, (said, tensors) in enumerate(cases.items()):
        with pytest.raises(ValueError, match=said) as refused:
            qkv.load(copy(folders(name), tmp_path / str(number), tensors=tensors))
        assert next(iter(tensors)) in str(refused.value)


def test_load_refuses_a_wrong_number_of_layers(folders, tmp_path):
    with pytest.raises(ValueError, match=r"lacks 12 tensors that config\.json asks for, first transformer\.h\.2"):
        qkv.load(copy(folders("gpt2"), tmp_path / "a", config={"n_layer": 3}))
    with pytest.raises(ValueError, match=r"has 12 tensors that config\.json has no place for, first transformer\.h\.1"):
        qkv.load(copy(folders("gpt2"), tmp_path / "b", config={"n_layer": 1}))


def test_load_never_reads_a_pickle(folders, tmp_path):
    (tmp_path / "config.json").write_bytes((folders("gpt2") / "config.json").read_bytes())
    with pytest.raises(ValueError, match=r"has no model\.safetensors and no model\.safetensors\.index\.json"):
        qkv.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin, a pickle, .* only safetensors is read"):
        qkv.load(tmp_path)
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    "home", ["../outside.safetensors", "/etc/outside.safetensors", "a/b.safetensors", "..", "x.bin"]
)
def test_load_refuses_an_index_that_leads_out_of_its_folder(home, folders, tmp_path):
    name = "transformer.wte.weight"
    save_file({name: torch.zeros(2, 2)}, tmp_path / "outside.safetensors")
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "config.json").write_bytes((folders("gpt2") / "config.json").read_bytes())
    (inside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: home}}))
    with pytest.raises(ValueError, match="only safetensors files of the folder itself are read"):
        qkv.load(inside)


def test_load_names_the_tensor_or_file_of_a_wrong_index(tmp_path):
    make_hf_model("gpt2").save_pretrained(tmp_path, max_shard_size="4KB")
    path = tmp_path / "model.safetensors.index.json"
    good = json.loads(path.read_text())
    homes = good["weight_map"]
    last = max(homes.values())
    name = next(name for name, home in homes.items() if list(homes.values()).count(home) > 1)
    cases = [
        ("should hold a weight_map", {}),
        ("should hold a weight_map", {"weight_map": {name: 3}}),
        (f"holds {name}, which", {"weight_map": {**homes, name: last}}),
        ("lacks surprise, which", {"weight_map": {**homes, "surprise": last}}),
        (f"holds {name}, which", {"weight_map": {key: home for key, home in homes.items() if key != name}}),
        ("which the folder lacks", {"weight_map": {**homes, "surprise": "model-00099-of-00099.safetensors"}}),
    ]
    for said, wrong in cases:
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=said):
            qkv.load(tmp_path)
    path.write_text(json.dumps(good))
    (tmp_path / last).unlink()
    with pytest.raises(ValueError, match=f"names {last}, which the folder lacks"):
        qkv.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"model_type": ["gpt2"]}', "\x00", "[" * 100_000])
def test_load_refuses_a_malformed_config_json(content, folders, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        qkv.load(tmp_path)


def test_load_tokenizer_refuses_a_missing_or_damaged_tokenizer(folders, tmp_path):
    model = qkv.load(folders("gpt2"))
    with pytest.raises(ValueError, match=r"this GPT has no tokenizer\.json"):
        load_tokenizer(model)
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(folders("gpt2"))
    model.extra_files["tokenizer.json"] = b"{}"
    with pytest.raises(ValueError, match=r"tokenizer\.json of this GPT cannot be read"):
        load_tokenizer(model)
    model.extra_files["notes.txt"] = b""
    with pytest.raises(ValueError, match=r"'notes\.txt' cannot be saved with a model"):
        save_hf(model, tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("gpt2", {"n_ctx": 32, "_num_labels": 1, "task_specific_params": {"text-generation": {"do_sample": True}}}),
        ("opt", {"activation_dropout": 0.0, "prefix": "</s>", "_remove_final_layer_norm": False}),
        ("llama", {"pretraining_tp": 1, "rope_scaling": None, "_name_or_path": "x", "torch_dtype": "float16"}),
        ("llama", {"_model_name_or_path": "x", "_attn_implementation_autoset": True, "_commit_hash": "0", "_x": [1]}),
        ("bert", {"model_name_or_path": "x", "tokenizer_class": "BertTokenizer", "use_bfloat16": False, "_y": 3}),
        ("llama", {"rope_interleaved": False, "is_llama_config": True}),
        ("qwen2", {"use_mrope": False, "rope_scaling": None}),
        ("bert", {"gradient_checkpointing": False, "position_embedding_type": "absolute", "pooler_fc_size": 768}),
        ("xlm-roberta", {"output_past": True, "position_embedding_type": "absolute", "gradient_checkpointing": False}),
        ("distilbert", {"tie_weights_": True, "sinusoidal_pos_embds": False, "output_past": True}),
        ("vit", {"image_size": [12, 12], "_name_or_path": "x"}),
        (
            "bart",
            {
                "add_bias_logits": False,
                "add_final_layer_norm": False,
                "normalize_before": False,
                "normalize_embedding": True,
                "static_position_embeddings": False,
                "extra_pos_embeddings": 2,
                "num_hidden_layers": 2,
                "classif_dropout": 0.1,
                "force_bos_token_to_be_generated": True,
                "no_repeat_ngram_size": 3,
                "output_past": True,
            },
        ),
    ],
)
def test_load_accepts_keys_of_older_files_that_change_nothing(name, older, folders, tmp_path):
    changed, plain = qkv.load(copy(folders(name), tmp_path / "model", config=older)), qkv.load(folders(name))
    assert changed.config == plain.config
    assert all(torch.equal(tensor, changed.state_dict()[key]) for key, tensor in plain.state_dict().items())


@pytest.fixture
def network_calls(monkeypatch):
    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("a test makes no network call")

    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return asked


BACKBONES = {
    "config of a backbone": {"backbone": "somebody/model", "use_timm_backbone": False},
    "pretrained": {"backbone": "somebody/model", "use_timm_backbone": False, "use_pretrained_backbone": True},
    "timm": {"backbone": "resnet18", "use_timm_backbone": True, "use_pretrained_backbone": True},
}


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
def test_load_any_makes_no_network_call_for_a_local_folder(backbone, tmp_path, network_calls):
    config = {"model_type": "detr", "architectures": ["DetrModel"], "backbone_config": None, **backbone}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError) as caught:
        load_any(tmp_path)
    assert network_calls == []
    assert ("would be downloaded" in str(caught.value)) == bool(backbone.get("use_pretrained_backbone"))
    assert not huggingface_hub.is_offline_mode()  # only around the call
