"""Symbols, titles and colors of all tables, and sentences about a solution: what every renderer shares."""

from typing import Literal

from qkv.byhand.matrices import Matrix, transpose
from qkv.byhand.numbers import Number, to_text
from qkv.byhand.solution import Solution

Color = Literal["queries", "keys", "values", "output", ""]
NAMES: dict[str, tuple[str, str, Color]] = {  # symbol, title and color of each table
    "x": ("X", "Inputs", ""),
    "positions": ("P", "Positions", ""),
    "wq": ("W_Q", "Query weights", "queries"),
    "wk": ("W_K", "Key weights", "keys"),
    "wv": ("W_V", "Value weights", "values"),
    "wo": ("W_O", "Output weights", "output"),
    "inputs": ("X′", "Inputs with positions", ""),
    "queries": ("Q", "Queries", "queries"),
    "keys": ("K", "Keys", "keys"),
    "values": ("V", "Values", "values"),
    "scores": ("S", "Scores", ""),
    "scaled": ("Z", "Scaled scores", ""),
    "exponentials": ("E", "Exponentials", ""),
    "weights": ("A", "Weights", ""),
    "concatenated": ("H", "Output", "output"),
    "output": ("O", "Output, mixed by W_O", "output"),
    "upstream": ("G", "Upstream gradient", "output"),
    "target": ("T", "Target", "output"),
    "probabilities": ("P", "Probabilities of the classes", "output"),
    "dO": ("dO", "Gradient of the output", "output"),
    "dW_O": ("dW_O", "Gradient of W_O", "output"),
    "dH": ("dH", "Gradient of the heads' outputs", "output"),
    "dV": ("dV", "Gradient of the values", "values"),
    "dA": ("dA", "Gradient of the weights", ""),
    "r": ("r", "Row sums of A∘dA", ""),
    "dZ": ("dZ", "Gradient of the scaled scores", ""),
    "dS": ("dS", "Gradient of the scores", ""),
    "dQ": ("dQ", "Gradient of the queries", "queries"),
    "dK": ("dK", "Gradient of the keys", "keys"),
    "dW_Q": ("dW_Q", "Gradient of W_Q", "queries"),
    "dW_K": ("dW_K", "Gradient of W_K", "keys"),
    "dW_V": ("dW_V", "Gradient of W_V", "values"),
    "dX": ("dX", "Gradient of the inputs", ""),
}


def latex_symbol(symbol: str) -> str:
    """W_Q stays; S1, the scores of the first head, becomes S_1; dQ becomes a roman d and Q."""
    transposed = symbol.endswith("ᵀ")
    symbol = symbol.removesuffix("ᵀ").replace("′", "'")
    if symbol.startswith("["):
        between = r" \\ " if " ; " in symbol else " & "
        inside = between.join(latex_symbol(part) for part in symbol[1:-1].replace(" ; ", " ").split())
        symbol = rf"\begin{{bmatrix}} {inside} \end{{bmatrix}}" if between in inside else inside
    else:
        prefix = r"\mathrm{d}" if symbol.startswith("d") else ""
        symbol = symbol.removeprefix("d")
        base = symbol.rstrip("0123456789")
        symbol = f"{prefix}{base}" + (f"_{{{symbol[len(base) :]}}}" if len(symbol) > len(base) else "")
    return rf"{symbol}^\top" if transposed else symbol


def given_matrices(solution: Solution) -> list[tuple[str, str, Color, Matrix]]:
    """The matrices that were given, as they are shown: (key, symbol, color, matrix)."""
    problem = solution.problem
    shown = ["x", "positions", "wq", "wk", "wv", "queries", "keys", "values", "wo"]
    if problem.loss is not None:
        shown += ["upstream"] if problem.loss.name == "upstream" else ["target"]
    found = []
    for name in shown:
        rows = solution.graph.given.get(name)
        if rows is not None:
            symbol = "Y" if name == "target" and problem.loss and problem.loss.cross_entropy else NAMES[name][0]
            matrix = Matrix(transpose(rows) if problem.convention == "columns" else rows)
            found.append((name, symbol, NAMES[name][2], matrix))
    return found


def describe_setting(solution: Solution) -> str:
    """The setting in one line: convention, sizes, scale, mask."""
    problem = solution.problem
    dim = solution.graph.shapes["keys"][1] // problem.heads
    convention = "one token per column" if problem.convention == "columns" else "one token per row"
    heads = "1 head" if problem.heads == 1 else f"{problem.heads} heads"
    scale = f"β = {to_text(problem.scale)}"
    if problem.scale == Number.of(1):
        scale = "scale 1"
    elif problem.default_scale:
        scale = f"β = 1/√{dim} = {to_text(problem.scale)}"
    mask = "" if problem.mask is None else " · masked"
    loss = "" if problem.loss is None else f" · loss: {problem.loss.name.replace('-', ' ')}"
    return f"{convention} · {heads} of dimension {dim} · {scale}{mask}{loss}"


def describe_agreement(solution: Solution) -> str:
    """How the exact numbers compare with the separate float64 computation, in one sentence."""
    agreements = [one for one in (solution.agreement, solution.gradient_agreement) if one is not None]
    worst = max(agreements, key=lambda one: one.difference / one.tolerance)
    verdict = "the same" if solution.agrees else "NOT the same, which is a bug in qkv"
    what = "" if len(agreements) == 1 else " for the output and all gradients"
    difference = f"{worst.difference:.1e}" if worst.difference else "0"
    return f"A float64 computation gives {verdict}{what}: difference {difference} (allowed {worst.tolerance:.0e})."
