"""Numbers as JSON has them."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Plain data in which a number that is not finite is nothing: JSON knows no NaN and no infinity.

    >>> finite({"loss": float("nan"), "rates": [1.0, float("inf")]})
    {'loss': None, 'rates': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
