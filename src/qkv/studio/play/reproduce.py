"""The command and the Python lines that print what the playground shows."""

from __future__ import annotations

import shlex
from typing import Any

from qkv.byhand.examples import EXAMPLES
from qkv.studio.play.cells import Texts, value
from qkv.studio.play.examples import state_of
from qkv.studio.play.given import FORMS, Given
from qkv.studio.play.working import BY_HAND, settings, too_large

FILE = "playground.toml"
LONG = 700  # characters of a command; what is longer stands in a file


def matrix_text(matrix: Texts) -> str:
    """A matrix as `qkv byhand` reads it; commas where a cell holds a space.

    >>> matrix_text((("1", "1/2"), ("0", "2"))), matrix_text((("2 1/2", "0"),))
    ('1 1/2; 0 2', '2 1/2, 0')
    """
    apart = ", " if any(" " in cell.strip() for row in matrix for cell in row) else " "
    return "; ".join(apart.join(cell.strip() for cell in row) for row in matrix)


def words(given: Given) -> dict[str, Any]:
    """The settings of `qkv.byhand`, matrices as text."""
    return {name: matrix_text(it) if isinstance(it, tuple) else it for name, it in settings(given).items()}


def reproduce(given: Given) -> dict[str, Any]:
    """command, python, and whether they read the file that the page saves."""
    exact, by_hand = not too_large(given), not too_large(given, BY_HAND, BY_HAND)
    short = named = command(given) if by_hand else ""
    if len(short) > LONG:
        named = f"qkv byhand {FILE}"
    python = _exact_lines(given) if exact else _numeric_lines(given)
    return {"command": named, "python": python, "file": FILE if FILE in named + python else ""}


def command(given: Given) -> str:
    """qkv byhand with everything on its line; an example by its name where it is one."""
    found = words(given)
    parts = ["qkv byhand"]
    name, changes = _example(given, found)
    if name:
        parts.append(f"--example {name}")
        found = changes
    for key, said in found.items():
        if key == "causal":
            parts.append("--causal" if said else "--no-causal")
        else:
            parts.append(f"--{key} {shlex.quote(str(said))}")
    return " ".join(parts)


def _example(given: Given, found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The textbook example with these matrices, and what is set otherwise; no name where there is none."""
    for name, kept in EXAMPLES.items():
        state = state_of(kept)
        if state["form"] != given.form or any(
            _rows(state.get(each)) != given.matrix(each) for each in (*FORMS[given.form], "wo")
        ):
            continue
        changes = {key: said for key, said in found.items() if key in ("heads", "beta", "mask", "positions")}
        changes = {key: said for key, said in changes.items() if str(kept.get(key)) != str(said)}
        if bool(kept.get("causal")) != bool(found.get("causal")):
            changes["causal"] = bool(found.get("causal"))
        if ("beta" in kept and "beta" not in found) or ("heads" in kept and "heads" not in found):
            continue  # there is no word that takes these back
        return name, changes
    return "", {}


def _rows(cells: list[list[str]] | None) -> Texts | None:
    return None if cells is None else tuple(tuple(row) for row in cells)


def _exact_lines(given: Given) -> str:
    found = words(given)
    if sum(len(str(said)) for said in found.values()) > LONG:
        lines = [
            "from pathlib import Path",
            "from qkv.byhand import make_problem, work_problem",
            "from qkv.byhand.files import read_settings",
            f'worked = work_problem(make_problem(read_settings(Path("{FILE}"))))',
        ]
    else:
        asked = [f"    {name}={_quoted(said)}," for name, said in found.items()]
        lines = ["import qkv.byhand", "worked = qkv.byhand.work(", *asked, ")"]
    return "\n".join([*lines, "print(worked.weights.exact)", "print(worked.output.decimal)"])


def _quoted(said: Any) -> str:
    return f'"{said}"' if isinstance(said, str) else repr(said)


def _numeric_lines(given: Given) -> str:
    names = [name for name, _ in given.matrices]
    inline = sum(len(cell) + 5 for name in names for row in given.matrix(name) or () for cell in row) <= LONG
    lines = [*(_written(given, names) if inline else _from_file(names))]
    if given.sinusoidal and given.form == "x":
        lines.append("x = x + qkv.positions.sinusoidal(len(x), x.shape[1], dtype=torch.float64)")
    if given.form == "x":
        lines.append("q, k, v = x @ wq, x @ wk, x @ wv")
    if given.heads > 1:
        lines.append(f"q, k, v = (m.unflatten(-1, ({given.heads}, -1)).transpose(0, 1) for m in (q, k, v))")
    lines.append(f"out, weights = qkv.attention(q, k, v, {_options(given, inline)}weights=True)")
    if given.heads > 1:
        lines.append("out = out.transpose(0, 1).flatten(1)")
    if "wo" in names:
        lines.append("out = out @ wo")
    return "\n".join([*lines, "print(weights)", "print(out)"])


def _written(given: Given, names: list[str]) -> list[str]:
    rows = {name: [[value(cell) for cell in row] for row in given.matrix(name) or ()] for name in names}
    return ["import torch, qkv", *(f"{name} = torch.tensor({rows[name]}, dtype=torch.float64)" for name in names)]


def _from_file(names: list[str]) -> list[str]:
    return [
        "from pathlib import Path",
        "import tomllib, torch, qkv",
        "from qkv.byhand.reading import cells_of, read_number",
        f'given = tomllib.loads(Path("{FILE}").read_text("utf-8"))',
        "def tensor(name):",
        "    rows = cells_of(given[name], name, limit=64)",
        "    values = [[float(read_number(cell).decimal) for cell in row] for row in rows]",
        "    return torch.tensor(values, dtype=torch.float64)",
        *(f'{name} = tensor("{name}")' for name in names),
    ]


def _options(given: Given, inline: bool) -> str:
    """What qkv.attention is told beside q, k and v."""
    found = ""
    if given.hard:
        found += "hard=True, "
    elif given.beta:
        found += f"beta={value(given.beta)!r}, "
    if given.mask == "causal":
        found += "causal=True, "
    elif given.mask == "window":
        left, right = given.window
        found += f"allowed=qkv.masks.window({given.queries}, {given.keys}, {left}, {right}), "
    elif given.mask == "own":
        rows = [[sign == "1" for sign in row] for row in given.allowed]
        found += f"allowed=torch.tensor({rows}), " if inline else 'allowed=tensor("mask") > 0, '
    return found
