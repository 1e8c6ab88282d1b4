"""Text as batches: nothing lost, nothing seen that should not be, every step scored as often as it should be."""

import itertools
import math
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared

from qkv.checkpoints.tokens import tokenizer as tokenizer_of
from qkv.data.batches import generator_for
from qkv.data.lengths import by_length, packed
from qkv.data.questions import prompt, question_examples, read_questions
from qkv.data.reading import read_lines, read_text
from qkv.data.sequences import Example, FixedExamples, SequenceBatches, whole_documents
from qkv.data.spans import Corruption, SpanExamples, chosen, corrupted, drawn_spans, span_tokenizer
from qkv.data.text import TextWindows, read_texts
from qkv.data.tokens import all_ids, as_file, bpe_tokenizer, character_tokenizer, to_ids, to_text
from qkv.models import GPT, GPTConfig

CORPUS = ["the cat sat on the mat.", "a naïve café — 雪!", "tabs\tand\nlines\r\nstay"]


@given(st.text(max_size=60))
@settings(max_examples=25, deadline=None)
def test_any_text_comes_back_from_bpe(text):
    assert to_text(BPE, to_ids(BPE, text)) == text


BPE = bpe_tokenizer(CORPUS * 5, vocab=300)


def test_characters_come_back_and_unknown_ones_are_named(tmp_path):
    tokenizer = character_tokenizer(CORPUS)
    for text in CORPUS:
        ids = to_ids(tokenizer, text)
        assert len(ids) == len(text) and to_text(tokenizer, ids) == text
    with pytest.raises(ValueError, match=r"notes.txt, line 2: the character 'Q' \(place 5\) did not occur"):
        all_ids(tokenizer, ["the cat", "the Quick"], "notes.txt")


def test_training_bpe_twice_gives_the_same_tokens_and_they_are_shorter():
    lines = ["low lower lowest newer wider"] * 50
    one, other = bpe_tokenizer(lines, 290), bpe_tokenizer(lines, 290)
    assert one.to_str() == other.to_str() and one.get_vocab_size() <= 290
    assert len(to_ids(one, lines[0])) < len(lines[0]) / 2
    with pytest.raises(ValueError, match="begins with 259 tokens"):
        bpe_tokenizer(lines, 100)


@pytest.mark.parametrize("tokenizer", [BPE, character_tokenizer(CORPUS)])
def test_a_tokenizer_travels_with_its_model(tokenizer, tmp_path):
    model = GPT(GPTConfig(vocab_size=300, dim=8, layers=1, heads=2))
    model.files["tokenizer.json"] = as_file(tokenizer)
    model.save(tmp_path / "model")
    back = tokenizer_of(tmp_path / "model")
    assert back.encode(CORPUS[1]).ids == to_ids(tokenizer, CORPUS[1]).tolist()
    assert back.decode(back.encode(CORPUS[1]).ids) == CORPUS[1]


def test_texts_are_cut_once_and_whole_files_come_back(tmp_path):
    (tmp_path / "b.txt").write_text("".join(f"line {i}\n" for i in range(100)), encoding="utf-8")
    (tmp_path / "a.txt").write_text("x" * 50, encoding="utf-8")
    head, tail = read_texts(tmp_path, 0.2)
    (a_head, b_head), (a_tail, b_tail) = head.split("\n", 1), tail.split("\n", 1)
    assert a_head + a_tail == "x" * 50 and len(a_tail) == 10
    assert b_head + b_tail == (tmp_path / "b.txt").read_text(encoding="utf-8") and b_tail.startswith("line 8")


@pytest.mark.parametrize(("n", "length", "rows"), [(100, 8, 3), (17, 8, 4), (9, 8, 1), (50, 1, 7)])
def test_windows_in_order_score_every_token_but_the_first_once(n, length, rows):
    windows = TextWindows(torch.arange(n), length, rows, shuffled=False)
    scored = []
    for index in range(windows.count(0)):
        batch = windows.batch(0, index)
        assert (batch["targets"] - batch["tokens"])[batch["scored"]].eq(1).all()
        scored += batch["targets"][batch["scored"]].tolist()
    assert scored == list(range(1, n))


def test_shuffled_windows_never_repeat_a_target_and_begin_elsewhere_each_epoch():
    windows = TextWindows(torch.arange(103), 8, 3, seed=5)
    starts = set()
    for epoch in range(6):
        batches = [windows.batch(epoch, i) for i in range(windows.count(epoch))]
        targets = torch.cat([b["targets"].flatten() for b in batches])
        assert all(b["scored"].all() for b in batches) and len(targets.unique()) == len(targets) >= 88
        assert all(((b["targets"] - b["tokens"]) == 1).all() for b in batches)
        starts.add(int(torch.cat([b["tokens"][:, 0] for b in batches]).min()))
    assert len(starts) > 2
    with pytest.raises(ValueError, match="this text has 8 tokens"):
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
@pytest.mark.parametrize("budget", [{"rows": 3}, {"tokens": 20}])
def test_each_layout_scores_every_step_of_every_text_once(layout, budget):
    batches = SequenceBatches(numbered(LENGTHS), length=10, layout=layout, seed=2, **budget)
    twin = pickle.loads(pickle.dumps(batches))
    for epoch in range(2):
        steps, places, used = [], 0, 0
        for index in range(batches.count(epoch)):
            batch, again = batches.batch(epoch, index), twin.batch(epoch, index)
            assert all(torch.equal(batch[k], again[k]) for k in batch)
            assert batch["tokens"].shape[1] <= 9 and (batch["tokens"].shape[0] <= 3 or "tokens" in budget)
            if layout == "by-length" and "tokens" in budget:
                assert batch["tokens"].numel() <= 20
            scored = batch["scored"]
            assert (batch["targets"] - batch["tokens"])[scored].eq(1).all()
            steps += batch["targets"][scored].tolist()
            places, used = places + scored.numel(), used + int(scored.sum())
            assert batch["tokens"][~scored].eq(0).all()
        assert len(steps) == len(set(steps)) == sum(n - 1 for n in LENGTHS)
        assert batches.padding(epoch) == pytest.approx(1 - used / places)


def test_packed_rows_say_which_text_each_token_is_of_and_a_model_keeps_them_apart():
    examples = numbered(LENGTHS)
    batch = SequenceBatches(examples, length=10, width=20, rows=4, layout="packed").batch(0, 0)
    assert batch["tokens"].shape[1] == 20 and batch["documents"].max() > 0
    assert torch.equal(batch["documents"] >= 0, batch["scored"])
    model = GPT(GPTConfig(vocab_size=70, max_length=9, dim=16, layers=2, heads=2)).double().eval()
    with torch.no_grad():
        together = model(batch["tokens"], documents=batch["documents"])
        for example in examples.examples:
            row = (batch["tokens"] == example.tokens[0]).nonzero()
            if len(row):
                r, start = row[0].tolist()
                alone = model(example.tokens[None, :-1])[0]
                assert (together[r, start : start + len(alone)] - alone).abs().max() < 1e-10


def test_batches_hold_like_lengths_and_rows_are_filled():
    generator = generator_for(0)
    lengths = torch.randint(2, 90, (3000,), generator=generator)
    groups = by_length(lengths[:, None], rows=32, seed=1)
    assert sorted(i for group in groups for i in group) == list(range(3000))
    assert groups != by_length(lengths[:, None], rows=32, seed=1, epoch=1)
    padded = sum(len(g) * int(lengths[g].max()) for g in groups)
    assert 1 - int(lengths.sum()) / padded < 0.03
    rows = packed(lengths, 128, seed=1)
    assert sorted(i for row in rows for i in row) == list(range(3000))
    assert all(int(lengths[row].sum()) <= 128 for row in rows)
    assert 1 - int(lengths.sum()) / (128 * len(rows)) < 0.05
    with pytest.raises(ValueError, match="one of the two"):
        by_length(lengths[:, None], rows=3, tokens=5)
    with pytest.raises(ValueError, match="does not fit into rows of 50"):
        packed(lengths, 50)


def test_long_documents_are_cut_so_that_each_step_is_predicted_once():
    documents = [torch.arange(100, 125), torch.arange(7), torch.arange(1)]
    pieces = whole_documents(documents, 8)
    steps = [step for piece in pieces.examples for step in piece.tokens[1:].tolist()]
    assert steps == [*range(101, 125), *range(1, 7)]


# span corruption


def test_one_span_is_prefix_mark_suffix_mark_missing():
    tokens, missing = corrupted(torch.tensor([5, 6, 7, 8, 9]), [(2, 4)], mark=1)
    assert tokens.tolist() == [5, 6, 1, 9, 1, 7, 8]
    assert missing.tolist() == [False] * 5 + [True] * 2
    tokens, missing = corrupted(torch.arange(10, 20), [(1, 3), (6, 7)], mark=1)
    assert tokens.tolist() == [10, 1, 13, 14, 15, 1, 17, 18, 19, 1, 11, 12, 1, 16]
    assert tokens[missing].tolist() == [11, 12, 16]


def restored(tokens, mark, spans):
    """The document, put together again from its corrupted form."""
    marks = (tokens == mark).nonzero().flatten().tolist()
    edges = [-1, *marks, len(tokens)]
    parts = [tokens[a + 1 : b].tolist() for a, b in itertools.pairwise(edges)]
    kept, gone = parts[: spans + 1], parts[spans + 1 :]
    return [x for k, part in enumerate(kept) for x in (*part, *(gone[k] if k < spans else []))]


def test_a_text_that_could_get_too_long_in_a_later_epoch_is_refused_at_once():
    documents = [torch.arange(2, 140)]
    short = next(
        examples
        for examples in (SpanExamples(documents, 1, seed=seed) for seed in range(50))
        if int(examples.lengths(0).max()) <= 80
    )
    drawn = max(int(short.lengths(epoch).max()) for epoch in range(300))
    assert 80 < drawn <= short.longest == 114
    with pytest.raises(ValueError, match="a text of 114 tokens does not fit into length=80"):
        SequenceBatches(short, length=80, rows=2)


@pytest.mark.parametrize("spans", [1, 2, 4])
@pytest.mark.parametrize("begin", ["start", "anywhere"])
def test_corrupted_documents_hold_all_of_the_part_that_was_kept(spans, begin):
    documents = [torch.arange(2, 2 + n) for n in (2, 3, 4, 10, 60, 113, 400)]
    examples = SpanExamples(documents, 1, Corruption(spans=spans, begin=begin), seed=1)
    starts = set()
    for epoch in range(20):
        kept, lengths = examples.kept(epoch).tolist(), examples.lengths(epoch).tolist()
        for row, document in enumerate(documents):
            example = examples.example(epoch, row)
            count = examples.corruption.spans_of(kept[row])
            assert len(example.tokens) == lengths[row] == kept[row] + 2 * count
            whole = restored(example.tokens, 1, count)
            assert whole == list(range(whole[0], whole[0] + kept[row])) and set(whole) <= set(document.tolist())
            assert begin == "anywhere" or whole[0] == 2
            starts.add(whole[0])
    assert begin == "start" or len(starts) > 10


def test_the_courses_numbers_hold_cut_at_4_to_112_and_a_quarter_missing():
    documents = [torch.arange(2, 502)] * 400
    examples = SpanExamples(documents, 1, Corruption.for_length(128), seed=0)
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


def test_every_epoch_is_corrupted_afresh_and_the_same_epoch_alike():
    documents = [torch.arange(2, 80)] * 5
    one, other = (SpanExamples(documents, 1, seed=3) for _ in range(2))
    drawn = {tuple(one.example(epoch, 0).tokens.tolist()) for epoch in range(10)}
    assert len(drawn) > 8
    assert torch.equal(one.example(4, 2).tokens, other.example(4, 2).tokens)
    assert not torch.equal(one.example(4, 2).tokens, one.example(4, 3).tokens)


def test_salient_spans_are_asked_for_as_often_as_said():
    document = torch.arange(2, 52)
    settings_ = Corruption(shortest=50, longest=60, salient=0.6, score="missing")
    examples = SpanExamples([document] * 300, 1, settings_, salient=[[(10, 14), (30, 37)]] * 300)
    named = Counter()
    for row in range(300):
        example = examples.example(0, row)
        gone = tuple(example.tokens[example.scored].tolist())
        named[gone in (tuple(range(12, 16)), tuple(range(32, 39)))] += 1
    assert named[True] / 300 == pytest.approx(0.6, abs=0.09)
    assert chosen([(0, 3), (2, 5)], 2, generator_for(0)) == []


@given(st.integers(2, 200), st.integers(1, 6), st.floats(0.05, 0.9), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_spans_lie_apart_inside_the_text(kept, spans, share, seed):
    corruption = Corruption(2, 200, spans=spans, share=share)
    found = drawn_spans(kept, corruption, generator_for(seed))
    assert len(found) == corruption.spans_of(kept)
    edges = [0, *(edge for span in found for edge in span), kept]
    assert edges == sorted(edges) and all(begin < stop for begin, stop in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


def test_questions_score_the_answer_and_its_end_only(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("Where was Ada born?\tLondon\nWhere was Bo born?\tRome\n", encoding="utf-8")
    tokenizer = span_tokenizer([path.read_text(encoding="utf-8")])
    examples = question_examples(read_questions(path), tokenizer, 64)
    batch = SequenceBatches(examples, length=64, rows=2, shuffled=False).batch(0, 0)
    assert batch["tokens"].shape == (2, 63)
    assert to_text(tokenizer, batch["targets"][0][batch["scored"][0]]) == "London⁇"
    assert to_text(tokenizer, batch["tokens"][0][:20]) == "Where was Ada born?⁇"
    assert torch.equal(prompt("Where was Ada born?", tokenizer), batch["tokens"][0][:20])
    course = question_examples(read_questions(path), tokenizer, 64, score_mark=True).example(0, 0)
    assert to_text(tokenizer, course.tokens[course.scored]) == "⁇London⁇"
    with pytest.raises(ValueError, match=r"q.tsv, line 1: question and answer are 27 tokens.*length=20"):
        question_examples(read_questions(path), tokenizer, 20)


# on the real birthplaces


def test_birthplaces_have_the_courses_vocabulary_and_little_padding():
    folder = shared("birthplaces")
    text = read_text(folder / "wiki.txt")
    tokenizer = span_tokenizer([text])
    assert tokenizer.get_vocab_size() == 256
    assert tokenizer.token_to_id("□") == 0 and tokenizer.token_to_id("⁇") == 1
    documents = all_ids(tokenizer, read_lines(folder / "wiki.txt"))
    spans = SpanExamples(documents, 1)
    questions = question_examples(read_questions(folder / "birth_places_train.tsv"), tokenizer, 128)
    assert len(documents) == 2937 and len(questions) == 2000
    for examples, options in (
        (spans, {"layout": "packed", "rows": 64}),
        (spans, {"layout": "by-length", "rows": 128}),
        (questions, {"layout": "packed", "rows": 16, "width": 512}),
        (questions, {"layout": "by-length", "rows": 128}),
    ):
        for epoch in range(2):
            assert SequenceBatches(examples, length=128, **options).padding(epoch) < 0.05, options
    asked = read_questions(folder / "birth_test_inputs.tsv", answers=False)
    assert len(asked) == 437 and asked[0].answer is None


def test_the_unigram_floor_of_a_text_is_what_its_windows_show():
    ids = to_ids(character_tokenizer(CORPUS), CORPUS[0] * 20)
    counts = torch.bincount(ids).double()
    entropy = -(counts / counts.sum() * (counts / counts.sum()).clamp(min=1e-9).log()).sum()
    windows = TextWindows(ids, 16, 4, shuffled=False)
    seen = torch.cat([windows.batch(0, i)["targets"][windows.batch(0, i)["scored"]] for i in range(windows.count(0))])
    shares = torch.bincount(seen).double() / len(seen)
    assert -(shares * shares.clamp(min=1e-9).log()).sum() == pytest.approx(float(entropy), abs=0.01)
    assert entropy < math.log(len(counts))
