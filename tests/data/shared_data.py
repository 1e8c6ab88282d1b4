"""Data sets next to the checkout that some tests need; the tests are skipped without them."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} in the shared data next to the checkout")
    return path
