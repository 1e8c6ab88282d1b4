"""Synthetic biographies and tokenized people are consistent and follow from the seed."""

from collections import Counter

import pytest
import torch

from qkv.data.text.biographies import (
    ANSWER_INDEX,
    NUM_PLACES,
    PLACE_ID,
    VOCAB_SIZE,
    draw_people,
    make_biographies,
    make_tokenized_people,
)
from qkv.data.text.span_corruption import SpanCorruptionExamples, span_tokenizer
from qkv.data.text.tokenizers import encode_all


def test_make_biographies_states_every_birthplace_in_different_words():
    made = make_biographies(people=300, places=20, lines=3, phrasings=2, seed=4)
    assert len(made.documents) == len(made.salient) == 900
    assert (len(made.train), len(made.validation), len(made.test)) == (360, 120, 120)
    asked = [*made.train, *made.validation, *made.test]
    by_name = {}
    for line, spans in zip(made.documents, made.salient, strict=True):
        (a, b), (c, d) = spans
        name, place = line[a:b], line[c:d]
        assert line.startswith(name + ".") and not line[b : b + 1].isalpha() and not line[d : d + 1].isalpha()
        by_name.setdefault(name, []).append((place, line.replace(name, "X").replace(place, "Y")))
    assert len(by_name) == 300
    for question in asked[::2]:
        name = question.question.removeprefix("Where was ").removesuffix(" born?")
        documents_about = by_name[name]
        assert len(documents_about) == 3 and {place for place, _ in documents_about} == {question.answer}
        assert len({way for _, way in documents_about}) == 3
    names = [{q.question for q in part} for part in (made.train, made.validation, made.test)]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    assert max(map(len, made.documents)) <= 112, "what is cut at 112 is whole"


def test_make_biographies_follows_the_seed_and_the_place_weights():
    one, same, other = (
        make_biographies(people=400, seed=1),
        make_biographies(people=400, seed=1),
        make_biographies(people=400, seed=2),
    )
    assert one == same and one.documents != other.documents
    many = make_biographies(people=3000, lines=1, seed=0)
    counts = Counter(q.answer for q in (*many.train, *many.validation, *many.test))
    odds = [1 / (k + 3) for k in range(40)]
    expected = odds[0] / sum(odds)
    assert counts.most_common(1)[0][1] / 3000 == pytest.approx(expected, abs=0.025)
    for wrong in ({"people": 2}, {"places": 1}, {"lines": 9}, {"phrasings": 0}, {"held_out": 0.5}):
        with pytest.raises(ValueError, match=r"expected at least 3 people|must be below a half"):
            make_biographies(**wrong)


def test_salient_spans_are_names_and_places_in_characters():
    made = make_biographies(people=40)
    tokenizer = span_tokenizer([made.text])
    documents = encode_all(tokenizer, made.documents)
    examples = SpanCorruptionExamples(documents, 1, salient=made.salient)
    for row in (0, 7, 33):
        for begin, stop in examples.salient[row]:
            assert tokenizer.decode(documents[row][begin:stop].tolist()) == made.documents[row][begin:stop]


def test_draw_people_never_repeats_a_name():
    drawn = draw_people(36, 6, 6, torch.ones(3), torch.Generator().manual_seed(0))
    assert len(set(zip(drawn.first.tolist(), drawn.last.tolist(), strict=True))) == 36
    with pytest.raises(ValueError, match="there are 36 names, got count=37"):
        draw_people(37, 6, 6, torch.ones(3), torch.Generator())


def test_make_tokenized_people_states_every_place_in_lines_and_questions():
    people = make_tokenized_people(400, torch.Generator().manual_seed(0))
    assert len(people.names.unique(dim=0)) == 400
    rows = torch.arange(400)
    lines, questions = people.lines(rows, torch.Generator().manual_seed(1)), people.questions(rows)
    assert lines.shape == questions.shape == (400, 7) and int(lines.max()) < VOCAB_SIZE
    assert torch.equal(lines[:, ANSWER_INDEX], PLACE_ID + people.places)
    assert torch.equal(questions[:, ANSWER_INDEX], PLACE_ID + people.places)
    assert torch.equal(questions[:, 1:3], people.names)
    assert len(lines[:, 0].unique()) > 4, "several templates"
    assert people.places.bincount(minlength=NUM_PLACES)[0] > 1.4 * people.places.bincount()[1:].float().mean()
