"""Convert config dataclasses to plain dicts, JSON and TOML and back, with dotted overrides (model.dim=64).

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Inner:
...     rate: float = 0.5
>>> @dataclass(frozen=True)
... class Outer:
...     steps: int = 3
...     inner: Inner = Inner()
>>> to_dict(Outer())
{'steps': 3, 'inner': {'rate': 0.5}}
>>> from_dict(Outer, {"inner": {"rat": 1}}, "mine.toml")
Traceback (most recent call last):
ValueError: mine.toml: inner has no field 'rat', did you mean 'rate'?
>>> from_dict(Outer, {"step": 1, "inner": {"rate": "high"}}, "mine.toml")
Traceback (most recent call last):
ValueError: mine.toml: 2 mistakes:
  Outer has no field 'step', did you mean 'steps'?
  inner.rate must be a number, got 'high'
"""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qkv._files import read_limited

Config = TypeVar("Config")
Class = TypeVar("Class", bound=type)
Table = dict[str, Any]

MAX_TOML_BYTES = 4 * 2**20
MAX_TOML_DEPTH = 200  # dots in a key
RECIPE_FILE = "recipe.toml"  # the config of a run, in its directory
VARIANTS: dict[str, type] = {}  # classes that share a field: as plain data each carries its name under "kind"


def variant(cls: Class) -> Class:
    """Register a dataclass as one of several that a field may hold, such as the position schemes Rope and Alibi."""
    VARIANTS[cls.__name__] = cls
    return cls


# Dataclasses and plain dicts.


def to_dict(value: Any) -> Any:
    """Turn dataclasses into dicts and tuples into lists; numbers, strings and booleans stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **plain} if type(value) in VARIANTS.values() else plain
    if isinstance(value, Mapping):
        return {name: to_dict(item) for name, item in value.items()}
    return [to_dict(item) for item in value] if isinstance(value, tuple | list) else value


def from_dict(cls: type[Config], plain: Any, where: str) -> Config:
    """Build the dataclass that the plain data describes; omitted fields take their defaults.

    Args:
        where: the file or option that the data came from, for error messages.
    Raises:
        ValueError: with every unknown field and every value of a wrong type.
    """
    return _build(cls, plain, where, none_word=False)


def from_toml(cls: type[Config], table: Any, where: str) -> Config:
    """`from_dict` for data from TOML, which has no null: "none" is None in a field that may be None.

    >>> from qkv.models import GPTConfig
    >>> config = from_toml(GPTConfig, {"vocab_size": 9, "sliding_window": "none", "position": "none"}, "a.toml")
    >>> config.sliding_window, config.position
    (None, 'none')
    """
    return _build(cls, table, where, none_word=True)


def _build(cls: type[Config], plain: Any, where: str, none_word: bool) -> Config:
    reader = _Reader(none_word)
    config = reader.read_config(cls, plain, "")
    if not reader.mistakes:
        return config
    if len(reader.mistakes) == 1:
        raise ValueError(f"{where}: {reader.mistakes[0]}")
    listed = "".join(f"\n  {mistake}" for mistake in reader.mistakes)
    raise ValueError(f"{where}: {len(reader.mistakes)} mistakes:{listed}")


class _Reader:
    """Reads plain data by type hints and collects the mistakes in it."""

    def __init__(self, none_word: bool) -> None:
        self.none_word = none_word
        self.mistakes: list[str] = []

    def read_config(self, cls: type, plain: Any, path: str) -> Any:
        """The dataclass that `plain` describes, or None if there were mistakes."""
        name = path or cls.__name__
        if path and cls in VARIANTS.values():
            name = f"{path} ({cls.__name__})"
        if not isinstance(plain, Mapping):
            self.mistakes.append(f"{name} must be a table of fields, got {plain!r}")
            return None
        before = len(self.mistakes)
        known = [field.name for field in dataclasses.fields(cls)]
        hints, values = get_type_hints(cls), {}
        for key, value in plain.items():
            if key not in known:
                self.mistakes.append(f"{name} has no field {key!r}{_suggest(key, known)}")
                continue
            values[key] = self.read_value(hints[key], value, f"{path}.{key}" if path else key)
        if len(self.mistakes) > before:
            return None
        try:
            return cls(**values)
        except TypeError as error:  # a required field is missing
            self.mistakes.append(f"{name} {str(error).split('__init__() ')[-1]}")
            return None

    def read_value(self, hint: Any, value: Any, path: str) -> Any:
        """The value as a field of that type holds it."""
        options = _options(hint)
        if self.none_word and value == "none" and type(None) in options and not _allows_word(hint, "none"):
            return None
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not _variants_of(hint):
            return self.read_config(hint, value, path)
        if isinstance(value, Mapping) and not _fits(value, hint):
            value = self.read_variant(value, path)
            if value is None:
                return None
        if isinstance(value, list):
            value = tuple(value)
        if not _fits(value, hint):
            self.mistakes.append(f"{path} must be {_describe(hint)}, got {value!r}")
            return None
        if isinstance(value, int) and float in options and not {int, bool} & {*options}:
            return float(value)  # people write 1 for 1.0 in TOML
        return value

    def read_variant(self, plain: Mapping[str, Any], path: str) -> Any:
        kind = plain.get("kind")
        if not isinstance(kind, str) or kind not in VARIANTS:
            self.mistakes.append(f"{path} has the unknown kind {kind!r}; known kinds: {', '.join(VARIANTS)}")
            return None
        return self.read_config(VARIANTS[kind], {name: item for name, item in plain.items() if name != "kind"}, path)


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _allows_word(hint: Any, word: str) -> bool:
    return hint is str or word in get_args(hint) or any(_allows_word(option, word) for option in get_args(hint))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type; an int fits a float, a bool fits neither."""
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        items = [item for item in get_args(hint) if item is not Ellipsis]
        if not isinstance(value, tuple):
            return False
        expected = items * len(value) if len(items) == 1 else items
        return len(value) == len(expected) and all(map(_fits, value, expected))
    if len(_options(hint)) > 1:
        return any(_fits(value, option) for option in _options(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else get_origin(hint) or hint)


def _variants_of(hint: Any) -> list[str]:
    """The registered classes that a field of this type may hold."""
    return [name for name, cls in VARIANTS.items() if isinstance(hint, type) and issubclass(cls, hint)]


def _describe(hint: Any) -> str:
    """A type in words, for error messages."""
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if len(_options(hint)) > 1:
        return " or ".join(_describe(option) for option in _options(hint))
    if get_origin(hint) is tuple:
        return f"a list of {' and '.join(_describe(item) for item in get_args(hint) if item is not Ellipsis)}"
    if _variants_of(hint):
        return " or ".join(f'{{ kind = "{name}" }}' for name in _variants_of(hint))
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "none"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


# Tables: overrides and differences.


def override(table: Table, changes: Mapping[str, Any], where: str = "the config") -> Table:
    """Return the table with some values replaced; {"model.dim": 64} and {"model": {"dim": 64}} mean the same.

    A new "kind" replaces the whole variant: the fields of the old one are dropped.

    Args:
        where: whose config it is, for error messages.
    Raises:
        ValueError: with every name that the table does not have, and the nearest one that it has.

    >>> override({"seed": 0, "model": {"dim": 32}}, {"model.dim": 64})
    {'seed': 0, 'model': {'dim': 64}}
    >>> override({"seed": 0}, {"sed": 1}, "vit-digits")
    Traceback (most recent call last):
    ValueError: vit-digits has no field 'sed', did you mean 'seed'?
    >>> import qkv.nn
    >>> override({"model": {"position": {"kind": "Rope", "base": 10000.0}}}, {"model.position": "learned"})
    {'model': {'position': 'learned'}}
    >>> override({"position": {"kind": "Rope", "base": 10000.0}}, {"position.kind": "Alibi"})
    {'position': {'kind': 'Alibi'}}
    """
    mistakes: list[str] = []
    result = _override(table, changes, where, "", mistakes)
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return result


def _override(table: Table, changes: Mapping[str, Any], where: str, path: str, mistakes: list[str]) -> Table:
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in table.items()}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        full = f"{path}{head}"
        if head not in result:
            mistakes.append(f"{where} has no field {path + name!r}{_suggest(head, list(result), path)}")
            continue
        current = result[head]
        if rest or (isinstance(value, Mapping) and isinstance(current, dict) and "kind" not in value):
            if not isinstance(current, dict):
                mistakes.append(f"{where} has no field {path + name!r}: {full} is the single value {current!r}")
                continue
            result[head] = _override(current, {rest: value} if rest else value, where, f"{full}.", mistakes)
        elif isinstance(current, dict) and current.get("kind") in VARIANTS and isinstance(value, str):
            result[head] = {"kind": value} if value in VARIANTS else value
        elif isinstance(current, dict) and not isinstance(value, Mapping):
            mistakes.append(f"{full} is a table of {', '.join(current)}; set one of them with {full}.NAME=VALUE")
        elif head == "kind" and current in VARIANTS and value != current:
            result = {"kind": value}
        else:
            result[head] = value
    return result


def parse_override(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE from the command line; a value that is not TOML is a string.

    >>> parse_override("model.dim=64"), parse_override("data.path=texts/a.txt"), parse_override("train.grad_clip=none")
    (('model.dim', 64), ('data.path', 'texts/a.txt'), ('train.grad_clip', 'none'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"an override must be NAME=VALUE, such as model.dim=64, got {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value
    except (RecursionError, ValueError) as error:  # nested too deeply, or an integer of thousands of digits
        raise ValueError(f"the value of {name.strip()} cannot be read: {error}") from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Turn nested tables into one with dotted names.

    >>> flatten({"seed": 0, "model": {"dim": 32}})
    {'seed': 0, 'model.dim': 32}
    """
    flat: Table = {}
    for name, value in table.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def find_differences(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the fields in which tables differ, by dotted name, with the value of each table ("–" for none).

    >>> find_differences([{"seed": 0, "model": {"dim": 32}}, {"seed": 1, "model": {"dim": 32}}])
    {'seed': [0, 1]}
    """
    flats = [flatten(table) for table in tables]
    names = dict.fromkeys(name for table in flats for name in table)
    values = {name: [table.get(name, "–") for table in flats] for name in names}
    return {name: found for name, found in values.items() if len({str(value) for value in found}) > 1}


# TOML.


def parse_toml(text: str, parse_float: Callable[[str], Any] = float) -> Table:
    """Parse TOML whose keys have at most MAX_TOML_DEPTH parts: Python's parser needs gigabytes for longer ones."""
    if any(line.partition("=")[0].count(".") > MAX_TOML_DEPTH for line in text.splitlines()):
        raise ValueError("a key is nested too deeply")
    return tomllib.loads(text, parse_float=parse_float)


def read_toml(path: str | Path, *, follow_link: bool = True) -> Table:
    """Read a TOML file of at most 4 MB. follow_link: whether it may be a symbolic link."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected a TOML file with config values")
    raw = read_limited(path, MAX_TOML_BYTES, follow_link=follow_link)
    try:
        return parse_toml(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def to_toml(table: Mapping[str, Any], *, comment: str = "") -> str:
    """Write a table as TOML: plain values first, then a section for each table; None becomes "none".

    >>> print(to_toml({"seed": 0, "model": {"dim": 32, "norm": "layer", "window": None}}))
    seed = 0
    <BLANKLINE>
    [model]
    dim = 32
    norm = "layer"
    window = "none"
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {_toml_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml_value(item)}" for key, item in value.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(_escape(character) for character in value) + '"'
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"a config value must be a number, string, list or table, got {type(value).__name__}")


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _suggest(name: str, known: list[str], path: str = "") -> str:
    """The nearest known name, as the end of a sentence."""
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {path + near[0]!r}?" if near else f". Fields: {', '.join(path + each for each in known)}"
