"""One claim, run in a process of its own: its numbers as soon as they are there, then its picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv._figures import draw
from qkv.claims import ClaimResult, run
from qkv.claims.mutants import replacing
from qkv.claims.predicates import Predicate
from qkv.claims.report import PARTS as TITLES
from qkv.claims.report import WORDS, shown

OUTCOMES = {True: "yes", False: "no", None: "cannot tell"}


def work(request: dict[str, Any], say: Callable[..., None]) -> None:
    """Says notes, then the result, then its picture, a panel at a time, so that a page can set them as it has room."""
    parts = replacing(request["wrong"]) if request["wrong"] else {}
    result = run(request["name"], request["seed"], note=lambda words: say(said=words), **parts, **request["knobs"])
    say(result=plain(result))
    say(pictures=[draw((panel,), name=f"{result.name}-{i}") for i, panel in enumerate(result.panels)])


def plain(result: ClaimResult) -> dict[str, Any]:
    """What the page shows; numbers are texts, as the library writes them and with all their digits."""
    return {
        "name": result.name,
        "verdict": result.verdict,
        "word": WORDS[result.verdict],
        "expected": result.expected,
        "expected_word": WORDS[result.expected],
        "condition": result.condition,
        "seed": result.seed,
        "seconds": round(result.seconds, 3),
        "knobs": result.knobs,
        "numbers": [
            {"name": name, "shown": shown(number), **_digits(number)} for name, number in result.numbers.items()
        ],
        "predicates": [_predicate(predicate) for predicate in result.predicates],
    }


def _digits(number: Any) -> dict[str, str]:
    if isinstance(number, dict):
        return {name: repr(value) for name, value in number.items()}
    return {"value": repr(number)}


def _predicate(predicate: Predicate) -> dict[str, Any]:
    return {
        "part": TITLES[predicate.part],
        "name": predicate.name,
        "measured": f"{predicate.value:.4g}",
        "bound": predicate.bound,
        "outcome": OUTCOMES[predicate.ok],
        "as_expected": predicate.as_expected,
    }
