"""Span corruption: a text with a gap, and what stood there at its end.

"Where was Ada born?" → "Where w⁇ born?⁇as Ada□□□□": prefix ⁇ suffix ⁇ masked, then padding to the block's length.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.check.finding import Finding
from qkv.check.grading.exercises.exercise import Exercise, Producer
from qkv.check.grading.remote import Call, Remote, UnansweredError
from qkv.check.grading.secret import salted

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric

DRAWS = 60
LETTERS = string.ascii_letters + string.digits + " ,.äéß"


@dataclass(frozen=True)
class Drawn:
    """A document, the block's length, and what came of it."""

    document: str
    block: int
    text: str


@dataclass(frozen=True)
class Spans:
    """function(document, block, rng) -> text, asked many times."""

    remote: Remote
    mask: str
    pad: str
    shortest: int
    share: tuple[float, float]
    longest: float
    drawn: tuple[Drawn, ...]

    def parts(self, one: Drawn) -> tuple[str, str, str] | None:
        """Prefix, suffix and masked, where the text has that form."""
        pieces = one.text.rstrip(self.pad).split(self.mask)
        return None if len(pieces) != 3 or self.pad in "".join(pieces) else (pieces[0], pieces[1], pieces[2])


def prepare(remote: Remote, rubric: Rubric) -> Spans:
    """Draw documents and ask for all of them, three times over: long ones, short ones, the same one again."""
    settings = rubric.interface.settings
    rng = random.Random(salted(remote.seed, 70))
    cases = []
    for number in range(DRAWS):
        block = settings["block"]
        length = rng.randint(2 * block, 3 * block) if number % 3 else rng.randint(settings["shortest"], block // 2)
        cases.append(("".join(rng.choice(LETTERS) for _ in range(length)), block, rng.getrandbits(31)))
    texts = _asked(remote, cases)
    drawn = tuple(Drawn(document, block, text) for (document, block, _), text in zip(cases, texts, strict=True))
    least, most = settings["share"]
    return Spans(
        remote, settings["mask"], settings["pad"], settings["shortest"], (least, most), settings["longest"], drawn
    )


def _asked(remote: Remote, cases: list[tuple[str, int, int]]) -> list[str]:
    calls = [Call((document, block, {"random": seed})) for document, block, seed in cases]
    results, _ = remote.call(calls)
    if not all(isinstance(result, str) for result in results):
        raise UnansweredError("it returned no text")
    return [str(result) for result in results]


def length(spans: Spans) -> list[Finding]:
    wrong = [one for one in spans.drawn if len(one.text) != one.block]
    hint = "pad with the padding sign up to the block's length, and never beyond"
    return [_counted("length", spans, wrong, lambda one: f"{len(one.text)} signs, expected {one.block}", hint)]


def form(spans: Spans) -> list[Finding]:
    wrong = [one for one in spans.drawn if spans.parts(one) is None]
    hint = f"prefix {spans.mask} suffix {spans.mask} masked, then {spans.pad} only"
    return [
        _counted("form", spans, wrong, lambda one: f"{one.text.count(spans.mask)} mask signs in {_short(one)}", hint)
    ]


def content(spans: Spans) -> list[Finding]:
    """prefix + masked + suffix is the beginning of the document."""
    wrong = []
    for one in spans.drawn:
        parts = spans.parts(one)
        if parts is None or not one.document.startswith(parts[0] + parts[2] + parts[1]):
            wrong.append(one)
    hint = "prefix + masked + suffix, put together again, must be the beginning of the document"
    return [_counted("content", spans, wrong, lambda one: f"{_short(one)} is not made of its document in order", hint)]


def cut(spans: Spans) -> list[Finding]:
    """Documents are cut at a random length, neither too short nor too long."""
    kept = {one: len("".join(parts)) for one in spans.drawn if (parts := spans.parts(one)) is not None}
    lengths = [kept[one] for one in kept if len(one.document) > one.block]
    if not lengths:
        return [Finding("cut", "fail", None, "no text has the form that could be measured")]
    block = spans.drawn[0].block
    least, most, different = min(lengths), max(lengths), len(set(lengths))
    evidence = f"long documents are cut at {least} to {most} signs, {different} different lengths in {len(lengths)}"
    hint = f"cut at a random length from {spans.shortest} to {int(spans.longest * block)} signs"
    fine = least >= spans.shortest and most <= spans.longest * block and different >= 5 and most - least >= block / 4
    return [Finding("cut", "pass" if fine else "fail", None, evidence, None if fine else hint)]


def share(spans: Spans) -> list[Finding]:
    """About a quarter is masked, on average, and not always the same part."""
    found = [(parts, sum(map(len, parts))) for one in spans.drawn if (parts := spans.parts(one)) is not None]
    shares = [len(parts[2]) / total for parts, total in found if total]
    if not shares:
        return [Finding("masked share", "fail", None, "no text has the form that could be measured")]
    mean, different = sum(shares) / len(shares), len({len(parts[2]) for parts, _ in found})
    evidence = f"{mean:.0%} is masked on average, {different} different lengths in {len(shares)}"
    fine = spans.share[0] <= mean <= spans.share[1] and different >= 4 and min(shares) > 0
    hint = "a random number of signs, a quarter of the text on average, and at least one"
    return [Finding("masked share", "pass" if fine else "fail", mean, evidence, None if fine else hint)]


def place(spans: Spans) -> list[Finding]:
    """The gap stands anywhere."""
    found = [parts for one in spans.drawn if (parts := spans.parts(one)) is not None]
    starts = [len(prefix) / max(1, len(prefix) + len(suffix)) for prefix, suffix, _ in found]
    if not starts:
        return [Finding("place", "fail", None, "no text has the form that could be measured")]
    evidence = f"the gap begins at {min(starts):.0%} to {max(starts):.0%} of what is left"
    fine = max(starts) - min(starts) >= 0.5
    return [Finding("place", "pass" if fine else "fail", None, evidence, None if fine else "draw where the gap begins")]


def repeats(spans: Spans) -> list[Finding]:
    """The same document and the same generator give the same; another generator gives another."""
    rng = random.Random(salted(spans.remote.seed, 71))
    document, block = spans.drawn[1].document, spans.drawn[1].block
    seeds = [rng.getrandbits(31) for _ in range(6)]
    first, again = (_asked(spans.remote, [(document, block, seed) for seed in seeds]) for _ in range(2))
    if first != again:
        hint = "draw from the generator that is handed in, and from nothing else"
        return [Finding("randomness", "fail", 1.0, "the same generator gave another text", hint)]
    if len(set(first)) < 3:
        return [Finding("randomness", "fail", 1.0, "other generators gave the same text", "draw from the generator")]
    return [Finding("randomness", "pass", 0.0, "the same generator gives the same text, others give others")]


def _counted(check: str, spans: Spans, wrong: list[Drawn], words: Any, hint: str) -> Finding:
    if not wrong:
        return Finding(check, "pass", 0.0, f"in all {len(spans.drawn)} texts")
    evidence = f"wrong in {len(wrong)} of {len(spans.drawn)} texts, first: {words(wrong[0])}"
    return Finding(check, "fail", len(wrong) / len(spans.drawn), evidence, hint)


def _short(one: Drawn) -> str:
    return repr(one.text if len(one.text) <= 40 else f"{one.text[:18]}…{one.text[-18:]}")


def validate(rubric: Rubric, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is not None or set(settings) != {"block", "mask", "pad", "shortest", "longest", "share"}:
        raise ValueError(
            f"{where}: this exercise is a function, and interface has block, mask, pad, shortest, longest and share"
        )
    signs = (settings["mask"], settings["pad"])
    if any(len(sign) != 1 or sign in LETTERS for sign in signs) or signs[0] == signs[1]:
        raise ValueError(f"{where}: mask and pad are two signs that stand in no text")


SPANS = Exercise(
    prepare,
    (
        Producer(("length",), length),
        Producer(("form",), form),
        Producer(("content",), content),
        Producer(("cut",), cut),
        Producer(("masked share",), share),
        Producer(("place",), place),
        Producer(("randomness",), repeats),
    ),
    validate,
)
