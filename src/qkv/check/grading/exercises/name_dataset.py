"""Grade CS224N's NameDataset: questions and answers, in which only the answer is scored."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.char_corruption import MASK, PAD, UNKNOWN
from qkv.check.grading.exercises.common import Exercise, GradedCheck, mix_seeds
from qkv.check.grading.probes import read_probe
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

NUM_QUESTIONS = 12


@dataclass(frozen=True)
class Questions:
    """Questions and answers, and the items that the dataset makes of them, decoded with the given vocabulary."""

    questions: tuple[tuple[str, str], ...]
    block_size: int
    values: dict[str, Any]
    items: tuple[tuple[str, str], ...]
    unknown: int | None = None  # the first entry of a y that is no index of the vocabulary

    def follows(self, index: int) -> bool:
        """Whether y is right for the x of this item, which is itself wrong: x costs its own points."""
        x, y = self.items[index]
        length = x.find(MASK)
        whole = x.ljust(2 * self.block_size, PAD)
        return x != self.expected(index, len(x))[0] and y == (PAD * (length - 1) + whole[length:])[: len(y)]

    def expected(self, index: int, length: int) -> tuple[str, str]:
        """x is question ⁇ answer ⁇ □…; y is x shifted by one, with □ for the question."""
        question, answer = self.questions[index]
        text = (question + MASK + answer + MASK).ljust(2 * self.block_size, PAD)
        return text[:length], (PAD * (len(question) - 1) + text[len(question) :])[:length]


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Questions:
    """Draw names and places, and a vocabulary in random order: whoever makes their own is found out."""
    sandbox.describe_function()
    block_size = int(rubric.interface.settings["block_size"])
    rng = random.Random(mix_seeds(sandbox.seed, 73))

    def word(least: int, most: int) -> str:
        return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(least, most))).capitalize()

    questions = tuple((f"Where was {word(3, 9)} {word(4, 12)} born?", word(4, 14)) for _ in range(NUM_QUESTIONS))
    letters = list(string.ascii_letters + string.digits + " ?.\n\t")
    rng.shuffle(letters)
    letters = [PAD, MASK, *letters]
    data = "".join(f"{question}\t{answer}\n" for question, answer in questions)
    arguments = {"data": data, "letters": letters, "block_size": block_size, "count": NUM_QUESTIONS}
    tensors, values = sandbox.probe(read_probe("name_dataset"), arguments)

    def decode(indices: Tensor) -> str:
        return "".join(letters[i] if 0 <= i < len(letters) else UNKNOWN for i in indices.flatten().tolist())

    items = []
    for number in range(NUM_QUESTIONS):
        x, y = (tensors.get(f"{name}{number}") for name in "xy")
        if x is None or y is None:
            raise SubmissionError("an item must be two tensors, x and y")
        items.append((decode(x), decode(y)))
    entries = [i for n in range(NUM_QUESTIONS) for i in tensors[f"y{n}"].flatten().tolist()]
    unknown = next((int(i) for i in entries if not 0 <= i < len(letters)), None)
    return Questions(questions, block_size, values, tuple(items), unknown)


def require_response_of_questions(dataset: Questions) -> None:
    if len(set(dataset.items)) == 1:
        raise SubmissionError("its item is the same for every index")


def check_length(dataset: Questions) -> list[Finding]:
    found, expected = dataset.values.get("length"), len(dataset.questions)
    evidence = f"its length is {found}; the data has {expected} lines"
    verdict = "pass" if found == expected else "fail"
    return [Finding("length", verdict, None, evidence, None if verdict == "pass" else "one item for each line")]


def check_items(dataset: Questions) -> list[Finding]:
    """Long tensors of the same length, block_size − 1 or block_size."""
    types = dataset.values.get("types")
    wrong = [each for each in types if each != ["torch.int64"] * 2] if isinstance(types, list) else [types]
    lengths = {(len(x), len(y)) for x, y in dataset.items}
    size = dataset.block_size
    hint = f"make Long tensors of {size - 1} entries, padded with □: torch.tensor(indices, dtype=torch.long)"
    if wrong:
        return [Finding("items", "fail", None, f"x and y are {wrong[0]}, expected torch.int64", hint)]
    if len(lengths) > 1 or not lengths <= {(size - 1, size - 1), (size, size)}:
        return [
            Finding("items", "fail", None, f"x and y have {sorted(lengths)[0]} entries with block_size {size}", hint)
        ]
    return [Finding("items", "pass", 0.0, f"Long tensors of {sorted(lengths)[0][0]} entries")]


def check_inputs(dataset: Questions) -> list[Finding]:
    """x is question ⁇ answer ⁇, in the vocabulary of the pretraining dataset."""
    wrong = []
    for index, (x, _) in enumerate(dataset.items):
        expected = dataset.expected(index, len(x))[0]
        if x != expected:
            wrong.append((x, expected))
    if not wrong:
        return [Finding("x", "pass", 0.0, f"question ⁇ answer ⁇ in all {len(dataset.items)} items")]
    found, expected = wrong[0]
    evidence = f"x is {found[:50]!r}…, expected {expected[:50]!r}…"
    hint = "x is question + ⁇ + answer + ⁇, then □, encoded with pretraining_dataset.stoi"
    return [Finding("x", "fail", None, evidence, *_explain_x(dataset, found, expected) or (hint, None))]


def _explain_x(dataset: Questions, found: str, expected: str) -> tuple[str, str] | None:
    """What is wrong with a text, and the kind of line that it is about."""
    pieces, wanted = (text.rstrip(PAD).split(MASK) for text in (found, expected))
    if "\t" in found:
        return "the line is not split at the tab: question, answer = line.split('\\t')", "split"
    if sorted(pieces) == sorted(wanted) and pieces != wanted:
        return "the answer comes before the question: x is question + ⁇ + answer + ⁇", "order"
    if found.replace(PAD, "") == expected.replace(PAD, "").replace(MASK, ""):
        return "□ stands where ⁇ must be: x is question + ⁇ + answer + ⁇, then □", "order"
    if len(found.rstrip(PAD)) == len(expected.rstrip(PAD)) and len(pieces) == len(wanted):
        return "the characters have other indices: use the given vocabulary, pretraining_dataset.stoi", "vocabulary"
    return None


def check_targets(dataset: Questions) -> list[Finding]:
    """y has □ for the question, then the answer, aligned with x.

    An x that is wrong costs its own points: a y that is right for that x is aligned.
    """
    unscored, aligned = [], []
    for index, (x, y) in enumerate(dataset.items):
        question = dataset.questions[index][0]
        expected = dataset.expected(index, len(y))[1]
        start = len(question) - 1
        if dataset.follows(index):
            continue
        if y[:start] != expected[:start]:
            unscored.append((y[:start], expected[:start]))
        if y[start:] not in (expected[start:], (x[1:] + PAD)[start:]):
            aligned.append((y[start:], expected[start:]))
    count = len(dataset.items)
    first = Finding("question unscored", "pass", 0.0, f"□ for the question in all {count} items")
    if unscored:
        evidence = f"in {len(unscored)} of {count} items the question is in y: {unscored[0][0][-30:]!r}, expected □"
        if UNKNOWN in unscored[0][0] and dataset.unknown is not None:
            evidence = f"y has {dataset.unknown} for the question, expected the index of □, which the loss ignores here"
        first = Finding(
            "question unscored", "fail", None, evidence, "y is □ · (len(question) − 1), then x[len(question):]"
        )
    second = Finding("answer aligned", "pass", 0.0, f"y has the answer one place before x in all {count} items")
    if aligned:
        found, expected = aligned[0]
        evidence = f"from the answer on y is {found[:24]!r}…, expected {expected[:24]!r}…"
        hint = "the target of position i is the character i + 1 of x: ⁇, the answer, ⁇, then □"
        if found[1:] == expected[:-1]:
            hint = f"y is not shifted, each character is one place too late: {hint}"
        second = Finding("answer aligned", "fail", None, evidence, hint)
    return [first, second]


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or set(rubric.interface.settings) != {"block_size"}:
        raise ValueError(f'{where}: this exercise is named as function = "NameDataset", with block_size')
    if not 64 <= int(rubric.interface.settings["block_size"]) <= 1024:
        raise ValueError(f"{where}: block_size must be from 64 to 1024")


NAME_DATASET = Exercise(
    prepare,
    (
        GradedCheck(("length",), check_length),
        GradedCheck(("items",), check_items),
        GradedCheck(("x",), check_inputs),
        GradedCheck(("question unscored", "answer aligned"), check_targets),
    ),
    validate,
    require_response_of_questions,
    lines={
        "length": (r"def __len__", r"return len"),
        "items": (r"float|zeros\(|empty\(|full\(|ones\(", r"tensor\(|Tensor\(", r"return "),
        "split": (r"split|partition",),
        "order": (r"\bx\s*=.*\+.*(MASK|PAD|mask|pad)", r"\+.*(MASK|PAD|mask|pad)"),
        "vocabulary": (r"stoi\s*=", r"stoi"),
        "x": (r"(?#last)\bx\s*=.*MASK", r"MASK", r"\bx\s*=", r"stoi"),
        "question unscored": (r"\by\s*=",),
        "answer aligned": (r"\by\s*=",),
    },
)
