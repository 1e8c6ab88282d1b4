"""What an exercise is to the grader: something prepared once, and producers of findings about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.check.finding import Finding

if TYPE_CHECKING:
    from qkv.check.grading.remote import Remote
    from qkv.check.grading.rubric import Rubric


@dataclass(frozen=True)
class Producer:
    """The names of the checks that it makes findings of, and how."""

    checks: tuple[str, ...]
    find: Callable[[Any], list[Finding]]


def _fine(rubric: Rubric, where: str) -> None:
    """Nothing more to ask of a rubric."""


@dataclass(frozen=True)
class Exercise:
    """prepare: opens the submission; what it returns goes to the producers. validate: what a rubric must say."""

    prepare: Callable[[Remote, Rubric], Any]
    producers: tuple[Producer, ...]
    validate: Callable[[Rubric, str], None] = _fine

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(check for producer in self.producers for check in producer.checks)


def equality(check: str, off: float, limit: float, words: str, hint: str | None = None) -> list[Finding]:
    """A finding of two results that must be the same; NaN is not."""
    same = off <= limit
    return [Finding(check, "pass" if same else "fail", off, f"{words} by {off:.2g}", None if same else hint)]
