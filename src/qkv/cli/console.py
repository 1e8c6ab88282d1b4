"""Where words go: results to stdout, progress and notes to stderr; colour only for a terminal that wants it."""

import json
import os
import sys
from functools import cache

from rich.console import Console

from qkv._numbers import finite


@cache
def out() -> Console:
    """For results."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """For progress and notes."""
    return _console(stderr=True)


def print_json(result: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(finite(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _console(*, stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, no_color=True if "NO_COLOR" in os.environ else None, soft_wrap=False)
