"""Reading comprehension with the document in the prompt, question templates, and mixed batches."""

import pytest
import torch
from shared_data import shared

from qkv.data.batches import MixedBatches
from qkv.data.text.biographies import make_biographies
from qkv.data.text.question_answering import (
    PLACE_PATTERNS,
    DocumentQuestion,
    QuestionAnswer,
    ReadingComprehensionExamples,
    document_subject,
    find_birthplace,
    find_capitalized,
    find_names,
    infer_template,
    read_questions,
    reading_prompt,
    replace_tokens,
)
from qkv.data.text.sequence_batches import SequenceBatches, document_examples
from qkv.data.text.tokenizers import bpe_tokenizer, decode, encode

MASK = 1


@pytest.fixture(scope="module")
def biographies():
    made = make_biographies(60, lines=1, seed=3)
    return made, bpe_tokenizer(made.documents, 600, ("□", "⁇"), add_prefix_space=True)


def reading_examples(biographies, **settings):
    made, tokenizer = biographies
    items = [
        DocumentQuestion(
            encode(tokenizer, document), encode(tokenizer, question.question), encode(tokenizer, question.answer)
        )
        for document, question in zip(made.documents, made.train, strict=False)
    ]
    distractors = [encode(tokenizer, place) for place in ("Atlantis", "Avalon", "New Utopia")]
    return ReadingComprehensionExamples(
        items, distractors, MASK, **{"max_length": 128, "max_answer_length": 12, "seed": 2, **settings}
    )


def parts(example, tokenizer):
    """Document, question and answer as texts."""
    marks = (example.tokens == MASK).nonzero()[:, 0].tolist()
    pieces = [example.tokens[: marks[0]], example.tokens[marks[0] + 1 : marks[1]], example.tokens[marks[1] + 1 : -1]]
    return [decode(tokenizer, piece) for piece in pieces]


def test_bpe_with_prefix_space_gives_a_word_the_same_tokens_everywhere(biographies):
    made, tokenizer = biographies
    for question in made.train:
        place = encode(tokenizer, question.answer)
        document = next(d for d in made.documents if d.startswith(document_subject(d)) and question.answer in d)
        assert decode(tokenizer, place) == question.answer
        assert decode(tokenizer, encode(tokenizer, document)) == document
        if f" {question.answer}" in document:
            assert len(replace_tokens(encode(tokenizer, document), place, place.new_empty(0))) < len(
                encode(tokenizer, document)
            )


def test_reading_comprehension_without_swaps_keeps_documents_questions_and_answers(biographies):
    made, tokenizer = biographies
    examples = reading_examples(biographies)
    for row, (document, question) in enumerate(zip(made.documents, made.train, strict=False)):
        assert parts(examples.example(0, row), tokenizer) == [document, question.question, question.answer]


def test_reading_comprehension_swaps_the_answer_in_document_and_answer(biographies):
    made, tokenizer = biographies
    examples = reading_examples(biographies, swap_prob=0.7, repeats=3)
    assert len(examples) == 3 * len(made.train)
    swaps = 0
    for row in range(len(examples)):
        document, _, answer = parts(examples.example(1, row), tokenizer)
        true, original = made.train[row % len(made.train)].answer, made.documents[row % len(made.train)]
        assert answer in document
        if answer != true:
            swaps += 1
            assert document == original.replace(true, answer)
    assert 0.55 < swaps / len(examples) < 0.85  # 0.7 of 108, within three standard deviations


def test_reading_comprehension_is_a_function_of_epoch_and_row_and_cuts_long_documents(biographies):
    one, other = reading_examples(biographies, swap_prob=0.5), reading_examples(biographies, swap_prob=0.5)
    assert one.lengths(4).tolist() == other.lengths(4).tolist()
    other.example(7, 3)
    assert torch.equal(one.example(4, 5).tokens, other.example(4, 5).tokens)
    short = reading_examples(biographies, swap_prob=0.5, max_length=40)
    assert int(short.lengths(0).max()) <= 40
    for item in short.items:
        asked = reading_prompt(item, MASK, 40, 12)
        assert len(asked) <= 28
        assert asked[-1] == MASK
        assert torch.equal(asked[-1 - len(item.question) : -1], item.question)


def test_infer_template_needs_questions_that_begin_and_end_alike():
    asked = [QuestionAnswer(text, None, "") for text in ("Where was Ada born?", "Where is Rome?")]
    with pytest.raises(ValueError, match="must begin and end with the same words"):
        infer_template(asked)
    template = infer_template(
        [QuestionAnswer(f"Where was {name} born?", None, "") for name in ("Anna Bo", "Anna Botha", "Anton Bo")]
    )
    assert template.fill("Zed") == "Where was Zed born?"
    assert template.extract_name("Where was A. B. Zed born?") == "A. B. Zed"


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("Ada Lovelace. Born in London, she", "Ada Lovelace"),
        ("George H. W. Bush. He was", "George H. W. Bush"),
        ("J.C. Patterson. He was", "J.C. Patterson"),
        ("Otis Jr. Smith. He was", "Otis Jr. Smith"),
        ("Wang He. Wang was born", "Wang He"),
    ],
)
def test_document_subject_is_the_name_a_document_begins_with(document, name):
    assert document_subject(document) == name


def test_find_capitalized_finds_words_with_accents_and_hyphens():
    found = find_capitalized(["Born in Århus and Baden-Baden, then St Johnʼs in Évora 1908 ."])
    assert {"Born", "Århus", "Baden-Baden", "Évora"} <= set(found)
    assert not any(run[0].islower() or run[0].isdigit() for run in found)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("John Stephen. Born in Glasgow, Stephen became a welder's apprentice .", "Glasgow"),
        ("Al Smith. Al Smith (born in May 1920 in the United States) is a painter .", "United States"),
        ("Al Smith. Al Smith (3 March 1822 Rome -- 28 December 1883 London) was a painter .", "Rome"),
        ("Al Smith. Al Smith is a painter from Leeds .", "Leeds"),
        ("Al Smith. He paints .", ""),
    ],
)
def test_find_birthplace_tries_one_pattern_after_the_other(document, place):
    assert find_birthplace(document) == place


def test_regular_expressions_answer_most_dev_questions_from_the_right_document():
    """The control for reading comprehension: 73.6 % with "born in" alone was measured with another implementation."""
    folder = shared("birthplaces")
    documents = {}
    for line in (folder / "wiki.txt").read_text(encoding="utf-8").splitlines():
        documents.setdefault(document_subject(line), line)
    questions = read_questions(folder / "birth_places_train.tsv")
    about = [documents.get(q.question.removeprefix("Where was ").removesuffix(" born?"), "") for q in questions]
    for patterns, share in ((PLACE_PATTERNS[:1], 0.722), (PLACE_PATTERNS, 0.874)):
        right = sum(find_birthplace(d, patterns) == q.answer for d, q in zip(about, questions, strict=True))
        assert right / len(questions) == pytest.approx(share, abs=0.001)


def test_find_names_are_the_capitalized_words_inside_sentences():
    documents = ["Jo Li. Jo Li (26 May 1840 Cork, Ohio) lived in New York City with Al . She died in Rome ."]
    tokenizer = bpe_tokenizer(documents, 300, add_prefix_space=True)
    tokens = encode(tokenizer, documents[0])
    (spans,) = find_names(tokenizer, documents)
    found = [decode(tokenizer, tokens[begin:end]).strip() for begin, end in spans]
    assert found == ["May", "Cork", "Ohio", "New York City", "Al", "Rome"]


def test_mixed_batches_hold_every_batch_of_each_source_once_per_epoch_in_another_order():
    documents = [torch.arange(4) + 10 * number for number in range(11)]
    few = SequenceBatches(document_examples(documents[:3], 4), max_length=4, batch_size=1)
    many = SequenceBatches(document_examples(documents[3:], 4), max_length=4, batch_size=2)
    mixture = MixedBatches([few, many], seed=5)
    assert mixture.num_batches(0) == 3 + 4
    read = [
        sorted(first for index in range(7) for first in mixture.batch(epoch, index)["tokens"][:, 0].tolist())
        for epoch in (0, 1)
    ]
    assert read[0] == read[1] == [10 * number for number in range(11)]
    assert mixture.plan(0) != mixture.plan(1)
    assert MixedBatches([few, many], seed=5).plan(1) == mixture.plan(1)
