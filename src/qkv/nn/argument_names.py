"""Argument names of PyTorch and nanoGPT: an error that gives qkv's name for each."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def explain_names(names: Mapping[str, str], *, most: int | None = None, too_many: str = "") -> Callable[[F], F]:
    """Decorate a function or class so that an argument name of another library raises a TypeError with qkv's name.

    Args:
        names: what to write instead of each foreign name.
        most: number of positional arguments, from which on `too_many` is the error.

    >>> @explain_names({"is_causal": "causal="})
    ... def attend(x, causal=False): ...
    >>> attend(1, is_causal=True)
    Traceback (most recent call last):
    TypeError: attend has no argument is_causal; write causal=
    """
    foreign = frozenset(names)

    def decorate(function: F) -> F:
        inner = function.__init__ if isinstance(function, type) else function
        label = function.__qualname__.removesuffix(".__init__").removesuffix(".forward")

        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if kwargs and not foreign.isdisjoint(kwargs):
                name = next(name for name in kwargs if name in foreign)
                raise TypeError(f"{label} has no argument {name}; write {names[name]}")
            if most is not None and len(args) > most:
                raise TypeError(too_many)
            return inner(*args, **kwargs)

        if isinstance(function, type):
            function.__init__ = wrapper  # type: ignore[misc]
            return function  # type: ignore[return-value]
        return wrapper  # type: ignore[return-value]

    return decorate
