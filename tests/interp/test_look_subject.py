"""From a checkpoint and an input to something that can be looked at; and one sentence where that cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from qkv import interp as look
from qkv.interp import subject
from qkv.models import CNN, GPT, CNNConfig, Encoder, EncoderConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
WORDS = ["<s>", "</s>", "the", "cat", "sat", "on", "a", "mat", "dog", "ran"]


def word_tokenizer() -> Tokenizer:
    reader = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    reader.pre_tokenizer = pre_tokenizers.Whitespace()
    return reader


def saved(model, folder: Path, reader: Tokenizer | None = None) -> Path:
    if reader is not None:
        model.files["tokenizer.json"] = reader.to_str().encode()
    model.save(folder)
    return folder


@pytest.fixture
def gpt_folder(tmp_path, unchecked) -> Path:
    model = GPT(GPTConfig(vocab_size=10, max_length=12, dim=32, layers=2, heads=4))
    return saved(model, tmp_path / "gpt", word_tokenizer())


@pytest.fixture
def picture(tmp_path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_a_folder_of_ours_and_a_text(gpt_folder):
    found = subject.open(gpt_folder, "the cat sat")
    assert found.kind == "text" and found.tokens == ("the", "cat", "sat")
    assert found.inputs.tolist() == [[2, 3, 4]]
    trace = found.trace()
    assert found.labels(trace.layers[0]) == (("the", "cat", "sat"),) * 2
    assert found.token(7) == "mat"


@pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not beside the project")
def test_a_llama2c_file_and_a_text(unchecked):
    found = subject.open(STORIES / "stories260K.bin", "Once upon a time\n")
    assert found.tokens == ("<s>", " Once", " upon", " a", " time", "\n")
    assert len(found.trace()) == 5


def test_a_pair_is_given_or_written_and_its_axes_are_named(tmp_path, unchecked):
    config = Seq2SeqConfig(vocab_size=10, dim=32, encoder_layers=1, decoder_layers=1, heads=4)
    folder = saved(Seq2Seq(config), tmp_path / "pair", word_tokenizer())
    found = subject.open(folder, "the cat sat", target="a dog ran on")
    assert found.kind == "pair" and found.source == ("the", "cat", "sat")
    assert found.tokens == ("<s>", "a", "dog", "ran", "on")
    names = {layer.name: found.labels(layer) for layer in found.trace().layers}
    assert names["encoder.0.attention"] == (found.source, found.source)
    assert names["decoder.0.attention"] == (found.tokens, found.tokens)
    assert names["decoder.0.cross_attention"] == (found.tokens, found.source)
    written = subject.open(folder, "the cat sat", count=4)
    assert written.tokens[0] == "<s>" and 2 <= len(written.tokens) <= 5
    assert any("wrote itself" in note for note in written.notes)
    same = subject.open(folder, "the cat sat", target="dog ran")  # source and target of the same length
    layer = next(layer for layer in same.trace().layers if layer.name == "encoder.0.attention")
    assert same.labels(layer) == (same.source, same.source)


def test_a_picture_is_resized_and_normalised_as_the_checkpoint_says(tmp_path, picture, unchecked):
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2, num_classes=3))
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0], "resample": 2}
    model.files["preprocessor_config.json"] = json.dumps(settings).encode()
    found = subject.open(saved(model, tmp_path / "vit"), picture)
    assert found.kind == "image" and found.picture is not None
    assert found.notes == ("the picture of 30×20 pixels was resized to 16×16",)
    resized = Image.open(picture).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    pixels = torch.tensor(np.asarray(resized) / 255.0).permute(2, 0, 1)
    mean, deviation = (torch.tensor(settings[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    torch.testing.assert_close(found.inputs[0], ((pixels - mean) / deviation).float())
    assert (found.picture.rows, found.picture.columns, found.picture.special) == (4, 4, 1)
    assert found.tokens[:3] == ("class", "0,0", "0,1") and len(found.tokens) == 17
    assert found.labels(found.trace().layers[1])[0] == found.tokens


def test_attention_over_a_picture_is_the_row_of_the_token_without_the_class_token(unchecked):
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2)).eval()
    trace = look.at(model, torch.randn(1, 3, 16, 16))
    found = look.over_picture(model, trace, 1, 0)
    torch.testing.assert_close(found.grid.flatten(), trace.weights(1, 0)[0, 1:])
    assert found.special == (trace.weights(1, 0)[0, 0].item(),)
    patch = look.over_picture(model, trace, 0, query=(1, 2))
    torch.testing.assert_close(patch.grid.flatten(), trace.weights(0).mean(0)[1 + 6, 1:])
    rolled = look.rollout_over_picture(model, trace, query=(3, 3))
    torch.testing.assert_close(rolled.grid.flatten(), look.rollout(trace).weights[16, 1:])
    assert rolled.layer == "rollout" and rolled.grid.shape == (4, 4)
    with pytest.raises(ValueError, match="within 4 × 4"):
        look.over_picture(model, trace, 0, query=(4, 0))
    bare = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2, pooling="mean")).eval()
    with pytest.raises(ValueError, match="no class token"):
        look.over_picture(bare, look.at(bare, torch.randn(1, 3, 16, 16)), 0)


class TestOthers:
    """Folders that transformers writes."""

    @pytest.fixture(autouse=True)
    def _quiet(self, unchecked):
        transformers = pytest.importorskip("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.library = transformers

    def test_a_model_that_qkv_does_not_read_is_looked_at_as_transformers_reads_it(self, tmp_path):
        config = self.library.GPTNeoXConfig(
            vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        )
        self.library.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
        word_tokenizer().save(str(tmp_path / "neox" / "tokenizer.json"))
        found = subject.open(tmp_path / "neox", "the cat sat on a mat")
        assert found.notes == ("GPTNeoXForCausalLM as transformers reads it",)
        assert len(found.trace()) == 2 and found.tokens[-1] == "mat"
        assert look.sweep(found.model, found.inputs).measure == "loss"
        assert look.lens(found.model, found.inputs).names[1] == "gpt_neox.layers.0"

    def test_a_pair_that_qkv_does_not_read_writes_its_own_target(self, tmp_path):
        config = self.library.T5Config(
            vocab_size=10, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
        self.library.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
        word_tokenizer().save(str(tmp_path / "t5" / "tokenizer.json"))
        found = subject.open(tmp_path / "t5", "the cat sat on", count=3)
        assert found.kind == "pair" and found.tokens[0] == "<s>"
        crossed = next(layer for layer in found.trace().layers if layer.cross)
        assert found.labels(crossed) == (found.tokens, found.source)

    def test_a_vit_of_theirs_and_one_that_qkv_does_not_read(self, tmp_path, picture):
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
        sizes |= {"image_size": 16, "patch_size": 4, "id2label": {0: "cat", 1: "dog"}}
        self.library.ViTForImageClassification(self.library.ViTConfig(**sizes)).save_pretrained(tmp_path / "vit")
        self.library.DeiTForImageClassification(self.library.DeiTConfig(**sizes)).save_pretrained(tmp_path / "deit")
        for name, special in (("vit", 1), ("deit", 2)):
            found = subject.open(tmp_path / name, picture)
            assert found.picture is not None and found.picture.special == special and len(found.tokens) == 16 + special
            assert found.token(1) == "dog"
            assert look.over_picture(found.model, found.trace(), 0, 0).grid.shape == (4, 4)
            assert look.heads(found.model, found.inputs).at(0, 0).scores["positional"] is not None

    def test_their_model_with_a_tensor_missing_is_refused_not_filled_at_random(self, tmp_path):
        from safetensors.torch import load_file, save_file

        config = self.library.GPTNeoXConfig(
            vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        )
        self.library.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
        tensors = load_file(tmp_path / "neox" / "model.safetensors")
        del tensors["gpt_neox.layers.1.attention.dense.weight"]
        save_file(tensors, tmp_path / "neox" / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=r"lacks 1 tensors .* first gpt_neox.layers.1.attention.dense.weight"):
            subject.open(tmp_path / "neox", "2 3 4")
        (tmp_path / "neox" / "model.safetensors").write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match="transformers does not read it either"):
            subject.open(tmp_path / "neox", "2 3 4")

    def test_sound_is_refused_with_what_is_possible(self):
        config = self.library.WhisperConfig(
            vocab_size=33, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8, pad_token_id=0,
        )  # fmt: skip
        with pytest.raises(ValueError, match=r"reads vectors .* looked at with qkv.interp.at"):
            subject.of(self.library.WhisperForConditionalGeneration(config), "hello")


def test_a_checkpoint_without_a_tokenizer_asks_for_numbers(tmp_path, unchecked):
    folder = saved(GPT(GPTConfig(vocab_size=10, dim=32, layers=1, heads=4)), tmp_path / "bare")
    with pytest.raises(ValueError, match=r'has no tokenizer.json.*as numbers: "12 7 99"'):
        subject.open(folder, "the cat sat")
    assert subject.open(folder, "3 1 4 1").tokens == ("3", "1", "4", "1")
    with pytest.raises(ValueError, match="from 0 to 9, the model's vocabulary; got 12"):
        subject.open(folder, "3 12")


def test_a_text_longer_than_the_model_says_how_much_is_read(gpt_folder):
    with pytest.raises(ValueError, match="14 tokens long and this model knows 12 positions; give at most 12"):
        subject.open(gpt_folder, "the cat " * 7)


def test_wrong_inputs_are_one_sentence(tmp_path, gpt_folder, picture, unchecked):
    vit = saved(ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=1, heads=2)), tmp_path / "vit")
    with pytest.raises(ValueError, match=r"there is no file nowhere\.png"):
        subject.open(vit, "nowhere.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match="is not a picture that can be read"):
        subject.open(vit, tmp_path / "text.png")
    with pytest.raises(ValueError, match="nothing to look at was given"):
        subject.open(gpt_folder, "")
    with pytest.raises(ValueError, match="a target belongs to an encoder–decoder"):
        subject.open(gpt_folder, "the cat", target="a dog")
    with pytest.raises(ValueError, match="there is nothing at"):
        subject.open(tmp_path / "missing", "the cat")
    many = saved(ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=1, heads=2, channels=5)), tmp_path / "five")
    with pytest.raises(ValueError, match="5 channels, which no file of a picture has"):
        subject.open(many, picture)
    features = saved(Encoder(EncoderConfig(features=8, dim=32, layers=1, heads=4)), tmp_path / "sound")
    with pytest.raises(ValueError, match="reads vectors"):
        subject.open(features, "the cat")


def test_a_damaged_folder_is_named(gpt_folder):
    weights = gpt_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        subject.open(gpt_folder, "the cat")


def test_what_cannot_be_seen_is_refused_by_name_with_what_is_possible(unchecked):
    pictures = torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match=r"this CNN ran without any attention .* can be recorded"):
        look.at(CNN(CNNConfig()), pictures)
    model = GPT(GPTConfig(vocab_size=10, dim=32, layers=1, heads=4))
    with pytest.raises(
        ValueError, match="compiled module does not show its operations; give the module that was passed"
    ):
        look.at(torch.compile(model, backend="eager"), torch.tensor([[1, 2]]))

    @torch.library.custom_op("look_tests::swift_attention", mutates_args=())
    def swift_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v

    class Opaque(nn.Module):
        def forward(self, x):
            return swift_attention(x, x, x)

    with pytest.raises(ValueError, match=r"look_tests::swift_attention.*use the model's eager"):
        look.at(Opaque(), torch.randn(1, 4, 8))


def test_looking_leaves_the_model_as_it_was(unchecked):
    model = GPT(GPTConfig(vocab_size=10, dim=32, layers=2, heads=4, dropout=0.5)).train()
    tokens = torch.randint(0, 10, (1, 8))
    model.blocks[1].eval()
    before = [module.training for module in model.modules()]
    first, second = look.at(model, tokens), look.at(model, tokens)
    assert torch.equal(first.weights(1), second.weights(1)), "dropout is off while looking"
    look.sweep(model, tokens), look.lens(model, tokens), look.heads(model, tokens)
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
