"""Textbook examples by name."""

import difflib
from typing import Any

from qkv.byhand.matrices import transpose
from qkv.byhand.parsing import split_cells
from qkv.byhand.problem import MATRICES, Problem, make_problem

EXAMPLES: dict[str, dict[str, Any]] = {
    "three-tokens": {
        "title": "Three tokens of dimension 4, queries and keys of dimension 2",
        "x": "1 -1 0 2; 0 -1 2 1; -2 2 -1 0",
        "wq": "0 1; 1 0; -1/2 0; 1 1",
        "wk": "1 -1/2; 0 1; 1/2 -1/2; 1 1/2",
        "wv": "1 1/2; -1/2 0; -1 2; 1/2 -1",
    },
    "copy": {
        "title": "A query that matches one key copies its value: the larger β, the closer",
        "q": "0 1 0",
        "k": "1 0 0; 0 1 0; 0 0 1",
        "v": "1 0; 5 -3; 0 2",
        "scale": "10",
    },
    "average": {
        "title": "A query equally close to two keys averages their values",
        "q": "1 1",
        "k": "1 0; 0 1; -2 -2",
        "v": "4 0; 0 2; 100 100",
        "scale": "8",
    },
    "causal": {
        "title": "Each token sees itself and earlier tokens: the first can only copy itself",
        "x": "1 0; 0 1; 1 1",
        "causal": True,
    },
    "two-heads": {
        "title": "Two heads of dimension 2 and an output projection W_O",
        "x": "1 0 2 0; 0 1 0 1",
        "wq": "1 0 0 1; 0 1 1 0; 0 0 1 0; 1 0 0 0",
        "wk": "1 0 0 0; 0 1 0 1; 0 0 1 0; 0 1 0 1",
        "wv": "1 0 0 2; 0 1 1 0; 0 1 0 1; 1 0 1 0",
        "wo": "1 0; 0 1; 1/2 0; 0 -1",
        "heads": 2,
    },
}


def example(name: str, **changes: Any) -> Problem:
    """A textbook example as a problem; `changes` override its settings.

    >>> example("three-tokens", scale="1").heads
    1
    """
    return make_problem({**example_settings(name, changes.get("convention")), **changes})


def example_settings(name: str, convention: str | None = None) -> dict[str, Any]:
    """The settings of an example; stored with one token per row, transposed for the column convention."""
    if name not in EXAMPLES:
        near = difflib.get_close_matches(name, EXAMPLES, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"unknown example {name!r}{hint}; expected one of {', '.join(EXAMPLES)}")
    settings = EXAMPLES[name]
    if convention != "columns":
        return dict(settings)
    return {key: transpose(split_cells(value, key)) if key in MATRICES else value for key, value in settings.items()}
