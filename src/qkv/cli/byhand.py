"""qkv byhand: attention worked in exact numbers, and a person's own working checked."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from qkv.cli.console import out, print_json

if TYPE_CHECKING:
    from qkv.byhand.verify import Verification
    from qkv.byhand.working import Worked

Words = Annotated[str | None, Parameter(allow_leading_hyphen=True)]  # a matrix may begin with a minus sign
MOST_REMARKS = 6  # of one step; a table full of slips is not read to its end


def byhand(
    file: Path | None = None,
    /,
    *,
    example: str | None = None,
    examples: bool = False,
    verify: Path | None = None,
    x: Words = None,
    wq: Words = None,
    wk: Words = None,
    wv: Words = None,
    wo: Words = None,
    q: Words = None,
    k: Words = None,
    v: Words = None,
    heads: int | None = None,
    beta: Words = None,
    causal: bool | None = None,
    mask: Words = None,
    positions: Words = None,
    convention: Literal["rows", "columns"] | None = None,
    digits: int = 4,
    tolerance: float | None = None,
    latex: bool = False,
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Attention worked by hand, in exact numbers; and your own working checked.

    Every projection, dot product, exponential and sum is written out; fractions and roots stay exact, decimals
    stand beside, and the result is compared on the spot with the library's float64 attention.

    Examples:

        qkv byhand --example three-tokens
        qkv byhand --x "1 0; 0 1" --wq "1 2; 0 1" --wk "1 0; 1 1" --wv "1/2 0; 0 3"
        qkv byhand --q "1 0" --k "1 0; 0 1" --v "4; 8" --beta 1 --html out.html
        qkv byhand --verify answer.toml

    Matrices: rows apart by ";", cells by spaces or commas. Numbers: 3, -1/2, 0.25, √2, 1/sqrt(2); in a row with
    commas, and in files, also 2 1/2. A missing W is the identity.

    Parameters
    ----------
    file
        A problem as a TOML, JSON or CSV file with x, wq, wk, wv (or q, k, v) and any of the settings below.
    example
        A textbook example by name: three-tokens, copy, average, causal, two-heads. Other options change it.
    examples
        List the textbook examples.
    verify
        Check your own working: a file with the problem (or example = "three-tokens") and any of queries, keys, values,
        scores, scaled, weights, output. Exit code 1 if something is wrong.
    x
        Inputs, one token a row.
    wq
        Weights of the queries: Q = X W_Q.
    wk
        Weights of the keys.
    wv
        Weights of the values.
    wo
        Weights that mix the heads' outputs.
    q
        Queries, in place of x and wq.
    k
        Keys.
    v
        Values.
    heads
        Number of heads; the columns of Q, K and V are dealt out to them in order.
    beta
        What multiplies the scores: 1/√d if not given, 1 for no scale; fractions, decimals and "1/sqrt(2)" are read.
    causal
        Each token sees itself and what came before.
    mask
        1 where a query may attend to a key, 0 where not, shaped as the scores.
    positions
        Added to x: "sinusoidal", or a matrix shaped as x.
    convention
        rows: one token a row, softmax(Q Kᵀ) V. columns: one token a column, V softargmax(KᵀQ).
    digits
        How many decimals are shown.
    tolerance
        With --verify: how far early rounding may move a number and still be accepted (0.02 if not given).
    latex
        Print the working as LaTeX (for amsmath).
    html
        Write one offline page to this file: each number shows its derivation on hover and on focus.
    json
        Print the working as JSON.
    """
    from qkv.byhand.examples import EXAMPLES, example_settings
    from qkv.byhand.files import read_answer, read_settings
    from qkv.byhand.problem import make_problem

    if not 0 <= digits <= 30:
        raise ValueError(f"--digits: expected 0 to 30, got {digits}")
    if examples:
        return _list_examples(EXAMPLES, json)
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
        "beta": beta,
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
        return _verify({**settings, **changes}, steps, tolerance, json)
    if tolerance is not None:
        raise ValueError("--tolerance goes with --verify")
    if not sources and not changes:
        raise ValueError(
            "nothing to work: give --example three-tokens, a file, or --x with --wq, --wk, --wv (see --help)"
        )
    settings = read_settings(file) if file else example_settings(example, convention) if example else {}
    return _work(make_problem({**settings, **changes}), digits, latex, html, json)


def _work(problem: Any, digits: int, latex: bool, html: Path | None, json: bool) -> int:
    from qkv.byhand.working import work_problem

    worked = work_problem(problem)
    if html is not None:
        from qkv._files import write_whole
        from qkv.byhand.page import page

        write_whole(html, page(worked, digits))
        sys.stderr.write(f"written: {html}\n")
    if json:
        print_json(worked.as_dict())
    elif latex:
        from qkv.byhand.latex import document

        sys.stdout.write(document(worked, digits))
    elif html is None:
        _print(worked, digits)
    return 0 if worked.agreement.agrees else 1


def _print(worked: "Worked", digits: int) -> None:
    from qkv.byhand.terminal import render

    for line in render(worked, digits):
        out().print(line, soft_wrap=True)


def _list_examples(examples: dict[str, dict[str, Any]], json: bool) -> int:
    if json:
        print_json({name: settings["title"] for name, settings in examples.items()})
        return 0
    for name, settings in examples.items():
        out().print(f"[bold]{name:14}[/bold]{settings['title']}", soft_wrap=True)
    return 0


def _verify(settings: dict[str, Any], steps: dict[str, Any], tolerance: float | None, json: bool) -> int:
    from qkv.byhand.problem import make_problem
    from qkv.byhand.verify import TOLERANCE, verify

    if tolerance is not None and not 0 <= tolerance < 1000:
        raise ValueError(f"--tolerance: expected a number from 0 up, got {tolerance}")
    result = verify(make_problem(settings), steps, TOLERANCE if tolerance is None else tolerance)
    if json:
        print_json(result.as_dict())
    else:
        _print_verification(result)
    return 0 if result.ok else 1


def _print_verification(result: "Verification") -> None:
    from rich.text import Text

    styles = {"right": "green", "wrong": "bold red", "follows": "yellow", "rounded": "yellow"}
    words = {
        "right": "right",
        "wrong": "wrong",
        "follows": "follows from the earlier slip",
        "rounded": "rounded early",
    }
    for check in result.steps:
        line = Text(f"{check.step:9}")
        line.append(words[check.verdict], styles[check.verdict])
        parts = [
            (check.right, "right"),
            (check.follows, "carried forward"),
            (check.rounded, "rounded"),
            (check.wrong, "wrong"),
        ]
        counted = ", ".join(f"{count} {word}" for count, word in parts if count)
        line.append(f"  ({counted})" if check.verdict != "right" else "", "dim")
        out().print(line, soft_wrap=True)
        for remark in check.remarks[:MOST_REMARKS]:
            out().print(Text(f"  {remark.sentence}"), soft_wrap=True)
        if len(check.remarks) > MOST_REMARKS:
            out().print(
                Text(f"  and {len(check.remarks) - MOST_REMARKS} more wrong numbers in this step"),
                soft_wrap=True,
            )
    out().print()
    if result.first is not None:
        out().print(Text(f"First wrong number: {result.first.sentence}", "bold"), soft_wrap=True)
    else:
        rounded = any(check.verdict == "rounded" for check in result.steps)
        out().print(
            Text("All right, but for early rounding." if rounded else "All right.", "bold green"),
            soft_wrap=True,
        )
