"""Settings as plain nested tables: written as TOML, changed by dotted names, read back with every mistake named."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from qkv._config import KINDS

Table = dict[str, Any]


def changed(table: Table, changes: Mapping[str, Any], *, where: str = "the settings", path: str = "") -> Table:
    """The table with some values replaced; {"model.dim": 64} and {"model": {"width": 64}} say the same.

    A name that the table does not have is a ValueError that offers the nearest one. Where a part is described, another
    may be chosen by its name; the fields of the one before go with it.

    where, path: whose settings, and the way to this table in them, for the message if something does not fit.

    >>> changed({"seed": 0, "model": {"width": 32}}, {"model.dim": 64})
    {'seed': 0, 'model': {'width': 64}}
    >>> changed({"model": {"position": {"kind": "Rope", "base": 10000.0}}}, {"model.position": "learned"})
    {'model': {'position': 'learned'}}
    >>> changed({"position": {"kind": "Rope", "base": 10000.0}}, {"position.kind": "Alibi"})
    {'position': {'kind': 'Alibi'}}
    """
    result = {name: dict(value) if isinstance(value, dict) else value for name, value in table.items()}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if head not in table:
            raise ValueError(f"{where} have no {path}{name}{_near(head, list(table), path)}")
        here = result[head]
        part = isinstance(here, dict) and here.get("kind") in KINDS
        if rest or (isinstance(value, Mapping) and isinstance(here, dict) and "kind" not in value):
            if not isinstance(here, dict):
                raise ValueError(f"{path}{head} is one value ({here!r}) in {where}; there is no {path}{name}")
            inner = {rest: value} if rest else value
            result[head] = changed(here, inner, where=where, path=f"{path}{head}.")
        elif part and isinstance(value, str):
            result[head] = {"kind": value} if value in KINDS else value
        elif isinstance(here, dict) and not isinstance(value, Mapping):
            known = ", ".join(here)
            raise ValueError(f"{path}{head} is a table with {known}; set one of them: {path}{head}.NAME=VALUE")
        elif head == "kind" and here in KINDS and value != here:
            result = {"kind": value}
        else:
            result[head] = value
    return result


def parse_change(text: str) -> tuple[str, Any]:
    """NAME=VALUE as the command line gives it; the value as TOML has it, or else as it stands.

    >>> parse_change("model.dim=64"), parse_change("data.path=texts/a.txt"), parse_change("train.clip=none")
    (('model.dim', 64), ('data.path', 'texts/a.txt'), ('train.clip', 'none'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"a setting is changed by NAME=VALUE, such as model.dim=64; got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def read_toml(path: str | Path) -> Table:
    """A TOML file as a table."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; a recipe's changes stand in a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def to_toml(table: Table, *, comment: str = "") -> str:
    """A table of tables of plain values as TOML; plain values first, then a section for each table.

    >>> print(to_toml({"seed": 0, "model": {"width": 32, "norm": "layer", "window": None}}))
    seed = 0
    <BLANKLINE>
    [model]
    width = 32
    norm = "layer"
    window = "none"
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_value(item)}" for key, item in value.items())]
    return "\n".join(lines) + "\n"


def with_nothing(kind: type, table: Table) -> Table:
    """TOML has no word for None: "none" is it, in a field that may be None and does not itself know that word.

    >>> from qkv.models import GPTConfig
    >>> with_nothing(GPTConfig, {"window": "none", "position": "none"})
    {'window': None, 'position': 'none'}
    """
    hints = get_type_hints(kind)
    result: Table = {}
    for name, value in table.items():
        hint = hints.get(name)
        if isinstance(value, dict) and (part := KINDS.get(str(value.get("kind"))) or _group(hint)):
            value = with_nothing(part, value)
        elif value == "none" and type(None) in get_args(hint) and not _knows(hint, "none"):
            value = None
        result[name] = value
    return result


def _group(hint: Any) -> type | None:
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _knows(hint: Any, word: str) -> bool:
    return word in get_args(hint) or hint is str or any(_knows(option, word) for option in get_args(hint))


def difference(before: Table, after: Table, prefix: str = "") -> str | None:
    """The first setting in which two tables differ, as a phrase; None if they agree."""
    for name in {**before, **after}:
        one, other = before.get(name), after.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            if found := difference(one, other, f"{prefix}{name}."):
                return found
        elif one != other:
            return f"{prefix}{name} was {one!r} and is now {other!r}"
    return None


def flat(table: Table, path: str = "") -> Table:
    """Nested tables as one, by dotted names.

    >>> flat({"seed": 0, "model": {"width": 32}})
    {'seed': 0, 'model.dim': 32}
    """
    found: Table = {}
    for name, value in table.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def differing(tables: Sequence[Table]) -> dict[str, list[Any]]:
    """The settings in which several tables differ, by dotted name: one value of each; "–" where one has none.

    >>> differing([{"seed": 0, "model": {"width": 32}}, {"seed": 1, "model": {"width": 32}}])
    {'seed': [0, 1]}
    """
    flats = [flat(table) for table in tables]
    names = dict.fromkeys(name for table in flats for name in table)
    found = {name: [table.get(name, "–") for table in flats] for name in names}
    return {name: values for name, values in found.items() if len({str(value) for value in values}) > 1}


def _value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"a setting is a number, a word, a list or a table of them; got {type(value).__name__}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _near(name: str, known: list[str], path: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    whose = f"{path.removesuffix('.')} has" if path else "they have"
    return f"; did you mean {path}{near[0]}?" if near else f"; {whose} {', '.join(known)}"
