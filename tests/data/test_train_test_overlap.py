"""find_overlap, and the parts of every data set hashed against its training part: no test item is trained on.

The few items that a published data set repeats are listed here one by one.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from shared_data import SHARED, shared

from qkv.data.images.dataset import ImageSplits
from qkv.data.images.load import load_digits, load_images
from qkv.data.overlap import find_near_copies, find_overlap, fingerprint
from qkv.data.speech.recordings import SpokenDigitSplits, load_spoken_digits, load_voices
from qkv.data.text.biographies import make_biographies
from qkv.data.text.language_modeling import load_shakespeare
from qkv.data.text.question_answering import read_questions
from qkv.training.recipes.translation import TranslationData, load_pairs


def image_bytes(parts: ImageSplits) -> tuple[list[bytes], list[bytes]]:
    """Images of training, and those of validation and test."""
    assert parts.test is not None
    train, *others = ([row.tobytes() for row in p.pixels.numpy()] for p in (parts.train, parts.validation, parts.test))
    return train, [*others[0], *others[1]]


def overlap_indices(train: Iterable[object], other: Iterable[object]) -> list[int]:
    return list(find_overlap(train, other).indices)


def test_load_digits_trains_on_no_digit_of_validation_or_test():
    train, other = image_bytes(load_digits())
    assert (len(train), len(other)) == (1257, 540)
    assert overlap_indices(train, other) == []


def test_cifar10_trains_on_no_image_of_validation_or_test():
    path = Path(os.environ.get("QKV_CIFAR10", SHARED / "cifar10.npz"))
    if not path.is_file():
        pytest.skip("needs cifar10.npz, in the shared data next to the checkout or where QKV_CIFAR10 says")
    train, other = image_bytes(load_images(path))
    assert (len(train), len(other)) == (45_000, 15_000)
    assert overlap_indices(train, other) == []


def cifar100_path() -> Path:
    path = Path(os.environ.get("QKV_CIFAR100", SHARED.parents[1] / "cifar100"))
    if not path.exists():
        pytest.skip("needs CIFAR-100 (.npz or .bin files) next to the checkout or where QKV_CIFAR100 says")
    return path


def test_cifar100_repeats_ten_training_images_in_the_test_and_none_in_validation():
    parts = load_images(cifar100_path())
    assert parts.test is not None
    train, validation, test = (
        [row.tobytes() for row in part.pixels.numpy()] for part in (parts.train, parts.validation, parts.test)
    )
    assert (len(train), len(validation), len(test)) == (45_003, 4_997, 10_000)
    assert overlap_indices(train, validation) == []
    published = [1100, 1357, 2615, 2996, 3499, 3932, 4716, 5564, 6526, 9524]  # the official files repeat them
    assert overlap_indices([*train, *validation], test) == published


def test_find_near_copies_finds_planted_ones_and_no_others():
    generator = torch.Generator().manual_seed(0)
    train, other = (torch.rand(count, 3, 8, 8, generator=generator) for count in (60, 40))
    train, other = ((F.interpolate(part, 32, mode="bilinear") * 255).round().to(torch.uint8) for part in (train, other))
    noise = torch.randint(-8, 9, (3, 32, 32), generator=generator)
    other[7] = train[13]
    other[8] = (train[20].int() + noise).clamp(0, 255).to(torch.uint8)  # compressed
    other[21] = (train[20].flip(-1).int() + 6).clamp(0, 255).to(torch.uint8)  # mirrored and brighter
    other[30] = (train[5].int() + 30).clamp(0, 255).to(torch.uint8)  # another light: not counted
    assert find_near_copies(train, other) == {7: 13, 8: 20, 21: 20}
    assert find_near_copies(train, other, tolerance=0.0) == {7: 13}
    every = [(a.double() - b.double()).square().mean().sqrt() for a in other for b in train]
    assert sum(distance <= 10 for distance in every) == 2, "compared in full, without mirroring"


@pytest.mark.long
def test_near_copies_of_training_images_in_cifar100_are_few_and_counted():
    parts = load_images(cifar100_path())
    assert parts.test is not None
    near = [find_near_copies(parts.train.pixels, part.pixels) for part in (parts.validation, parts.test)]
    assert [len(found) for found in near] == [5, 20], "of 4,997 and 10,000"


def test_load_images_keeps_copies_of_an_image_on_one_side_of_the_split(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 3), dtype=np.uint8)
    pixels[50:] = pixels[:50]  # each image twice
    pixels[99] = 7
    np.savez(tmp_path / "twins.npz", train_x=pixels, train_y=np.arange(100) % 3, test_x=pixels[:5], test_y=[0] * 5)
    parts = load_images(tmp_path / "twins.npz", validation=0.5)
    train, validation = ([row.tobytes() for row in part.pixels.numpy()] for part in (parts.train, parts.validation))
    assert len(train) + len(validation) == 100 and validation
    assert overlap_indices(train, validation) == []
    assert "copies of training images" in parts.notes[-1]


def test_birthplaces_shares_only_namesakes_between_parts():
    folder = shared("birthplaces")
    train = read_questions(folder / "birth_places_train.tsv")
    dev = read_questions(folder / "birth_dev.tsv")
    asked = [question.question for question in train]
    found = overlap_indices(asked, [question.question for question in dev])
    assert [dev[row].question for row in found] == ["Where was George Stone born?"]
    assert overlap_indices([q[:2] for q in train], [q[:2] for q in dev]) == [], "his answer is another one: London"
    blind = read_questions(folder / "birth_test_inputs.tsv", answers=False)
    assert len(overlap_indices(asked, [question.question for question in blind])) == 2
    assert overlap_indices([q.question for q in dev], [q.question for q in blind]) == []


def test_multi30k_shares_no_pair_and_one_sentence_per_language():
    parts = load_pairs(TranslationData(path=str(shared("multi30k"))), 0)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [29_000, 1_014, 1_000]
    other = [*parts["val"], *parts["test"]]
    assert overlap_indices(parts["train"], other) == []
    for side, found in (
        (0, [686]),
        (1, [164]),
    ):  # of validation: one English and one German line, each with another translation
        assert overlap_indices((pair[side] for pair in parts["train"]), (pair[side] for pair in other)) == found


def recordings(parts: SpokenDigitSplits) -> list[int]:
    """Recordings of the other parts that are in the training data, by their samples."""
    other = [*parts.validation, *parts.seen, *parts.unseen]
    return overlap_indices((spoken.samples for spoken in parts.train), (spoken.samples for spoken in other))


def test_load_spoken_digits_trains_on_no_test_recording_and_no_unseen_speaker():
    parts = load_spoken_digits(shared("spoken-digits"))
    assert len(parts.train) == 1600 and recordings(parts) == []
    assert not {spoken.speaker for spoken in parts.train} & {spoken.speaker for spoken in parts.unseen}


def test_load_voices_trains_on_no_test_recording():
    assert recordings(load_voices()) == []


@pytest.mark.parametrize("seed", range(3))
def test_make_biographies_asks_about_a_person_in_one_part_only(seed: int):
    made = make_biographies(1000, seed=seed)
    for other in (made.validation, made.test):
        assert (
            overlap_indices((question.question for question in made.train), (question.question for question in other))
            == []
        )


@pytest.mark.parametrize("seed", range(2))
def test_number_words_share_no_pair_between_parts(seed: int):
    parts = load_pairs(TranslationData(), seed)
    assert overlap_indices(parts["train"], [*parts["val"], *parts["test"]]) == []


def test_load_shakespeare_shares_no_passage_between_parts():
    train, apart = load_shakespeare()
    assert overlap_indices(train.split("\n\n"), apart.split("\n\n")) == [], "no speech"
    size = 64  # letters, at every place
    seen = {train[begin : begin + size] for begin in range(len(train) - size + 1)}
    assert not any(apart[begin : begin + size] in seen for begin in range(len(apart) - size + 1))


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
