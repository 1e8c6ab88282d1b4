"""Nothing that is tested on was trained on: every data set's parts are hashed against its training part.

What true overlap a data set has is pinned here, item by item: it is the data's own, and known.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from shared_data import SHARED, shared

from qkv.data.biographies import biographies
from qkv.data.digit_images import digits
from qkv.data.images import ImageSplits
from qkv.data.load_images import load_images
from qkv.data.overlap import overlap
from qkv.data.questions import read_questions
from qkv.data.shakespeare import shakespeare
from qkv.data.spoken import SpokenParts, read_spoken
from qkv.data.tones import tone_digits
from qkv.training.recipes.translation import PairData, opened


def pictures(parts: ImageSplits) -> tuple[list[bytes], list[bytes]]:
    """Those trained on, and those of validation and test."""
    assert parts.test is not None
    train, *others = ([row.tobytes() for row in p.pixels.numpy()] for p in (parts.train, parts.validation, parts.test))
    return train, [*others[0], *others[1]]


def places(train: Iterable[object], other: Iterable[object]) -> list[int]:
    return list(overlap(train, other).places)


def test_no_digit_of_validation_or_test_was_trained_on():
    train, other = pictures(digits())
    assert (len(train), len(other)) == (1257, 540)
    assert places(train, other) == []


def test_no_picture_of_cifar10_was_trained_on_bit_by_bit():
    path = Path(os.environ.get("QKV_CIFAR10", SHARED / "cifar10.npz"))
    if not path.is_file():
        pytest.skip("needs cifar10.npz, in the shared data beside the checkout or where QKV_CIFAR10 says")
    train, other = pictures(load_images(path))
    assert (len(train), len(other)) == (45_000, 15_000)
    assert places(train, other) == []


def test_of_birthplaces_only_namesakes_stand_in_two_parts():
    folder = shared("birthplaces")
    train = read_questions(folder / "birth_places_train.tsv")
    dev = read_questions(folder / "birth_dev.tsv")
    asked = [question.question for question in train]
    found = places(asked, [question.question for question in dev])
    assert [dev[row].question for row in found] == ["Where was George Stone born?"]
    assert places([q[:2] for q in train], [q[:2] for q in dev]) == [], "his answer is another one: London"
    blind = read_questions(folder / "birth_test_inputs.tsv", answers=False)
    assert len(places(asked, [question.question for question in blind])) == 2
    assert places([q.question for q in dev], [q.question for q in blind]) == []


def test_of_multi30k_no_pair_is_trained_on_and_one_sentence_of_validation_is():
    parts = opened(PairData(path=str(shared("multi30k"))), 0)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [29_000, 1_014, 1_000]
    other = [*parts["val"], *parts["test"]]
    assert places(parts["train"], other) == []
    for side, found in ((0, [686]), (1, [164])):  # of validation: one English and one German line, beside other ones
        assert places((pair[side] for pair in parts["train"]), (pair[side] for pair in other)) == found


def recordings(parts: SpokenParts) -> list[int]:
    """The recordings of the other parts that stand in training, by their samples."""
    other = [*parts.validation, *parts.seen, *parts.unseen]
    return places((spoken.samples for spoken in parts.train), (spoken.samples for spoken in other))


def test_no_spoken_digit_of_another_part_was_trained_on_and_the_speaker_left_out_is_not_heard():
    parts = read_spoken(shared("spoken-digits"))
    assert len(parts.train) == 1600 and recordings(parts) == []
    assert not {spoken.speaker for spoken in parts.train} & {spoken.speaker for spoken in parts.unseen}


def test_no_tone_of_another_part_was_trained_on():
    parts = tone_digits()
    assert recordings(parts) == []
    assert not {spoken.speaker for spoken in parts.train} & {spoken.speaker for spoken in parts.unseen}


@pytest.mark.parametrize("seed", range(3))
def test_made_up_people_are_asked_about_in_one_part_only(seed: int):
    made = biographies(1000, seed=seed)
    for other in (made.validation, made.test):
        assert places((question.question for question in made.train), (question.question for question in other)) == []


@pytest.mark.parametrize("seed", range(2))
def test_no_number_in_words_stands_in_two_parts(seed: int):
    parts = opened(PairData(), seed)
    assert places(parts["train"], [*parts["val"], *parts["test"]]) == []


def test_no_stretch_of_shakespeares_last_tenth_was_trained_on():
    train, apart = shakespeare()
    assert places(train.split("\n\n"), apart.split("\n\n")) == [], "no speech"
    size = 64  # letters, at every place
    seen = {train[begin : begin + size] for begin in range(len(train) - size + 1)}
    assert not any(apart[begin : begin + size] in seen for begin in range(len(apart) - size + 1))
