"""Leaks between parts are found; made-up people are consistent and seeded."""

from collections import Counter

import pytest
import torch
from shared_data import shared

from qkv.data.biographies import biographies
from qkv.data.overlap import fingerprint, overlap
from qkv.data.people import drawn_people
from qkv.data.questions import read_questions
from qkv.data.spans import SpanExamples, span_tokenizer
from qkv.data.tokens import all_ids


def test_a_planted_leak_is_found_where_it_was_planted():
    train = [torch.randn(3, 4) for _ in range(20)]
    other = [torch.randn(3, 4) for _ in range(10)]
    other[7] = train[13].clone()
    found = overlap(train, other)
    assert found.places == (7,) and found.total == 10 and found.share == 0.1
    assert "first item 7" in str(found) and str(overlap(train, other[:7])).startswith("none of 7")
    assert overlap(["a", "b", "a"], []).repeated == 1


def test_different_items_have_different_fingerprints():
    items = ["a", b"a", 1, 1.0, True, None, "1", ("a", "b"), ("ab",), ("a", ("b",)), torch.ones(2), torch.ones(1, 2)]
    items += [torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.float64), ["x", 1], [["x"], 1]]
    assert len({fingerprint(item) for item in items}) == len(items)
    with pytest.raises(ValueError, match="got dict"):
        fingerprint({})


def test_the_birthplaces_questions_of_one_part_stand_in_no_other():
    folder = shared("birthplaces")
    train = [q.question for q in read_questions(folder / "birth_places_train.tsv")]
    for name, answers in (("birth_dev", True), ("birth_test_inputs", False)):
        found = overlap(train, [q.question for q in read_questions(folder / f"{name}.tsv", answers=answers)])
        assert found.share < 0.01, f"{name}: {found}"


def test_biographies_tell_everybodys_birthplace_in_different_words():
    made = biographies(people=300, places=20, lines=3, phrasings=2, seed=4)
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
        told = by_name[name]
        assert len(told) == 3 and {place for place, _ in told} == {question.answer}
        assert len({way for _, way in told}) == 3
    names = [{q.question for q in part} for part in (made.train, made.validation, made.test)]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    assert max(map(len, made.documents)) <= 112, "what is cut at 112 is whole"


def test_biographies_follow_from_the_seed_and_answers_from_the_odds():
    one, same, other = biographies(people=400, seed=1), biographies(people=400, seed=1), biographies(people=400, seed=2)
    assert one == same and one.documents != other.documents
    many = biographies(people=3000, lines=1, seed=0)
    counts = Counter(q.answer for q in (*many.train, *many.validation, *many.test))
    odds = [1 / (k + 3) for k in range(40)]
    expected = odds[0] / sum(odds)
    assert counts.most_common(1)[0][1] / 3000 == pytest.approx(expected, abs=0.025)
    for wrong in ({"people": 2}, {"places": 1}, {"lines": 9}, {"phrasings": 0}, {"held_out": 0.5}):
        with pytest.raises(ValueError, match=r"expected 3 people|share below a half"):
            biographies(**wrong)


def test_salient_spans_of_biographies_are_names_and_places_as_tokens():
    made = biographies(people=40)
    tokenizer = span_tokenizer([made.text])
    documents = all_ids(tokenizer, made.documents)
    examples = SpanExamples(documents, 1, salient=made.salient)
    for row in (0, 7, 33):
        for begin, stop in examples.salient[row]:
            assert tokenizer.decode(documents[row][begin:stop].tolist()) == made.documents[row][begin:stop]


def test_no_two_people_share_both_names():
    drawn = drawn_people(36, 6, 6, torch.ones(3), torch.Generator().manual_seed(0))
    assert len(set(zip(drawn.first.tolist(), drawn.last.tolist(), strict=True))) == 36
    with pytest.raises(ValueError, match="there are 36 names; got count=37"):
        drawn_people(37, 6, 6, torch.ones(3), torch.Generator())
