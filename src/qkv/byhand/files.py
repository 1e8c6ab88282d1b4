"""Read problems and answers from files: TOML, JSON or CSV; numbers keep their digits as written."""

import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from qkv.byhand.examples import example_settings
from qkv.byhand.problem import LABELS, MATRICES, SETTINGS

MAX_BYTES = 1_000_000
STEP_NAMES = {  # a step, and other names under which an answer may give it
    "queries": ("q",),
    "keys": ("k",),
    "values": ("v",),
    "scores": ("s",),
    "scaled": ("z",),
    "weights": ("a", "map", "attention"),
    "concatenated": ("concat", "joined"),
    "output": ("h", "o", "out"),
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
SETTING_NAMES = {"beta": "scale", "β": "scale"}  # the scale's symbol in textbooks


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a problem file, without the steps of an answer."""
    return split_answer(read_file(path), path.name)[0]


def read_answer(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the problem, and the steps of the answer."""
    settings, steps = split_answer(read_file(path), path.name)
    if not steps:
        raise ValueError(
            f"{path.name} has no step to check: add some of {', '.join(STEP_NAMES)}, each as rows of numbers"
        )
    return settings, steps


def split_answer(content: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the problem's settings from the answer's steps; q, k and v are steps if the inputs x are given."""
    content = {SETTING_NAMES.get(key.lower(), key.lower()): value for key, value in content.items()}
    settings: dict[str, Any] = {}
    if (wanted := content.pop("example", None)) is not None:
        settings = example_settings(str(wanted), content.get("convention"))
    answer = content.pop("answer", {})
    if not isinstance(answer, dict):
        raise ValueError(f"{name}: answer: expected a table of steps such as scores = [[1, 2]], got {answer!r}")
    steps = {_find_step(key, name): value for key, value in answer.items()}
    qkv_are_steps = "x" in content or "x" in settings or "q" in settings
    for key, value in content.items():
        if key in ("q", "k", "v") and qkv_are_steps:
            steps[_find_step(key, name)] = value
        elif key in MATRICES or key in SETTINGS or key in LABELS:
            settings[key] = value
        else:
            steps[_find_step(key, name)] = value
    steps = {step: value for step, value in steps.items() if not _is_blank(value)}
    if "dH" in steps and "wo" not in settings:
        steps.setdefault("dO", steps.pop("dH"))
    return settings, steps


def _is_blank(value: Any) -> bool:
    """Whether a step of a sheet was not filled in: every cell is still ?."""
    text = json.dumps(value) if not isinstance(value, str) else value
    return "?" in text and not re.search(r"[^\s?;,\"\[\]]", text)


def _find_step(key: str, name: str) -> str:
    wanted = key.lower().replace("∂", "d").removeprefix("grad_")
    wanted = wanted if wanted == key.lower().replace("∂", "d") else f"d{wanted}"
    for step, others in STEP_NAMES.items():
        if wanted in (step.lower(), *others):
            return step
    known = ", ".join((*MATRICES, *SETTINGS, "example"))
    raise ValueError(f"{name}: no setting or step {key!r}; settings are {known}; steps are {', '.join(STEP_NAMES)}")


def read_file(path: Path) -> dict[str, Any]:
    """A TOML, JSON or CSV file as a mapping of names to matrices and settings."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} is {path.stat().st_size:,} bytes: a problem file has at most {MAX_BYTES:,}")
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text: expected a TOML, JSON or CSV file") from None
    suffix = path.suffix.lower()
    if suffix not in _PARSERS:
        raise ValueError(f"{path.name}: expected a file ending in .toml, .json or .csv")
    try:
        return _PARSERS[suffix](text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read as {suffix[1:].upper()}: {error}") from None


def _parse_toml(text: str) -> dict[str, Any]:
    return tomllib.loads(text, parse_float=str)


def _parse_json(text: str) -> dict[str, Any]:
    content = json.loads(text, parse_float=str)
    if not isinstance(content, dict):
        raise ValueError("expected an object with names such as x, wq, wk, wv")
    return content


def _parse_csv(text: str) -> dict[str, Any]:
    """A line with a name alone starts a matrix, and the lines below are its rows; `heads,2` is a setting."""
    content: dict[str, Any] = {}
    rows: list[list[str]] | None = None
    for number, line in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in line]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if _is_name(cells[0]):
            if len(cells) == 1:
                content[cells[0].lower()] = rows = []
            elif len(cells) == 2:
                content[cells[0].lower()] = {"true": True, "false": False}.get(cells[1].lower(), cells[1])
                rows = None
            else:
                raise ValueError(
                    f"line {number}: expected a name alone, or a name and one value, got {','.join(cells)}"
                )
        elif rows is None:
            raise ValueError(f"line {number}: numbers before any name; put a line with x, wq, … above them")
        else:
            rows.append(cells)
    return content


def _is_name(cell: str) -> bool:
    """Whether a cell is a name such as wq, not a number such as e^2 or sqrt(2)."""
    return cell[:1].isalpha() and cell.lower() not in ("e", "sqrt") and "(" not in cell and "^" not in cell


_PARSERS = {".toml": _parse_toml, ".json": _parse_json, ".csv": _parse_csv}
