"""Problems and answers in small files: TOML, JSON or CSV; numbers keep the digits as written."""

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

from qkv.byhand.examples import example_settings
from qkv.byhand.problem import MATRICES, SETTINGS

MOST_BYTES = 1_000_000
STEP_NAMES = {
    "queries": ("q",),
    "keys": ("k",),
    "values": ("v",),
    "scores": ("s",),
    "scaled": ("z",),
    "weights": ("a", "map", "attention"),
    "joined": ("concatenated",),
    "output": ("h", "o", "out"),
}


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a problem file; steps of an answer in it are left aside."""
    return split_answer(read_file(path), path.name)[0]


def read_answer(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the problem, and the steps that the person worked."""
    settings, steps = split_answer(read_file(path), path.name)
    if not steps:
        raise ValueError(
            f"{path.name} holds no step to check: add some of {', '.join(STEP_NAMES)}, each as rows of numbers"
        )
    return settings, steps


def split_answer(content: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given, and what was worked; q, k and v are steps where the inputs x are known."""
    content = {key.lower(): value for key, value in content.items()}
    base: dict[str, Any] = {}
    if (wanted := content.pop("example", None)) is not None:
        base = example_settings(str(wanted), content.get("convention"))
    worked = content.pop("answer", {})
    if not isinstance(worked, dict):
        raise ValueError(f"{name}: answer: expected a table of steps such as scores = [[1, 2]], got {worked!r}")
    steps = {_step_name(key, name): value for key, value in worked.items()}
    known = "x" in content or "x" in base or "q" in base  # then q, k and v are the person's own
    for key, value in content.items():
        if key in ("q", "k", "v") and known:
            steps[_step_name(key, name)] = value
        elif key in MATRICES or key in SETTINGS:
            base[key] = value
        else:
            steps[_step_name(key, name)] = value
    return base, steps


def _step_name(key: str, name: str) -> str:
    for step, others in STEP_NAMES.items():
        if key.lower() in (step, *others):
            return step
    known = ", ".join((*MATRICES, *SETTINGS, "example"))
    raise ValueError(
        f"{name}: there is no setting or step {key!r}; settings are {known}; steps are {', '.join(STEP_NAMES)}"
    )


def read_file(path: Path) -> dict[str, Any]:
    """A TOML, JSON or CSV file as a mapping of names to matrices and settings."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} is {path.stat().st_size:,} bytes: a problem worked by hand takes far fewer")
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text: expected a TOML, JSON or CSV file") from None
    kind = path.suffix.lower()
    try:
        if kind == ".toml":
            return tomllib.loads(text, parse_float=str)
        if kind == ".json":
            content = json.loads(text, parse_float=str)
            if not isinstance(content, dict):
                raise ValueError("expected an object with names such as x, wq, wk, wv")
            return content
        if kind == ".csv":
            return _read_csv(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read as {kind[1:].upper()}: {error}") from None
    raise ValueError(f"{path.name}: expected a file ending in .toml, .json or .csv")


def _read_csv(text: str) -> dict[str, Any]:
    """A line with a name alone starts a matrix, the lines after it are its rows; `heads,2` is a setting."""
    content: dict[str, Any] = {}
    rows: list[list[str]] | None = None
    for number, line in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in line]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if (
            cells[0][0].isalpha()
            and cells[0].lower() not in ("e", "sqrt")
            and "(" not in cells[0]
            and "^" not in cells[0]
        ):
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
