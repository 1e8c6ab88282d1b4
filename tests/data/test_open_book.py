"""Questions with the document at hand, and batches of several kinds in one stream."""

import pytest
import torch

from qkv.data.biographies import biographies
from qkv.data.mixture import Mixture
from qkv.data.open_book import OpenBook, Page, capitalised, form_of, prompt, swapped, title
from qkv.data.questions import Question
from qkv.data.sequences import SequenceBatches, whole_documents
from qkv.data.tokens import bpe_tokenizer, to_ids, to_text

MARK = 1


@pytest.fixture(scope="module")
def told():
    made = biographies(60, lines=1, seed=3)
    return made, bpe_tokenizer(made.documents, 600, ("□", "⁇"), spaced=True)


def book(told, **settings):
    made, tokenizer = told
    pages = [
        Page(to_ids(tokenizer, document), to_ids(tokenizer, question.question), to_ids(tokenizer, question.answer))
        for document, question in zip(made.documents, made.train, strict=False)
    ]
    others = [to_ids(tokenizer, place) for place in ("Atlantis", "Avalon", "New Utopia")]
    return OpenBook(pages, others, MARK, **{"length": 128, "room": 12, "seed": 2, **settings})


def parts(example, tokenizer):
    """Document, question and answer as texts."""
    marks = (example.tokens == MARK).nonzero()[:, 0].tolist()
    pieces = [example.tokens[: marks[0]], example.tokens[marks[0] + 1 : marks[1]], example.tokens[marks[1] + 1 : -1]]
    return [to_text(tokenizer, piece) for piece in pieces]


def test_a_word_has_the_same_tokens_wherever_it_stands_and_texts_come_back(told):
    made, tokenizer = told
    for question in made.train:
        place = to_ids(tokenizer, question.answer)
        document = next(d for d in made.documents if d.startswith(title(d)) and question.answer in d)
        assert to_text(tokenizer, place) == question.answer
        assert to_text(tokenizer, to_ids(tokenizer, document)) == document
        if f" {question.answer}" in document:
            assert len(swapped(to_ids(tokenizer, document), place, place.new_empty(0))) < len(
                to_ids(tokenizer, document)
            )


def test_without_swaps_an_open_book_holds_the_documents_questions_and_answers_as_they_are(told):
    made, tokenizer = told
    examples = book(told)
    for row, (document, question) in enumerate(zip(made.documents, made.train, strict=False)):
        assert parts(examples.example(0, row), tokenizer) == [document, question.question, question.answer]


def test_a_swapped_place_stands_in_text_and_answer_and_the_old_one_nowhere(told):
    made, tokenizer = told
    examples = book(told, swap=0.7, times=3)
    assert len(examples) == 3 * len(made.train)
    swaps = 0
    for row in range(len(examples)):
        document, _, answer = parts(examples.example(1, row), tokenizer)
        true, original = made.train[row % len(made.train)].answer, made.documents[row % len(made.train)]
        assert answer in document
        if answer != true:
            swaps += 1
            assert document == original.replace(true, answer)
    assert 0.55 < swaps / len(examples) < 0.85  # 0.7 of 108, within three deviations


def test_an_open_book_is_a_function_of_its_place_and_long_documents_are_cut(told):
    one, other = book(told, swap=0.5), book(told, swap=0.5)
    assert one.lengths(4).tolist() == other.lengths(4).tolist()
    other.example(7, 3)
    assert torch.equal(one.example(4, 5).tokens, other.example(4, 5).tokens)
    short = book(told, swap=0.5, length=40)
    assert int(short.lengths(0).max()) <= 40
    for page in short.pages:
        asked = prompt(page, MARK, 40, 12)
        assert len(asked) <= 28
        assert asked[-1] == MARK
        assert torch.equal(asked[-1 - len(page.question) : -1], page.question)


def test_a_form_needs_questions_that_begin_and_end_alike():
    asked = [Question(text, None, "") for text in ("Where was Ada born?", "Where is Rome?")]
    with pytest.raises(ValueError, match="all must begin and end with the same words"):
        form_of(asked)
    form = form_of([Question(f"Where was {name} born?", None, "") for name in ("Anna Bo", "Anna Botha", "Anton Bo")])
    assert form.about("Zed") == "Where was Zed born?"
    assert form.name("Where was A. B. Zed born?") == "A. B. Zed"


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
def test_a_document_is_about_whom_it_begins_with(document, name):
    assert title(document) == name


def test_capitalised_words_are_found_with_accents_and_hyphens():
    found = capitalised(["Born in Århus and Baden-Baden, then St Johnʼs in Évora 1908 ."])
    assert {"Born", "Århus", "Baden-Baden", "Évora"} <= set(found)
    assert not any(run[0].islower() or run[0].isdigit() for run in found)


def test_a_mixture_has_every_batch_of_each_part_once_an_epoch_in_another_order():
    documents = [torch.arange(4) + 10 * number for number in range(11)]
    few = SequenceBatches(whole_documents(documents[:3], 4), length=4, rows=1)
    many = SequenceBatches(whole_documents(documents[3:], 4), length=4, rows=2)
    mixture = Mixture([few, many], seed=5)
    assert mixture.count(0) == 3 + 4
    read = [
        sorted(first for index in range(7) for first in mixture.batch(epoch, index)["tokens"][:, 0].tolist())
        for epoch in (0, 1)
    ]
    assert read[0] == read[1] == [10 * number for number in range(11)]
    assert mixture.plan(0) != mixture.plan(1)
    assert Mixture([few, many], seed=5).plan(1) == mixture.plan(1)
