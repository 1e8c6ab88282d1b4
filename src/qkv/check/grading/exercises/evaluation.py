"""Grade CS224N's evaluation: evaluate_places counts right answers, sample continues a sequence token by token."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.common import Exercise, GradedCheck, mix_seeds
from qkv.check.grading.probes import read_probe
from qkv.check.grading.probes.stand_ins import STUBS
from qkv.check.grading.reading import Submission
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

PLACES = ("London", "Paris", "New York", "Brno", "Tokyo", "São Paulo", "Vienna", "Cairo", "Accra", "Lima")
SIZE, BLOCK_SIZE, STEPS = 17, 8, 12
COLD = 0.05  # a temperature at which only the most likely token is drawn


@dataclass(frozen=True)
class Evaluation:
    """What the functions returned."""

    expected: tuple[tuple[float, float], ...]
    hits: tuple[int, ...]
    moved: tuple[float, float]  # right answers if each prediction is compared with the next line
    tokens: Tensor
    values: dict[str, Any]
    tensors: dict[str, Tensor]

    def case(self, number: int) -> tuple[float, float]:
        found = self.values.get(f"case{number}")
        if not isinstance(found, list) or len(found) != 2:
            raise SubmissionError(self._error(f"case{number}"))
        return (float(found[1]), float(found[0])) if self.swapped else (float(found[0]), float(found[1]))

    @property
    def swapped(self) -> bool:
        """Whether it returns (correct, total): that is one mistake, and the numbers are judged all the same."""
        return self.values.get("case0") == [9.0, 25.0]

    def sample(self, name: str) -> Tensor:
        found = self.tensors.get(name)
        if found is None:
            raise SubmissionError(self._error(name) if self._error(name) else self._error("sample"))
        return found

    def _error(self, name: str) -> str:
        errors = self.values.get("errors")
        errors = errors if isinstance(errors, dict) else {}
        return str(errors.get(name) or errors.get("sample") or "it returned no pair (total, correct)")


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Evaluation:
    """Files with places, of which some are predicted; a file without places; near misses."""
    sandbox.describe_function()
    rng = random.Random(mix_seeds(sandbox.seed, 74))
    places = [rng.choice(PLACES) for _ in range(25)]
    lines = [f"Where was Person {number} born?\t{place}" for number, place in enumerate(places)]
    hits = rng.sample(range(25), 9)
    elsewhere = [next(other for other in places[n:] + places if other != place) for n, place in enumerate(places)]
    predicted = [place if number in hits else elsewhere[number] for number, place in enumerate(places)]
    near = [
        place.lower() if n % 3 == 0 else place if n % 3 == 2 else place[:-1] if n < 9 else place + "x"
        for n, place in enumerate(places)
    ]
    cases = [
        {"text": "\n".join(lines) + "\n", "predicted": predicted},
        {"text": "\n".join(lines), "predicted": list(places)},
        {"text": "\n".join(lines) + "\n", "predicted": near},
        {"text": "".join(f"Where was Person {number} born?\n" for number in range(5)), "predicted": ["London"] * 5},
    ]
    expected = ((25.0, 9.0), (25.0, 25.0), (25.0, float(sum(n % 3 == 2 for n in range(25)))), (0.0, 0.0))
    tokens = torch.randint(0, SIZE, (2, 3), generator=torch.Generator().manual_seed(90))
    file = None
    if isinstance(sandbox.source, Submission):
        found = sandbox.source.find_definition(["sample"])
        file = found[0].path if found else None
    arguments = {
        "cases": cases, "file": file, "size": SIZE, "block_size": BLOCK_SIZE, "steps": STEPS,
        "samples": {
            "greedy": {}, "greedy again": {},
            "one of one": {"sample": True, "top_k": 1}, "one of two": {"sample": True, "top_k": 2},
            "cold": {"sample": True, "temperature": COLD},
        },
    }  # fmt: skip
    tensors, values = sandbox.probe(read_probe("evaluation"), arguments, {"tokens": tokens})
    moved = tuple(float(sum(map(str.__eq__, guesses, places[1:]))) for guesses in (predicted, places))
    return Evaluation(expected, tuple(hits), (moved[0], moved[1]), tokens, values, tensors)


def require_response_of_evaluation(evaluation: Evaluation) -> None:
    found = {
        tuple(value) for name, value in evaluation.values.items() if name.startswith("case") and isinstance(value, list)
    }
    if len(found) == 1 and len(evaluation.values) > 3 and not evaluation.tensors:
        raise SubmissionError("its output is the same for every input")


def check_counts(evaluation: Evaluation) -> list[Finding]:
    """Totals, right answers, exact comparison, and a file without places."""
    findings = []
    first, whole = evaluation.case(0), evaluation.case(1)
    total = Finding("total", "pass", 0.0, "every line is counted, with and without a final newline")
    if evaluation.swapped:
        evidence = "with 9 right answers of 25 it returns (9, 25): the two numbers are swapped"
        swapped = [Finding(n, "fail", None, evidence, "return total, correct") for n in ("total", "correct")]
        return [*swapped, _check_exact(evaluation, first)]
    if first[0] != 25 or whole[0] != 25:
        evidence = f"of 25 lines it counts {first[0]:g}, and {whole[0]:g} without a final newline"
        hint = "count the lines of the file, from the first to the last"
        total = Finding("total", "fail", None, evidence, hint)
    findings.append(total)
    correct = Finding("correct", "pass", 0.0, "9 of 25 and 25 of 25 right answers are counted")
    if (first[1], whole[1]) not in ((9, 25), *_of_fewer_lines(evaluation, int(first[0]))):
        evidence = f"with 9 and 25 right answers of 25 it returns {first[1]:g} and {whole[1]:g}"
        share = first[1] in (9 / 25, 36.0)
        hint = (
            "return the number of right answers, not a share"
            if share
            else "compare prediction i with the place of line i"
        )
        if first[0] == 25 and (first[1], whole[1]) == (0, 1):
            hint = "the newline is still at the end of each place: use strip()"
        correct = Finding("correct", "fail", None, evidence, hint)
    return [*findings, correct, _check_exact(evaluation, first)]


def _of_fewer_lines(evaluation: Evaluation, total: int) -> list[tuple[float, float]]:
    """What is right for a submission that leaves out lines at either end, which costs points elsewhere."""
    if not 0 < total < 25:
        return []
    kept = (range(25 - total, 25), range(total))
    fewer = [(float(sum(number in lines for number in evaluation.hits)), float(total)) for lines in kept]
    return [*fewer, evaluation.moved] if total == 24 else fewer


def _check_exact(evaluation: Evaluation, first: tuple[float, float]) -> Finding:
    """Another case, or a letter more or less, is wrong."""
    near = evaluation.case(2)
    if first[1] in (9 / 25, 36.0) and near[0]:  # a share, which is judged above
        near = near[0], round(near[1] * near[0] / (100 if first[1] == 36.0 else 1))
    exact = Finding("exact match", "pass", 0.0, "another case, or one letter more or less, is wrong")
    right = evaluation.expected[2][1]
    finds_few = near[1] < right and (first[1] < 9 or first[0] < 25)  # it counts too little everywhere: judged by that
    if near[1] != right and not finds_few:
        evidence = (
            f"of predictions in lower case or with one letter more or less it counts {near[1]:g}, expected {right:g}"
        )
        causes = {
            17.0: ": upper and lower case are not told apart",
            13.0: ": a letter more counts as right",
            11.0: ": a letter less counts as right",
            16.0: ": a letter more or less counts as right",
        }
        evidence += causes.get(near[1], "")
        exact = Finding("exact match", "fail", None, evidence, "compare the whole strings with ==")
    return exact


def check_no_places(evaluation: Evaluation) -> list[Finding]:
    found = evaluation.case(3)
    if found == (0.0, 0.0):
        return [Finding("no places", "pass", 0.0, "without places in the file it returns (0, 0)")]
    evidence = f"for a file without places it returns ({found[0]:g}, {found[1]:g})"
    return [Finding("no places", "fail", None, evidence, "return (0, 0) if the lines have no second column")]


def check_greedy(evaluation: Evaluation) -> list[Finding]:
    """Without sampling, the most likely token is appended each time."""
    found, tokens = evaluation.sample("greedy"), evaluation.tokens
    if tuple(found.shape) != (2, 3 + STEPS):
        evidence = f"{STEPS} steps after 3 tokens give shape {tuple(found.shape)}, expected {(2, 3 + STEPS)}"
        hints = {4: "return after the loop, not in it", STEPS: "return the given tokens too, not only the new ones"}
        hint = hints.get(found.shape[-1], "append one token for each step")
        return [Finding("greedy", "fail", None, evidence, hint, "shape of tokens")]
    expected = _greedy(tokens)
    if torch.equal(found, expected):
        return [Finding("greedy", "pass", 0.0, "the most likely token is appended at each step")]
    if _crops_wrongly(evaluation):  # the tokens are those that its inputs make most likely
        return [Finding("greedy", "pass", None, "the most likely token after the model's input is appended each time")]
    evidence = f"it gives {found[0].tolist()[:8]}…, expected {expected[0].tolist()[:8]}…"
    hint = "take the largest of the last position's logits"
    if not torch.equal(found, evaluation.tensors.get("greedy again", found)):
        evidence = "without sampling, two calls give different tokens"
        hint = "sample only if sample=True; otherwise take the largest of the last position's logits"
        return [Finding("greedy", "fail", None, evidence, hint, "random choice")]
    return [Finding("greedy", "fail", None, evidence, hint)]


def _greedy(tokens: Tensor) -> Tensor:
    for _ in range(STEPS):
        tokens = torch.cat((tokens, (tokens[:, -1:] + 3) % SIZE), dim=1)
    return tokens


def _inputs(evaluation: Evaluation, name: str = "greedy") -> list[Tensor]:
    """What the model got at each step; empty if it was called another number of times."""
    inputs = evaluation.values.get(f"{name} inputs")
    if not isinstance(inputs, list) or len(inputs) != STEPS:
        return []
    return [torch.tensor(each) for each in inputs]


def _crops_wrongly(evaluation: Evaluation) -> bool:
    """Whether the model gets other tokens than the last ones, and what it appends is right for what it gets."""
    inputs, found = _inputs(evaluation), evaluation.sample("greedy")
    if not inputs or tuple(found.shape) != (2, 3 + STEPS):
        return False
    right = all(torch.equal(found[:, 3 + n], (each[:, -1] + 3) % SIZE) for n, each in enumerate(inputs))
    return right and any(
        not torch.equal(each, found[:, max(0, 3 + n - BLOCK_SIZE) : 3 + n]) for n, each in enumerate(inputs)
    )


def check_context(evaluation: Evaluation) -> list[Finding]:
    """The model never gets more than block_size tokens, and gets the last ones up to there."""
    evaluation.sample("greedy")
    lengths = evaluation.values.get("greedy lengths")
    most = max(lengths) if isinstance(lengths, list) and lengths else 0
    hint = "give the model the last tokens: x_cond = x[:, -block_size:]"
    if isinstance(lengths, list) and 0 < len(lengths) < STEPS and most < BLOCK_SIZE:
        return [Finding("context", "pass", None, "there are too few steps to see it, which is judged elsewhere")]
    if most != BLOCK_SIZE:
        evidence = f"the model got up to {most} tokens with block_size {BLOCK_SIZE}"
        return [Finding("context", "fail", None, evidence, hint)]
    if _crops_wrongly(evaluation):
        evidence = "a sequence longer than block_size is cut to other tokens than its last ones"
        return [Finding("context", "fail", None, evidence, hint)]
    return [Finding("context", "pass", 0.0, f"the model gets at most block_size = {BLOCK_SIZE} tokens, the last ones")]


def check_modes(evaluation: Evaluation) -> list[Finding]:
    evaluation.sample("greedy")
    modes, grads = (evaluation.values.get(f"greedy {name}") for name in ("modes", "grads"))
    if modes and any(modes):
        return [
            Finding("eval mode", "fail", None, "the model samples in training mode: dropout is on", "call model.eval()")
        ]
    if grads and any(grads):
        return [Finding("eval mode", "fail", None, "gradients are recorded while sampling", "use torch.no_grad()")]
    return [Finding("eval mode", "pass", 0.0, "in eval mode, without gradients")]


def check_top_k(evaluation: Evaluation) -> list[Finding]:
    one, two, greedy = (evaluation.sample(name) for name in ("one of one", "one of two", "greedy"))
    hint = "set logits below the k-th largest to −∞ before the softmax"
    if check_greedy(evaluation)[0].verdict != "pass" and torch.equal(one, greedy) and not torch.equal(two, greedy):
        return [Finding("top k", "pass", None, "with top_k=1 sampling is its greedy choice, which is judged above")]
    if not torch.equal(one, greedy) and not torch.equal(one, _greedy(evaluation.tokens)):
        return [Finding("top k", "fail", None, "with top_k=1 sampling differs from the greedy choice", hint)]
    if two.shape != greedy.shape:
        return [Finding("top k", "fail", None, f"with top_k=2 it gives shape {tuple(two.shape)}", hint)]
    before = [each[:, -1] for each in _inputs(evaluation, "one of two")]  # after what the model was given
    steps = (two[:, 3:] - (torch.stack(before, 1) if before else two[:, 2:-1])) % SIZE
    if bool(((steps == 3) | (steps == 5)).all()):
        return [Finding("top k", "pass", 0.0, "with top_k=2 only the two most likely tokens occur")]
    return [Finding("top k", "fail", None, "with top_k=2 other tokens than the two most likely occur", hint)]


def check_temperature(evaluation: Evaluation) -> list[Finding]:
    """Close to temperature 0, sampling gives the most likely token."""
    cold, greedy = evaluation.sample("cold"), evaluation.sample("greedy")
    inputs = _inputs(evaluation, "cold")  # what is most likely after the model's own inputs
    own = torch.stack([(each[:, -1] + 3) % SIZE for each in inputs], dim=1) if inputs else None
    is_likely = own is not None and torch.equal(cold[:, -STEPS:], own)
    if is_likely or torch.equal(cold, greedy) or torch.equal(cold, _greedy(evaluation.tokens)):
        return [Finding("temperature", "pass", 0.0, f"at temperature {COLD} only the most likely token is drawn")]
    evidence = f"at temperature {COLD} other tokens than the most likely one are drawn"
    return [Finding("temperature", "fail", None, evidence, "divide the logits by the temperature before the softmax")]


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or rubric.interface.settings:
        raise ValueError(f'{where}: this exercise is a function without further settings: function = "evaluate_places"')


EVALUATION = Exercise(
    prepare,
    (
        GradedCheck(("total", "correct", "exact match"), check_counts),
        GradedCheck(("no places",), check_no_places),
        GradedCheck(("greedy",), check_greedy),
        GradedCheck(("context",), check_context),
        GradedCheck(("eval mode",), check_modes),
        GradedCheck(("top k",), check_top_k),
        GradedCheck(("temperature",), check_temperature),
    ),
    validate,
    require_response_of_evaluation,
    also=("sample", "top_k_logits"),
    stubs=STUBS,
    lines={
        "total": (r"^\s*return\s+(?!\(?0\b).*,", r"(?#last)return ", r"total|len\("),
        "correct": (r"correct|right|hits", r"=="),
        "exact match": (
            r"lower\(|upper\(|casefold|startswith|endswith",
            r"if\b.*\bin\b",
            r"\bin (guess|pred|answer|got|want|true|gold|g|p)\w*\b",
            r"(true|gold|place|pred|want|answer)\w*\)?\s*==|==\s*\(?\w*(true|gold|place|pred|got|answer)",
            r"==",
        ),
        "no places": (r"len\(lines", r"split"),
        "greedy": (r"logits?\w*\[\s*:\s*,", r"topk|argmax", r"\bmax\(", r"def sample"),
        "shape of tokens": (r"return ", r"def sample"),
        "random choice": (r"multinomial|rand",),
        "context": (r"\[:,.*:", r"block_size", r"def sample"),
        "eval mode": (r"\.eval\(\)|no_grad", r"def sample"),
        "temperature": (r"[/*]\s*(self\.)?temp\w*|\.(div|mul)_?\(\s*temp", r"softmax", r"def sample"),
        "top k": (r"inf\b|masked_fill|\[.*<.*\]\s*=", r"top_?k"),
    },
    fixes={"no places": "return (0, 0) if the lines have no second column"},
    owners={
        "greedy": ("sample",),
        "context": ("sample",),
        "eval mode": ("sample",),
        "top k": ("top_k_logits", "sample"),
        "temperature": ("sample",),
    },
)
