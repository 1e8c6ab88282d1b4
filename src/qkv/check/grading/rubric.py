"""Rubrics: what a student supplies, which properties it must have, and how many points each is worth.

A rubric is a TOML file; those of the usual exercises come with qkv and are called by name.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.check.contract import NOTHING, Contract
from qkv.check.grading.remote import Limits

SHIPPED = Path(__file__).with_name("rubrics")


@dataclass(frozen=True)
class Property:
    """Points for checks that must all pass."""

    name: str
    points: float
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Interface:
    """What a student supplies: the name of a class or a function, how it is built and called.

    signature: the same in words, for the student. settings: what the exercise must know of it.
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
    contract: Contract = NOTHING
    limits: Limits = field(default_factory=Limits)

    @property
    def total(self) -> float:
        return sum(found.points for found in self.properties)

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check for found in self.properties for check in found.checks))


def shipped() -> dict[str, Path]:
    """The rubrics that come with qkv, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find_rubric(said: str) -> Path:
    """A rubric's file: a path, or the name of one that comes with qkv."""
    path = Path(said)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ValueError(f"there is no rubric {said}")
        return path
    known = shipped()
    if said not in known:
        near = difflib.get_close_matches(said, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"rubrics are a .toml file or one of {', '.join(known)}; got {said!r}{meant}")
    return known[said]


def load_rubric(said: str) -> Rubric:
    """Read a rubric; whatever is wrong in it is said in one sentence.

    >>> load_rubric("rope").total
    10.0
    """
    path = find_rubric(said)
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    return _rubric(read, path.stem, str(path))


def _rubric(read: dict[str, Any], name: str, where: str) -> Rubric:
    from qkv.check.grading.exercises import EXERCISES

    _only(read, {"title", "exercise", "interface", "contract", "properties", "limits"}, where)
    exercise = _text(read, "exercise", where)
    if exercise not in EXERCISES:
        raise ValueError(f"{where}: exercises are {', '.join(EXERCISES)}; got {exercise!r}")
    rubric = Rubric(
        name=name,
        title=_text(read, "title", where),
        exercise=exercise,
        interface=_interface(_table(read, "interface", where), where),
        contract=_made(Contract, _table(read, "contract", where, {}), f"{where}: contract"),
        limits=_made(Limits, _table(read, "limits", where, {}), f"{where}: limits"),
        properties=_properties(read.get("properties"), EXERCISES[exercise].checks, where),
    )
    try:
        EXERCISES[exercise].validate(rubric, where)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where}: something in [interface] is of the wrong kind: {error}") from None
    return rubric


def _interface(read: dict[str, Any], where: str) -> Interface:
    kinds = [kind for kind in ("class", "function") if kind in read]
    if len(kinds) != 1:
        raise ValueError(f'{where}: an interface names either a class or a function: class = "…"')
    build = read.get("build", {})
    if not isinstance(build, dict) or (kinds == ["function"] and build):
        raise ValueError(f"{where}: build is a table of a class's arguments: build = {{ width = 32 }}")
    settings = {key: value for key, value in read.items() if key not in ("class", "function", "build", "signature")}
    name = _text(read, kinds[0], where)
    return Interface(name, _text(read, "signature", where), build if kinds == ["class"] else None, settings)


def _properties(read: Any, known: tuple[str, ...], where: str) -> tuple[Property, ...]:
    if not isinstance(read, list) or not read:
        raise ValueError(f"{where}: a rubric has [[properties]], each with a name, points and checks")
    found = []
    for number, entry in enumerate(read, 1):
        place = f"{where}: property {number}"
        if not isinstance(entry, dict):
            raise ValueError(f"{place} is a table with a name, points and checks")
        _only(entry, {"name", "points", "checks"}, place)
        points, checks = entry.get("points"), entry.get("checks")
        if isinstance(points, bool) or not isinstance(points, int | float) or not 0 <= points < math.inf:
            raise ValueError(f"{place}: points is a number from 0; got {points!r}")
        if not isinstance(checks, list) or not checks:
            raise ValueError(f"{place}: checks is a list of names; there are {', '.join(known)}")
        for check in checks:
            if check not in known:
                near = difflib.get_close_matches(str(check), known, n=1)
                meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
                raise ValueError(f"{place}: there is no check {check!r} for this exercise{meant}")
        found.append(Property(_text(entry, "name", place), float(points), tuple(checks)))
    names = [entry.name for entry in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: two properties have the same name")
    if not sum(entry.points for entry in found):
        raise ValueError(f"{where}: the properties are worth no points at all")
    return tuple(found)


def _made(kind: type[Any], read: dict[str, Any], where: str) -> Any:
    try:
        return kind(**read)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _table(read: dict[str, Any], key: str, where: str, otherwise: dict[str, Any] | None = None) -> dict[str, Any]:
    value = read.get(key, otherwise)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: [{key}] is a table, and it must be there")
    return value


def _text(read: dict[str, Any], key: str, where: str) -> str:
    value = read.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} is a text, and it must be there; got {value!r}")
    return value.strip()


def _only(read: dict[str, Any], known: set[str], where: str) -> None:
    strange = sorted(set(read) - known)
    if strange:
        raise ValueError(f"{where}: {strange[0]!r} means nothing here; there are {', '.join(sorted(known))}")
