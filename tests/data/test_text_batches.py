"""Text batches: no token is lost, no text sees another, and every prediction counts exactly once in the loss."""

import itertools
import math
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared

from qkv.checkpoints.loading import load_tokenizer as tokenizer_of
from qkv.data.batches import generator_for
from qkv.data.files import read_lines, read_text
from qkv.data.text.language_modeling import TextWindows, read_texts
from qkv.data.text.question_answering import question_examples, question_prompt, read_questions
from qkv.data.text.sequence_batches import (
    Example,
    FixedExamples,
    SequenceBatches,
    bucket_by_length,
    document_examples,
    pack_sequences,
)
from qkv.data.text.span_corruption import (
    SpanCorruption,
    SpanCorruptionExamples,
    choose_spans,
    corrupt,
    sample_spans,
    span_tokenizer,
)
from qkv.data.text.tokenizers import bpe_tokenizer, character_tokenizer, decode, encode, encode_all, serialize_tokenizer
from qkv.models import GPT, GPTConfig

CORPUS = ["the cat sat on the mat.", "a naïve café — 雪!", "tabs\tand\nlines\r\nstay"]


@given(st.text(max_size=60))
@settings(max_examples=25, deadline=None)
def test_bpe_tokenizer_decodes_any_text_it_encoded(text):
    assert decode(BPE, encode(BPE, text)) == text


BPE = bpe_tokenizer(CORPUS * 5, vocab_size=300)


def test_character_tokenizer_decodes_and_names_unknown_characters(tmp_path):
    tokenizer = character_tokenizer(CORPUS)
    for text in CORPUS:
        ids = encode(tokenizer, text)
        assert len(ids) == len(text) and decode(tokenizer, ids) == text
    with pytest.raises(
        ValueError, match=r"notes.txt, line 2: the characters 'Q', 'u', 'k' \(the first at position 5\) are not in"
    ):
        encode_all(tokenizer, ["the cat", "the Quick"], "notes.txt")


def test_bpe_tokenizer_is_deterministic_and_compresses():
    lines = ["low lower lowest newer wider"] * 50
    one, other = bpe_tokenizer(lines, 290), bpe_tokenizer(lines, 290)
    assert one.to_str() == other.to_str() and one.get_vocab_size() <= 290
    assert len(encode(one, lines[0])) < len(lines[0]) / 2
    with pytest.raises(ValueError, match="vocab_size must be at least 259"):
        bpe_tokenizer(lines, 100)


@pytest.mark.parametrize("tokenizer", [BPE, character_tokenizer(CORPUS)])
def test_serialize_tokenizer_saves_a_tokenizer_with_its_model(tokenizer, tmp_path):
    model = GPT(GPTConfig(vocab_size=300, dim=8, layers=1, heads=2))
    model.extra_files["tokenizer.json"] = serialize_tokenizer(tokenizer)
    model.save(tmp_path / "model")
    back = tokenizer_of(tmp_path / "model")
    assert back.encode(CORPUS[1]).ids == encode(tokenizer, CORPUS[1]).tolist()
    assert back.decode(back.encode(CORPUS[1]).ids) == CORPUS[1]


def test_read_texts_cuts_each_file_once(tmp_path):
    (tmp_path / "b.txt").write_text("".join(f"line {i}\n" for i in range(100)), encoding="utf-8")
    (tmp_path / "a.txt").write_text("x" * 50, encoding="utf-8")
    head, tail = read_texts(tmp_path, 0.2)
    (a_head, b_head), (a_tail, b_tail) = head.split("\n", 1), tail.split("\n", 1)
    assert a_head + a_tail == "x" * 50 and len(a_tail) == 10
    assert b_head + b_tail == (tmp_path / "b.txt").read_text(encoding="utf-8") and b_tail.startswith("line 8")


@pytest.mark.parametrize(("n", "length", "rows"), [(100, 8, 3), (17, 8, 4), (9, 8, 1), (50, 1, 7)])
def test_text_windows_in_order_predict_every_token_but_the_first_once(n, length, rows):
    windows = TextWindows(torch.arange(n), length, rows, shuffle=False)
    scored = []
    for index in range(windows.num_batches(0)):
        batch = windows.batch(0, index)
        assert (batch["targets"] - batch["tokens"])[batch["loss_mask"]].eq(1).all()
        scored += batch["targets"][batch["loss_mask"]].tolist()
    assert scored == list(range(1, n))


def test_text_windows_shuffled_never_repeat_a_target_and_start_elsewhere_each_epoch():
    windows = TextWindows(torch.arange(103), 8, 3, seed=5)
    starts = set()
    for epoch in range(6):
        batches = [windows.batch(epoch, i) for i in range(windows.num_batches(epoch))]
        targets = torch.cat([b["targets"].flatten() for b in batches])
        assert all(b["loss_mask"].all() for b in batches) and len(targets.unique()) == len(targets) >= 88
        assert all(((b["targets"] - b["tokens"]) == 1).all() for b in batches)
        starts.add(int(torch.cat([b["tokens"][:, 0] for b in batches]).min()))
    assert len(starts) > 2
    with pytest.raises(ValueError, match="the text has 8 tokens"):
        TextWindows(torch.arange(8), 8, 1)


def numbered(lengths):
    """Texts whose tokens are all different."""
    start, examples = 1, []
    for n in lengths:
        examples.append(Example(torch.arange(start, start + n), torch.ones(n, dtype=torch.bool)))
        start += n
    return FixedExamples(examples)


LENGTHS = [5, 2, 9, 9, 3, 7, 4, 4, 8, 2, 6]


@pytest.mark.parametrize("layout", ["padded", "by-length", "packed"])
@pytest.mark.parametrize("budget", [{"batch_size": 3}, {"max_tokens": 20}])
def test_sequence_batches_predict_every_token_of_every_text_once_in_each_layout(layout, budget):
    batches = SequenceBatches(numbered(LENGTHS), max_length=10, layout=layout, seed=2, **budget)
    twin = pickle.loads(pickle.dumps(batches))
    for epoch in range(2):
        steps, places, used = [], 0, 0
        for index in range(batches.num_batches(epoch)):
            batch, again = batches.batch(epoch, index), twin.batch(epoch, index)
            assert all(torch.equal(batch[k], again[k]) for k in batch)
            assert batch["tokens"].shape[1] <= 9 and (batch["tokens"].shape[0] <= 3 or "max_tokens" in budget)
            if layout == "by-length" and "max_tokens" in budget:
                assert batch["tokens"].numel() <= 20
            scored = batch["loss_mask"]
            assert (batch["targets"] - batch["tokens"])[scored].eq(1).all()
            steps += batch["targets"][scored].tolist()
            places, used = places + scored.numel(), used + int(scored.sum())
            assert batch["tokens"][~scored].eq(0).all()
        assert len(steps) == len(set(steps)) == sum(n - 1 for n in LENGTHS)
        assert batches.padding_fraction(epoch) == pytest.approx(1 - used / places)


def test_packed_sequence_batches_number_their_texts_and_a_gpt_keeps_them_apart():
    examples = numbered(LENGTHS)
    batch = SequenceBatches(examples, max_length=10, row_length=20, batch_size=4, layout="packed").batch(0, 0)
    assert batch["tokens"].shape[1] == 20 and batch["documents"].max() > 0
    assert torch.equal(batch["documents"] >= 0, batch["loss_mask"])
    model = GPT(GPTConfig(vocab_size=70, max_length=9, dim=16, layers=2, heads=2)).double().eval()
    with torch.no_grad():
        together = model(batch["tokens"], documents=batch["documents"])
        for example in examples.examples:
            row = (batch["tokens"] == example.tokens[0]).nonzero()
            if len(row):
                r, start = row[0].tolist()
                alone = model(example.tokens[None, :-1])[0]
                assert (together[r, start : start + len(alone)] - alone).abs().max() < 1e-10


def test_bucket_by_length_and_pack_sequences_leave_little_padding():
    generator = generator_for(0)
    lengths = torch.randint(2, 90, (3000,), generator=generator)
    groups = bucket_by_length(lengths[:, None], batch_size=32, seed=1)
    assert sorted(i for group in groups for i in group) == list(range(3000))
    assert groups != bucket_by_length(lengths[:, None], batch_size=32, seed=1, epoch=1)
    padded = sum(len(g) * int(lengths[g].max()) for g in groups)
    assert 1 - int(lengths.sum()) / padded < 0.03
    rows = pack_sequences(lengths, 128, seed=1)
    assert sorted(i for row in rows for i in row) == list(range(3000))
    assert all(int(lengths[row].sum()) <= 128 for row in rows)
    assert 1 - int(lengths.sum()) / (128 * len(rows)) < 0.05
    with pytest.raises(ValueError, match="give one of batch_size and max_tokens"):
        bucket_by_length(lengths[:, None], batch_size=3, max_tokens=5)
    with pytest.raises(ValueError, match="does not fit into rows of 50"):
        pack_sequences(lengths, 50)


def test_document_examples_cut_long_documents_so_that_each_token_is_predicted_once():
    documents = [torch.arange(100, 125), torch.arange(7), torch.arange(1)]
    pieces = document_examples(documents, 8)
    steps = [step for piece in pieces.examples for step in piece.tokens[1:].tolist()]
    assert steps == [*range(101, 125), *range(1, 7)]


# span corruption


def test_corrupt_moves_spans_behind_masks_to_the_end():
    tokens, missing = corrupt(torch.tensor([5, 6, 7, 8, 9]), [(2, 4)], mask_id=1)
    assert tokens.tolist() == [5, 6, 1, 9, 1, 7, 8]
    assert missing.tolist() == [False] * 5 + [True] * 2
    tokens, missing = corrupt(torch.arange(10, 20), [(1, 3), (6, 7)], mask_id=1)
    assert tokens.tolist() == [10, 1, 13, 14, 15, 1, 17, 18, 19, 1, 11, 12, 1, 16]
    assert tokens[missing].tolist() == [11, 12, 16]


def restored(tokens, mark, spans):
    """The document, put together again from its corrupted form."""
    marks = (tokens == mark).nonzero().flatten().tolist()
    edges = [-1, *marks, len(tokens)]
    parts = [tokens[a + 1 : b].tolist() for a, b in itertools.pairwise(edges)]
    kept, gone = parts[: spans + 1], parts[spans + 1 :]
    return [x for k, part in enumerate(kept) for x in (*part, *(gone[k] if k < spans else []))]


def test_sequence_batches_refuse_a_text_that_could_get_too_long_in_a_later_epoch():
    documents = [torch.arange(2, 140)]
    short = next(
        examples
        for examples in (SpanCorruptionExamples(documents, 1, seed=seed) for seed in range(50))
        if int(examples.lengths(0).max()) <= 80
    )
    drawn = max(int(short.lengths(epoch).max()) for epoch in range(300))
    assert 80 < drawn <= short.longest == 114
    with pytest.raises(ValueError, match="a text of 114 tokens does not fit into max_length=80"):
        SequenceBatches(short, max_length=80, batch_size=2)


@pytest.mark.parametrize("spans", [1, 2, 4])
@pytest.mark.parametrize("begin", ["start", "random"])
def test_span_corruption_keeps_all_tokens_of_the_part_that_is_cut_out(spans, begin):
    documents = [torch.arange(2, 2 + n) for n in (2, 3, 4, 10, 60, 113, 400)]
    examples = SpanCorruptionExamples(documents, 1, SpanCorruption(num_spans=spans, crop=begin), seed=1)
    starts = set()
    for epoch in range(20):
        kept, lengths = examples.kept(epoch).tolist(), examples.lengths(epoch).tolist()
        for row, document in enumerate(documents):
            example = examples.example(epoch, row)
            count = examples.corruption.spans_for(kept[row])
            assert len(example.tokens) == lengths[row] == kept[row] + 2 * count
            whole = restored(example.tokens, 1, count)
            assert whole == list(range(whole[0], whole[0] + kept[row])) and set(whole) <= set(document.tolist())
            assert begin == "random" or whole[0] == 2
            starts.add(whole[0])
    assert begin == "start" or len(starts) > 10


def test_span_corruption_defaults_are_those_of_cs224n_a5():
    documents = [torch.arange(2, 502)] * 400
    examples = SpanCorruptionExamples(documents, 1, SpanCorruption.for_length(128), seed=0)
    kept = torch.cat([examples.kept(epoch) for epoch in range(20)])
    assert int(kept.min()) == 4 and int(kept.max()) == 112
    assert kept.float().mean() == pytest.approx(58, abs=1.5)
    shares, firsts = [], []
    for row in range(400):
        tokens = examples.example(0, row).tokens.tolist()
        last = len(tokens) - 1 - tokens[::-1].index(1)
        shares.append((len(tokens) - 1 - last) / (len(tokens) - 2))
        firsts.append(tokens.index(1) / (len(tokens) - 2))
    assert sum(shares) / 400 == pytest.approx(0.25, abs=0.02)
    assert sum(firsts) / 400 == pytest.approx(0.375, abs=0.03)  # even over what is not missing
    assert max(len(examples.example(0, row).tokens) for row in range(400)) <= 114


def test_span_corruption_differs_by_epoch_and_repeats_for_the_same_epoch():
    documents = [torch.arange(2, 80)] * 5
    one, other = (SpanCorruptionExamples(documents, 1, seed=3) for _ in range(2))
    drawn = {tuple(one.example(epoch, 0).tokens.tolist()) for epoch in range(10)}
    assert len(drawn) > 8
    assert torch.equal(one.example(4, 2).tokens, other.example(4, 2).tokens)
    assert not torch.equal(one.example(4, 2).tokens, one.example(4, 3).tokens)


def test_salient_spans_are_chosen_with_the_given_probability():
    document = torch.arange(2, 52)
    settings_ = SpanCorruption(min_length=50, max_length=60, salient_prob=0.6, loss_on="missing")
    examples = SpanCorruptionExamples([document] * 300, 1, settings_, salient=[[(10, 14), (30, 37)]] * 300)
    named = Counter()
    for row in range(300):
        example = examples.example(0, row)
        gone = tuple(example.tokens[example.loss_mask].tolist())
        named[gone in (tuple(range(12, 16)), tuple(range(32, 39)))] += 1
    assert named[True] / 300 == pytest.approx(0.6, abs=0.09)
    assert choose_spans([(0, 3), (2, 5)], 2, generator_for(0)) == []


@given(st.integers(2, 200), st.integers(1, 6), st.floats(0.05, 0.9), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_sample_spans_are_apart_and_inside_the_text(kept, spans, share, seed):
    corruption = SpanCorruption(2, 200, num_spans=spans, corruption_rate=share)
    found = sample_spans(kept, corruption, generator_for(seed))
    assert len(found) == corruption.spans_for(kept)
    edges = [0, *(edge for span in found for edge in span), kept]
    assert edges == sorted(edges) and all(begin < stop for begin, stop in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


def test_question_examples_have_a_loss_on_the_answer_and_its_end_only(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("Where was Ada born?\tLondon\nWhere was Bo born?\tRome\n", encoding="utf-8")
    tokenizer = span_tokenizer([path.read_text(encoding="utf-8")])
    examples = question_examples(read_questions(path), tokenizer, 64)
    batch = SequenceBatches(examples, max_length=64, batch_size=2, shuffle=False).batch(0, 0)
    assert batch["tokens"].shape == (2, 63)
    assert decode(tokenizer, batch["targets"][0][batch["loss_mask"][0]]) == "London⁇"
    assert decode(tokenizer, batch["tokens"][0][:20]) == "Where was Ada born?⁇"
    assert torch.equal(question_prompt("Where was Ada born?", tokenizer), batch["tokens"][0][:20])
    a5 = question_examples(read_questions(path), tokenizer, 64, score_mask=True).example(0, 0)
    assert decode(tokenizer, a5.tokens[a5.loss_mask]) == "⁇London⁇"
    with pytest.raises(ValueError, match=r"q.tsv, line 1: question and answer are 27 tokens.*max_length=20"):
        question_examples(read_questions(path), tokenizer, 20)


# on the real birthplaces


def test_birthplaces_have_the_vocabulary_of_cs224n_a5_and_little_padding():
    folder = shared("birthplaces")
    text = read_text(folder / "wiki.txt")
    tokenizer = span_tokenizer([text])
    assert tokenizer.get_vocab_size() == 256
    assert tokenizer.token_to_id("□") == 0 and tokenizer.token_to_id("⁇") == 1
    documents = encode_all(tokenizer, read_lines(folder / "wiki.txt"))
    spans = SpanCorruptionExamples(documents, 1)
    questions = question_examples(read_questions(folder / "birth_places_train.tsv"), tokenizer, 128)
    assert len(documents) == 2937 and len(questions) == 2000
    for examples, options in (
        (spans, {"layout": "packed", "batch_size": 64}),
        (spans, {"layout": "by-length", "batch_size": 128}),
        (questions, {"layout": "packed", "batch_size": 16, "row_length": 512}),
        (questions, {"layout": "by-length", "batch_size": 128}),
    ):
        for epoch in range(2):
            assert SequenceBatches(examples, max_length=128, **options).padding_fraction(epoch) < 0.05, options
    asked = read_questions(folder / "birth_test_inputs.tsv", answers=False)
    assert len(asked) == 437 and asked[0].answer is None


def test_the_unigram_floor_of_a_text_is_what_its_windows_show():
    ids = encode(character_tokenizer(CORPUS), CORPUS[0] * 20)
    counts = torch.bincount(ids).double()
    entropy = -(counts / counts.sum() * (counts / counts.sum()).clamp(min=1e-9).log()).sum()
    windows = TextWindows(ids, 16, 4, shuffle=False)
    seen = torch.cat(
        [windows.batch(0, i)["targets"][windows.batch(0, i)["loss_mask"]] for i in range(windows.num_batches(0))]
    )
    shares = torch.bincount(seen).double() / len(seen)
    assert -(shares * shares.clamp(min=1e-9).log()).sum() == pytest.approx(float(entropy), abs=0.01)
    assert entropy < math.log(len(counts))
