"""Rubrics: TOML files that say what a student supplies, which properties it must have and what each is worth.

The rubrics of the usual exercises come with qkv and are called by name.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.check.contract import NO_PROMISES, Contract
from qkv.check.grading.client import Limits
from qkv.check.grading.exercises import EXERCISES

RUBRICS = Path(__file__).with_name("rubrics")


@dataclass(frozen=True)
class Property:
    """Points for checks that must all pass."""

    name: str
    points: float
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Interface:
    """What a student supplies: the name of a class or a function, how it is built and called.

    build: the arguments of a class; None for a function. signature: the interface in words, for the student.
    settings: what the exercise must know about it.
    """

    name: str
    signature: str
    build: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rubric:
    """One exercise and its points."""

    name: str
    title: str
    exercise: str
    interface: Interface
    properties: tuple[Property, ...]
    contract: Contract = NO_PROMISES
    limits: Limits = field(default_factory=Limits)

    @property
    def total(self) -> float:
        return sum(part.points for part in self.properties)

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check for part in self.properties for check in part.checks))


def bundled_rubrics() -> dict[str, Path]:
    """The rubrics that come with qkv, by name."""
    return {path.stem: path for path in sorted(RUBRICS.glob("*.toml"))}


def find_rubric(name: str) -> Path:
    """The file of a rubric, given its path or the name of one that comes with qkv."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ValueError(f"there is no rubric {name}")
        return path
    bundled = bundled_rubrics()
    if name not in bundled:
        close = difflib.get_close_matches(name, bundled, n=1)
        suggestion = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"a rubric must be a .toml file or one of {', '.join(bundled)}; got {name!r}{suggestion}")
    return bundled[name]


def load_rubric(name: str) -> Rubric:
    """Read a rubric; a ValueError says in one sentence what is wrong with it.

    >>> load_rubric("rope").total
    10.0
    """
    path = find_rubric(name)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    return _parse_rubric(table, path.stem, str(path))


def _parse_rubric(table: dict[str, Any], name: str, where: str) -> Rubric:
    _check_keys(table, {"title", "exercise", "interface", "contract", "properties", "limits"}, where)
    exercise = _text(table, "exercise", where)
    if exercise not in EXERCISES:
        raise ValueError(f"{where}: exercise must be one of {', '.join(EXERCISES)}; got {exercise!r}")
    rubric = Rubric(
        name=name,
        title=_text(table, "title", where),
        exercise=exercise,
        interface=_parse_interface(_table(table, "interface", where), where),
        contract=_build(Contract, _table(table, "contract", where, {}), f"{where}: contract"),
        limits=_build(Limits, _table(table, "limits", where, {}), f"{where}: limits"),
        properties=_parse_properties(table.get("properties"), EXERCISES[exercise].check_names, where),
    )
    try:
        EXERCISES[exercise].validate(rubric, where)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where}: a value in [interface] has the wrong type: {error}") from None
    return rubric


def _parse_interface(table: dict[str, Any], where: str) -> Interface:
    kinds = [kind for kind in ("class", "function") if kind in table]
    if len(kinds) != 1:
        raise ValueError(f'{where}: the interface must name either a class or a function: class = "…"')
    build = table.get("build", {})
    if not isinstance(build, dict) or (kinds == ["function"] and build):
        raise ValueError(f"{where}: build must be a table of a class's arguments: build = {{ dim = 32 }}")
    settings = {key: value for key, value in table.items() if key not in ("class", "function", "build", "signature")}
    name = _text(table, kinds[0], where)
    return Interface(name, _text(table, "signature", where), build if kinds == ["class"] else None, settings)


def _parse_properties(entries: Any, known: tuple[str, ...], where: str) -> tuple[Property, ...]:
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{where}: a rubric needs [[properties]], each with a name, points and checks")
    parts = [_parse_property(entry, known, f"{where}: property {number}") for number, entry in enumerate(entries, 1)]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: two properties have the same name")
    if not sum(part.points for part in parts):
        raise ValueError(f"{where}: the properties are worth no points at all")
    return tuple(parts)


def _parse_property(entry: Any, known: tuple[str, ...], where: str) -> Property:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be a table with a name, points and checks")
    _check_keys(entry, {"name", "points", "checks"}, where)
    points, checks = entry.get("points"), entry.get("checks")
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 <= points < math.inf:
        raise ValueError(f"{where}: points must be a number of at least 0, got {points!r}")
    if not isinstance(checks, list) or not checks:
        raise ValueError(f"{where}: checks must be a list of names out of {', '.join(known)}")
    for check in checks:
        if check not in known:
            close = difflib.get_close_matches(str(check), known, n=1)
            suggestion = f"did you mean {close[0]!r}?" if close else f"known checks: {', '.join(known)}"
            raise ValueError(f"{where}: this exercise has no check {check!r}; {suggestion}")
    return Property(_text(entry, "name", where), float(points), tuple(checks))


def _build(kind: type[Any], table: dict[str, Any], where: str) -> Any:
    try:
        return kind(**table)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _table(table: dict[str, Any], key: str, where: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    value = table.get(key, default)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: the table [{key}] is required")
    return value


def _text(table: dict[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} must be a non-empty text, got {value!r}")
    return value.strip()


def _check_keys(table: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
