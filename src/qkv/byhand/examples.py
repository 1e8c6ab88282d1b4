"""Textbook examples by name."""

import difflib
from typing import Any

from qkv.byhand.matrices import transpose
from qkv.byhand.problem import MATRICES, Problem, make_problem
from qkv.byhand.reading import cells_of

EXAMPLES: dict[str, dict[str, Any]] = {
    "three-tokens": {
        "title": "Three tokens of width 4, queries and keys of width 2",
        "x": "1 -1 0 2; 0 -1 2 1; -2 2 -1 0",
        "wq": "0 1; 1 0; -1/2 0; 1 1",
        "wk": "1 -1/2; 0 1; 1/2 -1/2; 1 1/2",
        "wv": "1 1/2; -1/2 0; -1 2; 1/2 -1",
    },
    "copy": {
        "title": "A query that matches one key copies its value: the larger β, the better",
        "q": "0 1 0",
        "k": "1 0 0; 0 1 0; 0 0 1",
        "v": "1 0; 5 -3; 0 2",
        "beta": "10",
    },
    "average": {
        "title": "A query as near to one key as to the other averages their values",
        "q": "1 1",
        "k": "1 0; 0 1; -2 -2",
        "v": "4 0; 0 2; 100 100",
        "beta": "8",
    },
    "causal": {
        "title": "Each token sees itself and what came before: the first can only copy itself",
        "x": "1 0; 0 1; 1 1",
        "causal": True,
    },
    "two-heads": {
        "title": "Two heads of width 2 and a matrix that mixes their outputs",
        "x": "1 0 2 0; 0 1 0 1",
        "wq": "1 0 0 1; 0 1 1 0; 0 0 1 0; 1 0 0 0",
        "wk": "1 0 0 0; 0 1 0 1; 0 0 1 0; 0 1 0 1",
        "wv": "1 0 0 2; 0 1 1 0; 0 1 0 1; 1 0 1 0",
        "wo": "1 0; 0 1; 1/2 0; 0 -1",
        "heads": 2,
    },
}


def example(name: str, **changes: Any) -> Problem:
    """A textbook example, with settings changed at will.

    >>> example("three-tokens", beta="1").heads
    1
    """
    return make_problem({**example_settings(name, changes.get("convention")), **changes})


def example_settings(name: str, convention: str | None = None) -> dict[str, Any]:
    """The settings of an example; they are kept one token a row, and turned for the column convention."""
    if name not in EXAMPLES:
        near = difflib.get_close_matches(name, EXAMPLES, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"there is no example {name!r}{meant}; there are {', '.join(EXAMPLES)}")
    settings = EXAMPLES[name]
    if convention != "columns":
        return dict(settings)
    return {key: transpose(cells_of(value, key)) if key in MATRICES else value for key, value in settings.items()}
