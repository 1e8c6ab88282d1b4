"""Frozen dataclasses as plain data, as JSON and TOML hold them; what does not fit is named.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Inner:
...     rate: float = 0.5
>>> @dataclass(frozen=True)
... class Outer:
...     steps: int = 3
...     inner: Inner = Inner()
>>> to_plain(Outer())
{'steps': 3, 'inner': {'rate': 0.5}}
>>> from_plain(Outer, {"inner": {"rat": 1}}, "mine.toml")
Traceback (most recent call last):
ValueError: mine.toml: inner has no field 'rat'; did you mean rate? It has rate
"""

import dataclasses
import difflib
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qkv.nn import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Shaw, T5Bias
from qkv.nn.positions import Alibi
from qkv.nn.rope import Linear, Llama3, Ntk, Rope, Yarn

Made = TypeVar("Made")

# what may stand in a field that takes one of several: as plain data each carries its kind
PARTS = (Dot, Additive, LocationAware, DenseSynthesizer, RandomSynthesizer)
PARTS += (Rope, Alibi, T5Bias, Shaw, Linear, Ntk, Llama3, Yarn)
KINDS: dict[str, type] = {part.__name__: part for part in PARTS}


def to_plain(value: Any) -> Any:
    """Dataclasses become dictionaries, tuples lists; numbers, strings and booleans stay."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **plain} if type(value) in PARTS else plain
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_plain(kind: type[Made], plain: Any, where: str, path: str = "") -> Made:
    """The dataclass that the plain data describes; fields left out have their defaults.

    where: the file or flag the data came from, for the message if something does not fit.
    """
    name = f"{path} ({kind.__name__})" if path and kind in PARTS else path or kind.__name__
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: {name} is a group of fields; got {plain!r}")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(set(plain) - set(known)):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"{where}: {name} has no field {unknown[0]!r}; {meant}It has {', '.join(known)}")
    hints = get_type_hints(kind)
    values = {key: _read(hints[key], value, where, f"{path}.{key}" if path else key) for key, value in plain.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {name} {str(error).split('__init__() ')[-1]}") from None


def _read(hint: Any, value: Any, where: str, path: str) -> Any:
    """A value as a field of that type holds it."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not _kinds(hint):
        return from_plain(hint, value, where, path)
    if isinstance(value, dict) and not _fits(value, hint):
        value = _part(value, where, path)
    if isinstance(value, list):
        value = tuple(value)
    if not _fits(value, hint):
        raise ValueError(f"{where}: {path} is {_words(hint)}; got {value!r}")
    if isinstance(value, int) and float in _options(hint) and not {int, bool} & {*_options(hint)}:
        return float(value)  # 1 is a number too; TOML and people write it so
    return value


def _part(plain: dict[str, Any], where: str, path: str) -> Any:
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{where}: {path} is of kind {kind!r}; known are {', '.join(KINDS)}")
    return from_plain(KINDS[kind], {name: value for name, value in plain.items() if name != "kind"}, where, path)


def _options(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        inner = [item for item in get_args(hint) if item is not Ellipsis]
        wanted = inner * len(value) if len(inner) == 1 and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(wanted) and all(map(_fits, value, wanted))
    if len(_options(hint)) > 1:
        return any(_fits(value, option) for option in _options(hint))
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else get_origin(hint) or hint)


def _kinds(hint: Any) -> list[str]:
    """The parts that a field of this type may hold."""
    return [name for name, part in KINDS.items() if isinstance(hint, type) and issubclass(part, hint)]


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if len(_options(hint)) > 1:
        return " or ".join(_words(option) for option in _options(hint))
    if get_origin(hint) is tuple:
        return f"a list of {' and '.join(_words(item) for item in get_args(hint) if item is not Ellipsis)}"
    if _kinds(hint):
        return " or ".join(f'{{ kind = "{name}" }}' for name in _kinds(hint))
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "nothing"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))
