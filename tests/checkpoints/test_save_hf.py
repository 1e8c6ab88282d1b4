"""save_hf writes qkv models that Hugging Face can express, and names the field that it cannot."""

from typing import Any

import pytest
import torch
from hf_models import transformers

from qkv.checkpoints import load, save_hf
from qkv.models import CNN, CNNConfig, EncoderConfig, GPTConfig, Model, Seq2SeqConfig, ViTConfig, build
from qkv.nn import Additive, Dot
from qkv.positions import Llama3Scaling, NtkScaling, Rope, YarnScaling

SMALL: dict[str, Any] = {"vocab_size": 23, "max_length": 32, "dim": 16, "layers": 2, "heads": 4, "mlp_dim": 20}
LLAMA: dict[str, Any] = {**SMALL, "position": "rope", "norm": "rms", "activation": "swiglu", "bias": False}
TWO: dict[str, Any] = {key: value for key, value in SMALL.items() if key != "layers"} | {
    "encoder_layers": 1,
    "decoder_layers": 2,
}
BART: dict[str, Any] = {**TWO, "position": "learned", "activation": "gelu", "embedding_norm": True}
BERT: dict[str, Any] = {**SMALL, "position": "learned", "norm_order": "post", "embedding_norm": True, "num_segments": 2}
DISTILBERT: dict[str, Any] = {**BERT, "num_segments": 0, "norm_eps": 1e-12}
VIT: dict[str, Any] = {
    "image_size": 8,
    "patch_size": 2,
    "channels": 2,
    "num_classes": 5,
    "dim": 16,
    "layers": 2,
    "heads": 4,
}
QWEN = Dot(qk_norm=True, norm_eps=1e-5)

WRITTEN = {
    "as GPT-2": ("GPT2LMHeadModel", GPTConfig(**SMALL)),
    "as GPT-2, tied": ("GPT2LMHeadModel", GPTConfig(**SMALL, tie_embeddings=True, activation="gelu-tanh")),
    "as Llama": ("LlamaForCausalLM", GPTConfig(**LLAMA)),
    "as Llama, halves": ("LlamaForCausalLM", GPTConfig(**{**LLAMA, "position": Rope(base=50.0, pairing="halves")})),
    "as Llama, stretched": (
        "LlamaForCausalLM",
        GPTConfig(**{**LLAMA, "position": Rope(scaling=Llama3Scaling(original_max_length=8))}),
    ),
    "as Llama, yarn": (
        "LlamaForCausalLM",
        GPTConfig(**{**LLAMA, "position": Rope(scaling=YarnScaling(4.0, 8))}, kv_heads=1),
    ),
    "as Llama, biases": ("LlamaForCausalLM", GPTConfig(**{**LLAMA, "bias": True}, head_dim=6)),
    "as Mistral": ("MistralForCausalLM", GPTConfig(**LLAMA, sliding_window=3, kv_heads=2, tie_embeddings=True)),
    "as Qwen 2": ("Qwen2ForCausalLM", GPTConfig(**LLAMA, attention_bias="qkv", sliding_window=3)),
    "as Qwen 3": ("Qwen3ForCausalLM", GPTConfig(**LLAMA, score=QWEN, head_dim=6, kv_heads=2)),
    "as BERT": ("BertModel", EncoderConfig(**BERT)),
    "as DistilBERT": ("DistilBertModel", EncoderConfig(**DISTILBERT)),
    "as ViT": ("ViTForImageClassification", ViTConfig(**VIT, activation="relu")),
    "as ViT without a head": ("ViTModel", ViTConfig(**{**VIT, "num_classes": 0})),
    "as BART": ("BartForConditionalGeneration", Seq2SeqConfig(**BART, head_bias=True)),
    "as BART, three tables": (
        "BartForConditionalGeneration",
        Seq2SeqConfig(**BART, tie_embeddings=False, scale_embeddings=False),
    ),
}


def random_model(config: object) -> Any:
    model: Model = build(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return model


@pytest.mark.parametrize("name", WRITTEN)
def test_save_hf_writes_a_model_that_from_pretrained_loads_with_equal_outputs(name, tmp_path):
    architecture, config = WRITTEN[name]
    ours = random_model(config)
    save_hf(ours, tmp_path / "model")
    kind = getattr(transformers, architecture)
    extra = {"add_pooling_layer": False} if architecture in ("BertModel", "ViTModel") else {}
    theirs, report = kind.from_pretrained(tmp_path / "model", dtype=torch.float64, output_loading_info=True, **extra)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    again = load(tmp_path / "model")
    tokens, target = torch.randint(23, (2, 9)), torch.randint(23, (2, 5))
    images = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        if isinstance(config, Seq2SeqConfig):
            results = (
                theirs.eval()(input_ids=tokens, decoder_input_ids=target).logits,
                ours(tokens, target),
                again(tokens, target),
            )
        elif isinstance(config, ViTConfig):
            found = theirs.eval()(images)
            results = found.logits if config.num_classes else found.last_hidden_state[:, 0], ours(images), again(images)
        elif isinstance(config, EncoderConfig):
            results = theirs.eval()(tokens).last_hidden_state, ours(tokens), again(tokens)
        else:
            results = theirs.eval()(tokens).logits, ours(tokens), again(tokens)
    torch.testing.assert_close(results[0], results[1], atol=3e-6, rtol=0)
    torch.testing.assert_close(results[1], results[2], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTConfig(**SMALL, position="alibi"), "as gpt2, position=Alibi"),
        (GPTConfig(**SMALL, norm_order="post"), "norm_order='post' has no counterpart in GPT-2, which has 'pre' only"),
        (GPTConfig(**SMALL, score=Additive(5)), "score=Additive"),
        (GPTConfig(**{**LLAMA, "position": Rope(scaling=NtkScaling(2.0))}), "NtkScaling has no counterpart in Llama"),
        (GPTConfig(**{**LLAMA, "position": Rope(rotary_dim=2)}), "has no counterpart in Llama, which has Rope"),
        (GPTConfig(**LLAMA, score=Dot(scale=1.0)), "as llama, score=Dot"),
        (GPTConfig(**LLAMA, score=Dot(qk_norm=True, norm_eps=1e-3)), "as qwen3, score=Dot"),
        (EncoderConfig(**{**BERT, "num_segments": 0}), "num_segments=0 has no counterpart in BERT"),
        (EncoderConfig(**{**DISTILBERT, "norm_eps": 1e-5}), "as distilbert, norm_eps=1e-05 has no counterpart"),
        (EncoderConfig(**{**BERT, "norm_order": "pre"}), "norm_order='pre' has no counterpart in BERT"),
        (ViTConfig(**VIT, pooling="mean"), "pooling='mean' has no counterpart in ViT"),
        (ViTConfig(**VIT, final_norm=False), "final_norm=False has no counterpart in ViT"),
        (Seq2SeqConfig(**TWO), "position='sinusoidal' has no counterpart in BART"),
    ],
)
def test_save_hf_names_the_field_that_hugging_face_cannot_express(config, message, tmp_path):
    with pytest.raises(ValueError, match="has no counterpart") as refused:
        save_hf(build(config), tmp_path / "model")
    assert message in "; ".join([str(refused.value), *getattr(refused.value, "__notes__", ())])
    assert len(str(refused.value)) < 300  # one reason; a traceback shows those of the other families
    assert not list(tmp_path.iterdir())


def test_save_hf_refuses_a_kind_of_model_that_hugging_face_does_not_have(tmp_path):
    with pytest.raises(
        ValueError, match="this CNN has no counterpart among Hugging Face's models: qkv writes Encoder, GPT"
    ):
        save_hf(CNN(CNNConfig(image_size=8, stage_channels=(3,))), tmp_path / "model")


def test_save_hf_does_not_replace_a_folder_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds other files \(thesis.tex"):
        save_hf(random_model(GPTConfig(**SMALL)), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_save_hf_keeps_the_older_model_if_writing_fails(tmp_path, monkeypatch):
    older = random_model(GPTConfig(**SMALL))
    save_hf(older, tmp_path / "model")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv.checkpoints.huggingface.folder.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        save_hf(random_model(GPTConfig(**SMALL)), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    again: Any = load(tmp_path / "model")
    assert torch.equal(again.tokens.weight, older.tokens.weight)
