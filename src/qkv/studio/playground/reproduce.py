"""The command and the Python lines that print the same numbers as the playground."""

from __future__ import annotations

import shlex
from typing import Any

from qkv.byhand.examples import EXAMPLES
from qkv.studio.playground.exact import BYHAND_SIZE, byhand_texts, why_not_exact
from qkv.studio.playground.files import FILE, to_state
from qkv.studio.playground.request import FORMS, PlaygroundRequest, Texts, cell_value

MAX_COMMAND = 700  # characters; a longer problem is read from a file


def reproduce(request: PlaygroundRequest) -> dict[str, Any]:
    """The command and the Python lines that print the same numbers, and the file they read, if any."""
    command = byhand_command(request) if not why_not_exact(request, BYHAND_SIZE, BYHAND_SIZE) else ""
    if len(command) > MAX_COMMAND:
        command = f"qkv byhand {FILE}"
    python = _float64_lines(request) if why_not_exact(request) else _exact_lines(request)
    return {"command": command, "python": python, "file": FILE if FILE in command + python else ""}


def byhand_command(request: PlaygroundRequest) -> str:
    """`qkv byhand` with all settings on its line; a textbook example by its name."""
    settings = byhand_texts(request)
    parts = ["qkv byhand"]
    name, changes = _find_example(request, settings)
    if name:
        parts.append(f"--example {name}")
        settings = changes
    for key, value in settings.items():
        if key == "causal":
            parts.append("--causal" if value else "--no-causal")
        else:
            parts.append(f"--{key} {shlex.quote(str(value))}")
    return " ".join(parts)


def _find_example(request: PlaygroundRequest, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The textbook example with these matrices and the settings that differ; "" if there is none."""
    for name, example in EXAMPLES.items():
        state = to_state(example)
        matrices = (*FORMS[request.form], "wo")
        if state["form"] != request.form or any(_rows(state.get(each)) != request.matrix(each) for each in matrices):
            continue
        if any(key in example and key not in settings for key in ("scale", "heads")):
            continue  # no option resets these
        options = {key: value for key, value in settings.items() if key in ("heads", "scale", "mask", "positions")}
        changes = {key: value for key, value in options.items() if str(example.get(key)) != str(value)}
        if bool(example.get("causal")) != bool(settings.get("causal")):
            changes["causal"] = bool(settings.get("causal"))
        return name, changes
    return "", {}


def _rows(cells: list[list[str]] | None) -> Texts | None:
    return None if cells is None else tuple(tuple(row) for row in cells)


def _exact_lines(request: PlaygroundRequest) -> str:
    settings = byhand_texts(request)
    if sum(len(str(value)) for value in settings.values()) > MAX_COMMAND:
        lines = [
            "from pathlib import Path",
            "from qkv.byhand import make_problem, solve_problem",
            "from qkv.byhand.files import read_settings",
            f'solution = solve_problem(make_problem(read_settings(Path("{FILE}"))))',
        ]
    else:
        quoted = {key: f'"{value}"' if isinstance(value, str) else repr(value) for key, value in settings.items()}
        arguments = [f"    {key}={value}," for key, value in quoted.items()]
        lines = ["import qkv.byhand", "solution = qkv.byhand.solve(", *arguments, ")"]
    return "\n".join([*lines, "print(solution.weights.exact)", "print(solution.output.decimal)"])


def _float64_lines(request: PlaygroundRequest) -> str:
    names = [name for name, _ in request.matrices]
    size = sum(len(cell) + 5 for name in names for row in request.matrix(name) or () for cell in row)
    inline = size <= MAX_COMMAND
    lines = _inline_matrices(request, names) if inline else _matrices_from_file(names)
    if request.sinusoidal and request.form == "x":
        lines.append("x = x + qkv.positions.sinusoidal(len(x), x.shape[1], dtype=torch.float64)")
    if request.form == "x":
        lines.append("q, k, v = x @ wq, x @ wk, x @ wv")
    if request.heads > 1:
        lines.append(f"q, k, v = (m.unflatten(-1, ({request.heads}, -1)).transpose(0, 1) for m in (q, k, v))")
    lines.append(f"out, weights = qkv.attention(q, k, v, {_attention_options(request, inline)}return_weights=True)")
    if request.heads > 1:
        lines.append("out = out.transpose(0, 1).flatten(1)")
    if "wo" in names:
        lines.append("out = out @ wo")
    return "\n".join([*lines, "print(weights)", "print(out)"])


def _inline_matrices(request: PlaygroundRequest, names: list[str]) -> list[str]:
    rows = {name: [[cell_value(cell) for cell in row] for row in request.matrix(name) or ()] for name in names}
    return ["import torch, qkv", *(f"{name} = torch.tensor({rows[name]}, dtype=torch.float64)" for name in names)]


def _matrices_from_file(names: list[str]) -> list[str]:
    return [
        "from pathlib import Path",
        "import tomllib, torch, qkv",
        "from qkv.byhand.parsing import parse_number, split_cells",
        f'settings = tomllib.loads(Path("{FILE}").read_text("utf-8"))',
        "def tensor(name):",
        "    rows = split_cells(settings[name], name, max_size=64)",
        "    values = [[float(parse_number(cell).decimal) for cell in row] for row in rows]",
        "    return torch.tensor(values, dtype=torch.float64)",
        *(f'{name} = tensor("{name}")' for name in names),
    ]


def _attention_options(request: PlaygroundRequest, inline: bool) -> str:
    """The arguments of qkv.attention in addition to q, k and v."""
    options = ""
    if request.hard:
        options += "hard=True, "
    elif request.scale:
        options += f"scale={cell_value(request.scale)!r}, "
    if request.mask == "causal":
        options += "causal=True, "
    elif request.mask == "window":
        left, right = request.window
        options += f"mask=qkv.masks.sliding_window({request.queries}, {request.keys}, {left}, {right}), "
    elif request.mask == "custom":
        rows = [[digit == "1" for digit in row] for row in request.mask_rows]
        options += f"mask=torch.tensor({rows}), " if inline else 'mask=tensor("mask") > 0, '
    return options
