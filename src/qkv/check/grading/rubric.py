"""Rubrics: TOML files that say what a student supplies, which properties it must have and what each is worth.

A rubric is one exercise, or a list of [[exercises]]. An exercise is written out, or taken from another rubric (`use`)
with other points. The rubrics of the usual exercises and of courses come with qkv and are called by name.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv._config import parse_toml
from qkv._files import read_limited
from qkv.check.contract import NO_PROMISES, Contract
from qkv.check.grading.client import Limits
from qkv.check.grading.exercises import EXERCISES

RUBRICS = Path(__file__).with_name("rubrics")
PROMISES = {
    "kind": "kind",
    "causal": "kind",
    "past reachable": "kind",
    "mask polarity": "mask",
    "alignment": "alignment",
    "grouped heads": "grouped",
}  # the promise that a check of attention compares with: without it nobody earns the points
OF_EXERCISE = {"name", "exercise", "interface", "contract", "properties", "use", "points"}
OF_RUBRIC = {"title", "limits", "exercises"}


@dataclass(frozen=True)
class Property:
    """Points for checks that must all pass; if `partial`, each check earns its share."""

    name: str
    points: float
    checks: tuple[str, ...]
    partial: bool = False


@dataclass(frozen=True)
class Interface:
    """What a student supplies: the name of a class or a function, how it is built and called.

    names: what it may be called; the first is the one that the exercise asks for.
    build: the arguments of a class; None for a function. signature: the interface in words, for the student.
    settings: what the exercise must know about it.
    """

    names: tuple[str, ...]
    signature: str
    build: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class GradedExercise:
    """One exercise of a rubric and its points. name: what its properties are listed under, if there are several."""

    name: str
    exercise: str
    interface: Interface
    properties: tuple[Property, ...]
    contract: Contract = NO_PROMISES

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check for part in self.properties for check in part.checks))


@dataclass(frozen=True)
class Rubric:
    """The exercises of a homework. digest: of the file and all it uses, to tell whether a grade is still valid."""

    name: str
    title: str
    exercises: tuple[GradedExercise, ...]
    limits: Limits = field(default_factory=Limits)
    digest: str = ""

    @property
    def total(self) -> float:
        return sum(part.points for part in self.properties)

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties of all exercises, with names that tell them apart."""
        if len(self.exercises) == 1:
            return self.exercises[0].properties
        return tuple(
            replace(part, name=f"{exercise.name}: {part.name}")
            for exercise in self.exercises
            for part in exercise.properties
        )

    @property
    def signature(self) -> str:
        """What a student supplies, in words."""
        return "\n".join(exercise.interface.signature for exercise in self.exercises)


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
    table, digest = _read_table(path)
    rubric = _parse_rubric(table, path.stem, str(path))
    used = [load_rubric(str(find_rubric(name))).digest for name in _used_rubrics(table)]
    return replace(rubric, digest=hashlib.sha256("".join((digest, *used)).encode()).hexdigest())


def _read_table(path: Path) -> tuple[dict[str, Any], str]:
    try:
        content = read_limited(path)
        return parse_toml(content.decode("utf-8")), hashlib.sha256(content).hexdigest()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


def _used_rubrics(table: dict[str, Any]) -> list[str]:
    entries = table.get("exercises", [table])
    return [entry["use"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("use"), str)]


def _parse_rubric(table: dict[str, Any], name: str, where: str) -> Rubric:
    entries = table.get("exercises")
    if entries is None:
        _check_keys(table, OF_RUBRIC | OF_EXERCISE, where)
        exercises = _parse_exercise(table, where)
    else:
        _check_keys(table, OF_RUBRIC, where)
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"{where}: exercises must be tables: [[exercises]]")
        exercises = []
        for number, entry in enumerate(entries, 1):
            place = f"{where}: exercise {number}"
            _check_keys(entry, OF_EXERCISE, place)
            exercises += _parse_exercise(entry, place)
    rubric = Rubric(
        name=name,
        title=_text(table, "title", where),
        exercises=tuple(exercises),
        limits=_build(Limits, _table(table, "limits", where, {}), f"{where}: limits"),
    )
    names = [part.name for part in rubric.properties]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: two properties have the same name; give each of the exercises its own name")
    if not rubric.total:
        raise ValueError(f"{where}: the properties are worth no points at all")
    return rubric


def _parse_exercise(table: dict[str, Any], where: str) -> list[GradedExercise]:
    """The exercise of a table: those of another rubric with changes, or one that is written out."""
    if "use" in table:
        return _use_exercises(table, where)
    exercise = _text(table, "exercise", where)
    if exercise not in EXERCISES:
        raise ValueError(f"{where}: exercise must be one of {', '.join(EXERCISES)}; got {exercise!r}")
    interface = _parse_interface(_table(table, "interface", where), where)
    graded = GradedExercise(
        name=_text(table, "name", where) if "name" in table else interface.name,
        exercise=exercise,
        interface=interface,
        contract=_build(Contract, _contract_table(exercise, table, where), f"{where}: contract"),
        properties=_parse_properties(table.get("properties"), EXERCISES[exercise].check_names, where),
    )
    return [_validated(_change_points(graded, table, where), where)]


def _contract_table(exercise: str, table: dict[str, Any], where: str) -> dict[str, Any]:
    """The promises of a rubric; attention has the usual scale and softmax unless it says otherwise."""
    usual = {"scale": "head", "softmax": "keys"} if exercise in ("layer", "function") else {}
    return usual | _table(table, "contract", where, {})


def _use_exercises(table: dict[str, Any], where: str) -> list[GradedExercise]:
    """The exercises of the rubric that `use` names, with this table's name, interface and points."""
    unusable = sorted(set(table) & {"exercise", "contract", "properties"})
    if unusable:
        raise ValueError(f"{where}: with use, only name, interface and points can be given; got {unusable[0]!r}")
    path = find_rubric(_text(table, "use", where))
    other, _ = _read_table(path)
    if _used_rubrics(other) and path not in bundled_rubrics().values():
        raise ValueError(f"{where}: {path} uses another rubric itself; use that one")
    exercises = list(_parse_rubric(other, path.stem, str(path)).exercises)
    if len(exercises) > 1 and {"name", "interface", "points"} & set(table):
        raise ValueError(f"{where}: {path.stem} has several exercises; use them one by one to change them")
    changed = _table(table, "interface", where, {})
    found = []
    for graded in exercises:
        interface = _change_interface(graded.interface, changed, where)
        name = _text(table, "name", where) if "name" in table else graded.name
        graded = replace(graded, name=name, interface=interface)
        found.append(_validated(_change_points(graded, table, where), where))
    return found


def _change_interface(interface: Interface, changed: dict[str, Any], where: str) -> Interface:
    if not changed:
        return interface
    kind = "function" if interface.build is None else "class"
    table: dict[str, Any] = {kind: list(interface.names), "signature": interface.signature, **interface.settings}
    if interface.build is not None:
        table["build"] = interface.build
    return _parse_interface(table | changed, where)


def _change_points(graded: GradedExercise, table: dict[str, Any], where: str) -> GradedExercise:
    """Other points for properties, by name; a property of 0 points is left out."""
    points = _table(table, "points", where, {})
    known = [part.name for part in graded.properties]
    for name, value in points.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            suggestion = f"did you mean {close[0]!r}?" if close else f"its properties: {', '.join(known)}"
            raise ValueError(f"{where}: this exercise has no property {name!r}; {suggestion}")
        _check_points(value, where)
    parts = [replace(part, points=float(points.get(part.name, part.points))) for part in graded.properties]
    return replace(graded, properties=tuple(part for part in parts if part.points or part.name not in points))


def _validated(graded: GradedExercise, where: str) -> GradedExercise:
    """The exercise, if submissions can earn its points: a check of a promise needs one in the contract."""
    for check in graded.checks:
        promise = PROMISES.get(check) if graded.exercise in ("layer", "function") else None
        if promise is not None and getattr(graded.contract, promise) is None:
            raise ValueError(
                f"{where}: the check {check!r} needs {promise} = … in [contract]: add it, or leave the check out"
            )
    try:
        EXERCISES[graded.exercise].validate(graded, where)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where}: a value in [interface] has the wrong type: {error}") from None
    return graded


def _parse_interface(table: dict[str, Any], where: str) -> Interface:
    kinds = [kind for kind in ("class", "function") if kind in table]
    if len(kinds) != 1:
        raise ValueError(f'{where}: the interface must name either a class or a function: class = "…"')
    build = table.get("build", {})
    if not isinstance(build, dict) or (kinds == ["function"] and build):
        raise ValueError(f"{where}: build must be a table of a class's arguments: build = {{ dim = 32 }}")
    settings = {key: value for key, value in table.items() if key not in ("class", "function", "build", "signature")}
    given = table[kinds[0]]
    names: list[Any] = given if isinstance(given, list) and given else [given]
    if not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ValueError(f"{where}: {kinds[0]} must be a name, or a list of accepted names, got {given!r}")
    return Interface(tuple(names), _text(table, "signature", where), build if kinds == ["class"] else None, settings)


def _parse_properties(entries: Any, known: tuple[str, ...], where: str) -> tuple[Property, ...]:
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{where}: a rubric needs [[properties]], each with a name, points and checks")
    parts = [_parse_property(entry, known, f"{where}: property {number}") for number, entry in enumerate(entries, 1)]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: two properties have the same name")
    return tuple(parts)


def _parse_property(entry: Any, known: tuple[str, ...], where: str) -> Property:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be a table with a name, points and checks")
    _check_keys(entry, {"name", "points", "checks", "partial"}, where)
    points, checks, partial = entry.get("points"), entry.get("checks"), entry.get("partial", False)
    _check_points(points, where)
    if not isinstance(partial, bool):
        raise ValueError(f"{where}: partial must be true or false, got {partial!r}")
    if not isinstance(checks, list) or not checks:
        raise ValueError(f"{where}: checks must be a list of names out of {', '.join(known)}")
    for check in checks:
        if check not in known:
            close = difflib.get_close_matches(str(check), known, n=1)
            suggestion = f"did you mean {close[0]!r}?" if close else f"known checks: {', '.join(known)}"
            raise ValueError(f"{where}: this exercise has no check {check!r}; {suggestion}")
    return Property(_text(entry, "name", where), float(entry["points"]), tuple(checks), partial)


def _check_points(points: Any, where: str) -> None:
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 <= points < math.inf:
        raise ValueError(f"{where}: points must be a number of at least 0, got {points!r}")


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
