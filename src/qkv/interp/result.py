"""What an analysis returns: frozen data that the terminal, a page, JSON and a test read alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from qkv._numbers import finite


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """Frozen fields, and the same as plain JSON."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name: tensors as nested lists, what is not a number as null."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain((1.0, float("nan"), {"a": (2,)}))
    [1.0, None, {'a': [2]}]
    """
    if isinstance(value, Result):
        return value.to_json()
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return finite(value)
