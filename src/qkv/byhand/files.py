"""Read problems and answers from files: TOML, JSON or CSV; numbers keep their digits as written."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qkv._config import parse_toml
from qkv.byhand.csv_file import parse_csv
from qkv.byhand.examples import example_settings
from qkv.byhand.problem import LABELS, MATRICES, SETTINGS

MAX_BYTES = 1_000_000
STEP_NAMES = {  # a step, and other names under which an answer may give it, without _, - and spaces
    "queries": ("q", "query"),
    "keys": ("k", "key"),
    "values": ("v", "value"),
    "scores": ("s", "score", "logits"),
    "scaled": ("z", "scaledscores"),
    "exponentials": ("e", "exp", "exponential"),
    "sums": ("sum", "rowsums", "denominators"),
    "weights": ("a", "map", "attention", "attentionweights", "attentionmap", "softmax", "alpha", "α"),
    "concatenated": ("concat", "joined"),
    "output": ("h", "o", "out", "outputs"),
    "probabilities": ("p",),
    "dO": ("doutput", "doutputs"),
    "dH": ("dconcatenated", "dconcat"),  # without W_O the same as dO
    "dA": ("dweights",),
    "r": ("delta", "rowdots"),
    "dZ": ("dscaled",),
    "dS": ("dscores",),
    "dQ": ("dqueries",),
    "dK": ("dkeys",),
    "dV": ("dvalues",),
    "dW_O": ("dwo",),
    "dW_Q": ("dwq",),
    "dW_K": ("dwk",),
    "dW_V": ("dwv",),
    "dX": ("dinputs",),
}
ANSWERS = ("answer", "steps")  # tables that may hold the steps
SETTING_NAMES = {"beta": "scale", "β": "scale"}  # the scale's symbol in textbooks


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a problem file, without the steps of an answer."""
    return split_answer(read_file(path), path.name)[0]


def read_answer(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the problem, and the steps of the answer."""
    settings, steps = split_answer(read_file(path), path.name)
    if not steps:
        raise ValueError(
            f"{path.name} has no step to check: every step is missing or only ?; write at least one, such as "
            "scores = [[1, 2], [3, 4]]"
        )
    return settings, steps


def split_answer(content: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the problem's settings from the answer's steps; q, k and v are steps if the inputs x are given."""
    content = _named_once(content, _find_setting, name)
    settings: dict[str, Any] = {}
    if (wanted := content.pop("example", None)) is not None:
        settings = example_settings(str(wanted), content.get("convention"))
    given: dict[tuple[str, str], Any] = {}  # steps by the table that they stand in, and their name there
    for table in ANSWERS:
        answer = content.pop(table, {})
        if not isinstance(answer, dict):
            raise ValueError(f"{name}: {table}: expected a table of steps such as scores = [[1, 2]], got {answer!r}")
        given |= {(table, key): value for key, value in answer.items()}
    qkv_are_steps = "x" in content or "x" in settings or "q" in settings
    for key, value in content.items():
        if key in ("q", "k", "v") and qkv_are_steps:
            given["", key] = value
        elif key in MATRICES or key in SETTINGS or key in LABELS:
            settings[key] = value
        else:
            given["", key] = value

    def find_step(place: tuple[str, str]) -> str:
        step = _find_step(place[1], name)
        if step == "dH" and "wo" not in settings:
            return "dO"
        if step == "probabilities" and not settings.keys() & {"loss", "upstream"}:
            return "weights"  # P is also a usual name of the weights
        return step

    filled = {place: value for place, value in given.items() if not _is_blank(value)}
    for place in given:
        find_step(place)  # names are checked also if nothing was filled in
    return settings, _named_once(filled, find_step, name)


def _find_setting(key: str) -> str:
    return SETTING_NAMES.get(key.lower(), key.lower())


def _named_once(content: Mapping[Any, Any], find_name: Callable[[Any], str], file: str) -> dict[str, Any]:
    """The values by the names that `find_name` gives; ValueError if two keys have the same one."""
    found: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in content.items():
        wanted, shown = find_name(key), key if isinstance(key, str) else key[1]
        if wanted in keys:
            raise ValueError(f"{file}: {keys[wanted]} and {shown} are two names of {wanted}: give one of them")
        found[wanted], keys[wanted] = value, shown
    return found


def _is_blank(value: Any) -> bool:
    """Whether a step of a sheet was not filled in: every cell is still ?."""
    text = json.dumps(value) if not isinstance(value, str) else value
    return "?" in text and not re.search(r"[^\s?;,\"\[\]]", text)


def _find_step(key: str, name: str) -> str:
    wanted = _plain_name(key)
    for step, others in STEP_NAMES.items():
        if wanted in (_plain_name(step), *others):
            return step
    if name.lower().endswith(".csv"):
        name = f"{name} (headings and labels of rows are not allowed)"
    known = ", ".join((*MATRICES, *SETTINGS, "example"))
    raise ValueError(f"{name}: no setting or step {key!r}; settings are {known}; steps are {', '.join(STEP_NAMES)}")


def _plain_name(key: str) -> str:
    """A name in small letters without _, - and spaces; ∂L/∂Q, dL/dQ, grad_Q and ∇Q are dq."""
    text = re.sub(r"[\s_-]", "", key.lower().replace("∂", "d"))
    return re.sub(r"^(dl/d|grad|∇)(?=.)", "d", text)


def read_file(path: Path) -> dict[str, Any]:
    """A TOML, JSON or CSV file as a mapping of names to matrices and settings."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is {path.stat().st_size:,} bytes: a problem file has at most {MAX_BYTES:,}")
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in path.read_bytes():
            raise ValueError(f"{path.name} is not text: expected a TOML, JSON or CSV file") from None
        raise ValueError(f"{path.name} has letters that are not UTF-8: save it as UTF-8 (CSV UTF-8)") from None
    suffix = path.suffix.lower()
    if suffix not in _PARSERS:
        raise ValueError(f"{path.name}: expected a file ending in .toml, .json or .csv")
    try:
        return _PARSERS[suffix](text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read as {suffix[1:].upper()}: {error}") from None


def _parse_toml(text: str) -> dict[str, Any]:
    return parse_toml(text, parse_float=str)


def _parse_json(text: str) -> dict[str, Any]:
    content = json.loads(text, parse_float=str, object_pairs_hook=_parse_object)
    if not isinstance(content, dict):
        raise ValueError("expected an object with names such as x, wq, wk, wv")
    return content


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is given twice; give it once")
    return dict(pairs)


_PARSERS = {".toml": _parse_toml, ".json": _parse_json, ".csv": parse_csv}
