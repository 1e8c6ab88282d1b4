"""Grade CS224N's CharCorruptionDataset: span corruption as a dataset of (x, y) with a vocabulary of characters."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.common import Exercise, GradedCheck, mix_seeds
from qkv.check.grading.exercises.span_corruption import (
    SPAN_LINES,
    Corrupted,
    GradedSpans,
    check_content,
    check_cut,
    check_form,
    check_masked_share,
    check_span_position,
)
from qkv.check.grading.probes import read_probe
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

PAD, MASK = "\u25a1", "\u2047"
LETTERS = string.ascii_letters + string.digits + " ,."
NUM_LONG, NUM_SHORT, NUM_REPEATS = 200, 40, 6
UNKNOWN = "\ufffd"  # an index that its vocabulary does not hold


@dataclass(frozen=True, kw_only=True)
class CorruptionDataset(GradedSpans):
    """What the dataset returned: its vocabulary and its items."""

    values: dict[str, Any]
    data: str
    pairs: tuple[tuple[Tensor, Tensor], ...]
    repeated: tuple[str, ...]


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> CorruptionDataset:
    """Draw documents, some of them short, and read all of them, one several times."""
    sandbox.describe_function()
    block_size = int(rubric.interface.settings["block_size"])
    rng = random.Random(mix_seeds(sandbox.seed, 72))
    lengths = [rng.randint(2 * block_size, 3 * block_size) for _ in range(NUM_LONG)]
    lengths += [rng.randint(8, block_size // 2) for _ in range(NUM_SHORT)]
    documents = ["".join(rng.choice(LETTERS) for _ in range(length)) for length in lengths]
    data = "\n".join(documents)
    indices = [*range(len(documents)), *[0] * NUM_REPEATS]
    arguments = {"data": data, "block_size": block_size, "indices": indices}
    tensors, values = sandbox.probe(read_probe("char_corruption"), arguments)
    itos = _pairs(values.get("itos"), int, str)
    pairs, texts = [], []
    for number in range(len(indices)):
        x, y = (tensors.get(f"{name}{number}") for name in "xy")
        if x is None or y is None or x.ndim != 1 or y.ndim != 1 or not len(y):
            raise SubmissionError("an item must be two tensors of one dimension, x and y")
        pairs.append((x, y))
        first, second = (y, x) if len(x) == len(y) and torch.equal(x[:-1], y[1:]) else (x, y)
        texts.append("".join(itos.get(index, UNKNOWN) for index in (*first.tolist(), second[-1].item())))
    results = tuple(Corrupted(doc, block_size, text) for doc, text in zip(documents, texts, strict=False))
    return CorruptionDataset(
        sandbox=sandbox,
        mask=MASK,
        pad=PAD,
        min_length=4,
        max_length=int(block_size * 7 / 8) / block_size,
        masked_share=(0.15, 0.35),
        results=results,
        ends_with_mask=None,
        may_mask_nothing=True,
        values=values,
        data=data,
        pairs=tuple(pairs),
        repeated=tuple(texts[len(documents) :]),
    )


def _pairs(table: Any, first: type, second: type) -> dict[Any, Any]:
    entries = table if isinstance(table, list) else []
    return {
        entry[0]: entry[1]
        for entry in entries
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], first) and isinstance(entry[1], second)
    }


def require_response_of_dataset(dataset: CorruptionDataset) -> None:
    if len({result.text for result in dataset.results}) == 1:
        raise SubmissionError("its item is the same for every index")


def check_vocabulary(dataset: CorruptionDataset) -> list[Finding]:
    """□ is 0, ⁇ is 1, then the sorted characters of the data; stoi is the inverse of itos."""
    itos = _pairs(dataset.values.get("itos"), int, str)
    stoi = _pairs(dataset.values.get("stoi"), str, int)
    letters = [itos.get(index) for index in range(len(itos))]
    characters = sorted(set(dataset.data))
    expected = ([PAD, MASK, *characters], [PAD, MASK, *(each for each in characters if each != "\n")])
    hint = "itos[0] is □, itos[1] is ⁇, then sorted(set(data)); stoi maps back"
    if letters[:2] != [PAD, MASK]:
        return [
            Finding("vocabulary", "fail", None, f"the vocabulary begins with {letters[:2]}, expected □ and ⁇", hint)
        ]
    if letters not in expected:
        if sorted(map(str, letters[2:])) in (characters, [each for each in characters if each != "\n"]):
            evidence = f"after □ and ⁇ the characters are not sorted: they begin with {letters[2:8]}"
            return [Finding("vocabulary", "fail", None, evidence, hint, "sorted")]
        wrong = next((i for i, pair in enumerate(zip(letters, expected[0], strict=False)) if pair[0] != pair[1]), None)
        evidence = f"it has {len(letters)} characters, expected {len(expected[0])}; the first that differs is {wrong}"
        return [Finding("vocabulary", "fail", None, evidence, hint)]
    if stoi != {letter: index for index, letter in itos.items()}:
        return [Finding("vocabulary", "fail", None, "stoi is not the inverse of itos", hint)]
    return [Finding("vocabulary", "pass", 0.0, f"{len(letters)} characters, □ and ⁇ first")]


def check_items(dataset: CorruptionDataset) -> list[Finding]:
    """Items are Long tensors of the same length; y is x shifted by one; there is one for each document."""
    block_size, documents = dataset.results[0].block_size, len(dataset.results)
    types = dataset.values.get("types")
    wrong_types = [each for each in types if each != ["torch.int64"] * 2] if isinstance(types, list) else [types]
    texts = [*(result.text for result in dataset.results), *dataset.repeated]
    lengths = {
        (len(x), len(y))
        for (x, y), text in zip(dataset.pairs, texts, strict=True)
        if not (len(x) == len(y) >= block_size and PAD not in text)  # a document that is too long: judged by the cut
    }
    allowed = {(size, size) for size in (block_size, block_size - 1)}
    hint = f"pad with □ to two Long tensors of {block_size - 1} (or {block_size}) entries each"
    if wrong_types:
        items = Finding("items", "fail", None, f"x and y are {wrong_types[0]}, expected torch.int64", hint)
    elif not lengths <= allowed or len(lengths) > 1:
        worst = max(lengths, key=lambda pair: abs(pair[0] - block_size) + abs(pair[1] - block_size))
        evidence = f"x and y have {worst} entries in one of the items, with block_size {block_size}"
        items = Finding("items", "fail", None, evidence, hint)
    elif dataset.values.get("length") != documents:
        evidence = f"its length is {dataset.values.get('length')}; the data has {documents} documents"
        items = Finding("items", "fail", None, evidence, "there is one item for each line of the data")
    else:
        sizes = ", ".join(str(pair[0]) for pair in sorted(lengths))
        items = Finding("items", "pass", 0.0, f"Long tensors of {sizes} entries")
    shifted = [len(x) == len(y) and torch.equal(x[1:], y[:-1]) for x, y in dataset.pairs]
    if all(shifted):
        return [items, Finding("shift", "pass", 0.0, "y is x shifted by one, in every item")]
    x, y = dataset.pairs[shifted.index(False)]
    evidence = f"in {shifted.count(False)} of {len(shifted)} items y is not x shifted by one"
    if torch.equal(x, y):
        evidence = "y equals x: each character is its own target"
    elif len(x) == len(y) and torch.equal(x[:-1], y[1:]):
        evidence = "y is shifted the wrong way: it is the character before"
    return [items, Finding("shift", "fail", None, evidence, "x is masked_string[:-1] and y is masked_string[1:]")]


def check_random(dataset: CorruptionDataset) -> list[Finding]:
    different = len(set(dataset.repeated))
    evidence = f"{different} different texts in {len(dataset.repeated)} readings of one document"
    if different >= 3:
        return [Finding("randomness", "pass", None, evidence)]
    return [Finding("randomness", "fail", None, evidence, "draw the cut and the span anew in every __getitem__")]


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or set(rubric.interface.settings) != {"block_size"}:
        raise ValueError(f'{where}: this exercise is named as function = "CharCorruptionDataset", with block_size')
    if not 16 <= int(rubric.interface.settings["block_size"]) <= 1024:
        raise ValueError(f"{where}: block_size must be from 16 to 1024")


CHAR_CORRUPTION = Exercise(
    prepare,
    (
        GradedCheck(("vocabulary",), check_vocabulary),
        GradedCheck(("items", "shift"), check_items),
        GradedCheck(("form",), check_form),
        GradedCheck(("content",), check_content),
        GradedCheck(("cut",), check_cut),
        GradedCheck(("masked share",), check_masked_share),
        GradedCheck(("span position",), check_span_position),
        GradedCheck(("randomness",), check_random),
    ),
    validate,
    require_response_of_dataset,
    lines={
        **SPAN_LINES,
        "vocabulary": (r"insert\(|(PAD|MASK)_CHAR\s*,\s*(self\.)?(PAD|MASK)_CHAR", r"(stoi|itos)\s*=", r"stoi|itos"),
        "sorted": (r"sorted|set\(|unique", r"(stoi|itos)\s*="),
        "items": (r"tensor\(|Tensor\(", r"return "),
        "shift": (r"\[1:\]|\[:-1\]", r"return "),
    },
)
