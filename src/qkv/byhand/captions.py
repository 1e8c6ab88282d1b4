"""What stands above a working: the matrices that were given, and one line on the setting."""

from qkv.byhand.matrices import Matrix, transpose
from qkv.byhand.reading import Rows
from qkv.byhand.steps import Colour
from qkv.byhand.working import Worked
from qkv.byhand.writing import plain


def givens(worked: Worked) -> list[tuple[str, str, Colour, Matrix]]:
    """What was given, as it is shown: (key, symbol, colour, matrix)."""
    problem = worked.problem
    wq, wk, wv = problem.projections
    q, k, v = problem.given or (None, None, None)
    rows: list[tuple[str, str, Colour, Rows | None]] = [
        ("x", "X", "", problem.x),
        ("positions", "P", "", problem.positions),
        ("wq", "W_Q", "queries", wq),
        ("wk", "W_K", "keys", wk),
        ("wv", "W_V", "values", wv),
        ("queries", "Q", "queries", q),
        ("keys", "K", "keys", k),
        ("values", "V", "values", v),
        ("wo", "W_O", "output", problem.wo),
    ]
    turn = problem.convention == "columns"
    return [(a, b, c, Matrix(transpose(m) if turn else m)) for a, b, c, m in rows if m is not None]


def setting_text(worked: Worked) -> str:
    """One line on what is worked: convention, sizes, scale, mask."""
    problem = worked.problem
    head = worked.heads[0]
    width = len(head.keys[0])
    one = "one token a column" if problem.convention == "columns" else "one token a row"
    heads = "1 head" if problem.heads == 1 else f"{problem.heads} heads"
    beta = f"β = 1/√{width} = {plain(problem.beta)}" if problem.default_beta else f"β = {plain(problem.beta)}"
    mask = "" if problem.allowed is None else " · masked"
    return f"{one} · {heads} of width {width} · {beta}{mask}"


def agreement_sentence(worked: Worked) -> str:
    """How the exact output stands beside the library's own."""
    agreement = worked.agreement
    verdict = "the same" if agreement.agrees else "NOT the same, which is a bug in qkv"
    difference = f"{agreement.difference:.1e}" if agreement.difference else "0"
    return f"qkv's float64 attention gives {verdict}: difference {difference} (allowed {agreement.tolerance:.0e})."
