"""`qkv byhand`: solve attention in exact numbers, and verify your own calculation."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from qkv.cli.console import out, print_json

if TYPE_CHECKING:
    from qkv.byhand import Problem, Verification

MatrixText = Annotated[str | None, Parameter(allow_leading_hyphen=True)]  # a matrix may begin with a minus sign
ScaleText = Annotated[str | None, Parameter(name=("--scale", "--beta"), allow_leading_hyphen=True)]
MAX_REMARKS = 6  # printed for one step
VERDICTS = {
    "right": ("right", "green"),
    "wrong": ("wrong", "bold red"),
    "follows": ("follows from the earlier slip", "yellow"),
    "rounded": ("rounded early", "yellow"),
}


def byhand(
    file: Path | None = None,
    /,
    *,
    example: str | None = None,
    examples: bool = False,
    verify: Path | None = None,
    x: MatrixText = None,
    wq: MatrixText = None,
    wk: MatrixText = None,
    wv: MatrixText = None,
    wo: MatrixText = None,
    q: MatrixText = None,
    k: MatrixText = None,
    v: MatrixText = None,
    heads: int | None = None,
    scale: ScaleText = None,
    causal: Annotated[bool | None, Parameter(negative="--no-causal")] = None,
    mask: MatrixText = None,
    positions: MatrixText = None,
    convention: Literal["rows", "columns"] | None = None,
    digits: int = 4,
    tolerance: float | None = None,
    latex: bool = False,
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Solve attention by hand, in exact numbers; verify your own calculation.

    Every projection, dot product, exponential and sum is written out. Fractions and roots stay exact, decimals are
    given as well, and the output is compared with qkv's float64 attention.

    Examples:

        qkv byhand --example three-tokens
        qkv byhand --x "1 0; 0 1" --wq "1 2; 0 1" --wk "1 0; 1 1" --wv "1/2 0; 0 3"
        qkv byhand --q "1 0" --k "1 0; 0 1" --v "4; 8" --scale 1 --html out.html
        qkv byhand --verify answer.toml

    Matrices: rows separated by ";", cells by spaces or commas. Numbers: 3, -1/2, 0.25, √2, 1/sqrt(2); in rows with
    commas, and in files, also 2 1/2. A missing weight is the identity.

    Parameters
    ----------
    file
        A problem as a TOML, JSON or CSV file with x, wq, wk, wv (or q, k, v) and any of the settings below.
    example
        A textbook example by name: three-tokens, copy, average, causal, two-heads. Other options change it.
    examples
        List the textbook examples.
    verify
        Check your own calculation: a file with the problem (or example = "three-tokens") and any of queries, keys,
        values, scores, scaled, weights, output. Exit code 1 if something is wrong.
    x
        Inputs, one token a row.
    wq
        Query weights: Q = X W_Q.
    wk
        Key weights.
    wv
        Value weights.
    wo
        Output projection, applied to the concatenated heads.
    q
        Queries, instead of x and wq.
    k
        Keys.
    v
        Values.
    heads
        Number of heads; the columns of Q, K and V are split among them in order.
    scale
        Multiplies the scores (β in textbooks): 1/√d if not given, 1 for no scale; also 1/2, 0.3 or "1/sqrt(2)".
    causal
        Each token attends to itself and to earlier tokens only; --no-causal undoes it in an example or file.
    mask
        1 where a query may attend to a key, 0 where not; shaped as the scores. Or "causal", the same as --causal.
    positions
        Added to x: "sinusoidal", or a matrix shaped as x.
    convention
        rows: one token a row, softmax(Q Kᵀ) V. columns: one token a column, V softargmax(KᵀQ).
    digits
        Number of decimals shown.
    tolerance
        With --verify: how far early rounding may move a number and still be accepted; 0.02 if not given.
    latex
        Print the solution as LaTeX (for amsmath).
    html
        Write one offline page to this file: each number shows its derivation on hover and on focus.
    json
        Print the solution as JSON.
    """
    from qkv.byhand.examples import EXAMPLES, example_settings
    from qkv.byhand.files import read_answer, read_settings
    from qkv.byhand.problem import make_problem

    if not 0 <= digits <= 30:
        raise ValueError(f"--digits: expected 0 to 30, got {digits}")
    if examples:
        _list_examples(EXAMPLES, json)
        return 0
    options: dict[str, Any] = {
        "x": x,
        "wq": wq,
        "wk": wk,
        "wv": wv,
        "wo": wo,
        "q": q,
        "k": k,
        "v": v,
        "heads": heads,
        "scale": scale,
        "causal": causal,
        "mask": mask,
        "positions": positions,
        "convention": convention,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    sources = [name for name, value in (("a file", file), ("--example", example), ("--verify", verify)) if value]
    if len(sources) > 1:
        raise ValueError(f"{' and '.join(sources)} were given: give one of them")
    if verify is not None:
        settings, steps = read_answer(verify)
        return _verify(make_problem({**settings, **changes}), steps, tolerance, json)
    if tolerance is not None:
        raise ValueError("--tolerance goes with --verify")
    if not sources and not changes:
        raise ValueError(
            "nothing to solve: give --example three-tokens, a file, or --x with --wq, --wk, --wv (see --help)"
        )
    settings = {}
    if file is not None:
        settings = read_settings(file)
    elif example is not None:
        settings = example_settings(example, convention)
    return _solve(make_problem({**settings, **changes}), digits, latex, html, json)


def _solve(problem: "Problem", digits: int, latex: bool, html: Path | None, json: bool) -> int:
    from qkv.byhand.solution import solve_problem

    solution = solve_problem(problem)
    if html is not None:
        from qkv._files import write_atomic
        from qkv.byhand.html import html_page

        write_atomic(html, html_page(solution, digits))
        sys.stderr.write(f"wrote {html}\n")
    if json:
        print_json(solution.to_dict())
    elif latex:
        from qkv.byhand.latex import latex_document

        sys.stdout.write(latex_document(solution, digits))
    elif html is None:
        from qkv.byhand.terminal import terminal_lines

        for line in terminal_lines(solution, digits):
            out().print(line, soft_wrap=True)
    return 0 if solution.agreement.agrees else 1


def _list_examples(examples: dict[str, dict[str, Any]], json: bool) -> None:
    if json:
        print_json({name: settings["title"] for name, settings in examples.items()})
        return
    for name, settings in examples.items():
        out().print(f"[bold]{name:14}[/bold]{settings['title']}", soft_wrap=True)


def _verify(problem: "Problem", steps: dict[str, Any], tolerance: float | None, json: bool) -> int:
    from qkv.byhand.verification import TOLERANCE, verify

    if tolerance is not None and not 0 <= tolerance < 1000:
        raise ValueError(f"--tolerance: expected a number from 0 up, got {tolerance}")
    result = verify(problem, steps, TOLERANCE if tolerance is None else tolerance)
    if json:
        print_json(result.to_dict())
    else:
        _print_verification(result)
    return 0 if result.ok else 1


def _print_verification(result: "Verification") -> None:
    for check in result.steps:
        words, style = VERDICTS[check.verdict]
        line = Text(f"{check.step:9}").append(words, style)
        if check.verdict != "right":
            counts = (
                (check.right, "right"),
                (check.follows, "carried forward"),
                (check.rounded, "rounded"),
                (check.wrong, "wrong"),
            )
            line.append(f"  ({', '.join(f'{count} {word}' for count, word in counts if count)})", "dim")
        out().print(line, soft_wrap=True)
        for remark in check.remarks[:MAX_REMARKS]:
            out().print(Text(f"  {remark.sentence}"), soft_wrap=True)
        if len(check.remarks) > MAX_REMARKS:
            out().print(f"  and {len(check.remarks) - MAX_REMARKS} more wrong numbers in this step", soft_wrap=True)
    out().print()
    if result.first is not None:
        out().print(Text(f"First wrong number: {result.first.sentence}", "bold"), soft_wrap=True)
    elif any(check.verdict == "rounded" for check in result.steps):
        out().print(Text("All right, apart from early rounding.", "bold green"), soft_wrap=True)
    else:
        out().print(Text("All right.", "bold green"), soft_wrap=True)
