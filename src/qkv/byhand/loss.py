"""The loss whose gradient the backward pass computes, read from the settings `loss`, `target` and `upstream`.

    loss                  value                     gradient of the output
    sum                   Σ O                       1
    mean                  Σ O / n                   1/n
    upstream              Σ G∘O, G given            G
    squared-error         Σ (O − T)²                2 (O − T)
    half-squared-error    ½ Σ (O − T)²              O − T
    mean-squared-error    Σ (O − T)² / n            2/n (O − T)
    cross-entropy         mean of −ln P[i, c_i]     (P − Y) / m
    cross-entropy-sum     Σ −ln P[i, c_i]           P − Y

n is the number of outputs; P is the softmax of each token's output, c_i the class of token i (from 1), Y has a 1 at
each class, and m is the number of tokens with a class. A token whose class is - has no loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from qkv.byhand.matrices import shape_text, transpose
from qkv.byhand.numbers import Number
from qkv.byhand.parsing import Rows, cell_text, parse_matrix, split_cells

LOSSES = {  # by name: what the settings must give
    "sum": "",
    "mean": "",
    "upstream": "upstream",
    "squared-error": "target",
    "half-squared-error": "target",
    "mean-squared-error": "target",
    "cross-entropy": "target",
    "cross-entropy-sum": "target",
}
OTHER_NAMES = {
    "mse": "mean-squared-error",
    "mse-loss": "mean-squared-error",
    "gradient": "upstream",
    "given": "upstream",
    "nll": "cross-entropy",
}


@dataclass(frozen=True)
class Loss:
    """A loss of the output, one token per row."""

    name: str
    upstream: Rows | None  # the gradient of the output, if it does not depend on the output
    target: Rows | None  # T of a squared error, Y (one-hot) of a cross-entropy
    factors: tuple[Number, ...]  # of each token's O − T or P − Y; 0 for a token without a class
    classes: tuple[int | None, ...] = ()  # from 0, of a cross-entropy

    @property
    def cross_entropy(self) -> bool:
        return self.name.startswith("cross-entropy")


def read_loss(settings: Mapping[str, Any], tokens: int, dim: int, convention: str) -> Loss | None:
    """The loss of the settings for an output of `tokens` × `dim`; None without one."""
    name, upstream, target = (settings.get(key) for key in ("loss", "upstream", "target"))
    if name is None:
        if target is not None:
            raise ValueError("target goes with a loss: give loss = squared-error or cross-entropy as well")
        if upstream is None:
            return None
        name = "upstream"
    name = find_loss(name)
    for key, value in (("upstream", upstream), ("target", target)):
        if LOSSES[name] == key and value is None:
            what = "the gradient of the output" if key == "upstream" else "what the output should be"
            raise ValueError(f"loss {name} needs {key}, {what}")
        if LOSSES[name] != key and value is not None:
            raise ValueError(f"loss {name} takes no {key}: leave {key} out, or choose another loss")
    if LOSSES[name] == "upstream":
        return Loss(name, _read_matrix(upstream, "upstream", tokens, dim, convention), None, ())
    if not LOSSES[name]:
        each = Number.of(1 if name == "sum" else Fraction(1, tokens * dim))
        return Loss(name, ((each,) * dim,) * tokens, None, ())
    if name.startswith("cross-entropy"):
        return _read_classes(name, target, tokens, dim)
    factor = {"squared-error": Fraction(2), "half-squared-error": Fraction(1)}.get(name, Fraction(2, tokens * dim))
    rows = _read_matrix(target, "target", tokens, dim, convention)
    return Loss(name, None, rows, (Number.of(factor),) * tokens)


def find_loss(name: Any) -> str:
    """The name of a loss as LOSSES has it.

    >>> find_loss("MSE"), find_loss("squared error")
    ('mean-squared-error', 'squared-error')
    """
    text = "-".join(str(name).lower().replace("_", " ").replace("-", " ").split())
    text = OTHER_NAMES.get(text, text)
    if text not in LOSSES:
        raise ValueError(f"loss: expected one of {', '.join(LOSSES)}, got {str(name)!r}")
    return text


def _read_matrix(matrix: Any, name: str, tokens: int, dim: int, convention: str) -> Rows:
    rows = parse_matrix(matrix, name)
    expected = (tokens, dim) if convention == "rows" else (dim, tokens)
    if (len(rows), len(rows[0])) != expected:
        raise ValueError(f"{name} needs the shape of the output, {expected[0]}×{expected[1]}: it is {shape_text(rows)}")
    return transpose(rows) if convention == "columns" else rows


def _read_classes(name: str, target: Any, tokens: int, dim: int) -> Loss:
    cells = _flat_cells(target)
    if len(cells) != tokens:
        raise ValueError(
            f"target of a cross-entropy has one class for each token (- for none): expected {tokens}, got {len(cells)}"
        )
    classes: list[int | None] = []
    for token, text in enumerate(cells, 1):
        if text in ("-", "−", "none", "None", ""):
            classes.append(None)
        elif text.isdigit() and 1 <= int(text) <= dim:
            classes.append(int(text) - 1)
        else:
            raise ValueError(f"target of token {token}: expected a class from 1 to {dim}, or - for none, got {text!r}")
    count = sum(one is not None for one in classes)
    if not count:
        raise ValueError("target: no token has a class; give at least one")
    factor = Fraction(1, count) if name == "cross-entropy" else Fraction(1)
    one_hot = tuple(tuple(Number.of(int(j == one)) for j in range(dim)) for one in classes)
    factors = tuple(Number.of(0 if one is None else factor) for one in classes)
    return Loss(name, None, one_hot, factors, tuple(classes))


def _flat_cells(target: Any) -> list[str]:
    """The classes, written as 2, "1 - 2", [1, 2] or a matrix of one row or column."""
    if isinstance(target, int):
        return [cell_text(target)]
    if isinstance(target, str):
        return target.replace(",", " ").replace(";", " ").split()
    if isinstance(target, Sequence) and not any(isinstance(cell, list) for cell in target):
        return ["-" if cell is None else cell_text(cell) for cell in target]
    return [cell_text(cell) for row in split_cells(target, "target") for cell in row]
