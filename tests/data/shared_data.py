"""Data beside the checkout that some tests measure on; they skip where it is not."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} of the shared data beside the checkout")
    return path
