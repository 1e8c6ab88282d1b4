"""Synthetic biographies are consistent and seeded; find_overlap finds planted leaks."""

from collections import Counter

import pytest
import torch
from shared_data import shared

from qkv.data.overlap import find_overlap, fingerprint
from qkv.data.text.biographies import draw_people, make_biographies
from qkv.data.text.question_answering import read_questions
from qkv.data.text.span_corruption import SpanCorruptionExamples, span_tokenizer
from qkv.data.text.tokenizers import encode_all


def test_find_overlap_finds_a_planted_leak():
    train = [torch.randn(3, 4) for _ in range(20)]
    other = [torch.randn(3, 4) for _ in range(10)]
    other[7] = train[13].clone()
    found = find_overlap(train, other)
    assert found.indices == (7,) and found.total == 10 and found.fraction == 0.1
    assert "first item 7" in str(found) and str(find_overlap(train, other[:7])).startswith("none of 7")
    assert find_overlap(["a", "b", "a"], []).train_duplicates == 1


def test_fingerprint_differs_for_different_items():
    items = ["a", b"a", 1, 1.0, True, None, "1", ("a", "b"), ("ab",), ("a", ("b",)), torch.ones(2), torch.ones(1, 2)]
    items += [torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.float64), ["x", 1], [["x"], 1]]
    assert len({fingerprint(item) for item in items}) == len(items)
    with pytest.raises(ValueError, match="got dict"):
        fingerprint({})


def test_birthplaces_questions_of_one_part_are_in_no_other():
    folder = shared("birthplaces")
    train = [q.question for q in read_questions(folder / "birth_places_train.tsv")]
    for name, answers in (("birth_dev", True), ("birth_test_inputs", False)):
        found = find_overlap(train, [q.question for q in read_questions(folder / f"{name}.tsv", answers=answers)])
        assert found.fraction < 0.01, f"{name}: {found}"


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
