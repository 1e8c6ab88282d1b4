"""`qkv byhand`: solve attention in exact numbers, and verify your own calculation."""

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from qkv.cli.console import out, print_json

if TYPE_CHECKING:
    from qkv.byhand import Problem, Verification
    from qkv.byhand.classroom import AnswerGrade

MatrixText = Annotated[str | None, Parameter(allow_leading_hyphen=True)]  # a matrix may begin with a minus sign
ScaleText = Annotated[str | None, Parameter(name=("--scale", "--beta"), allow_leading_hyphen=True)]
MAX_REMARKS = 6  # printed for one step
VERDICTS = {
    "right": ("right", "green"),
    "wrong": ("wrong", "bold red"),
    "follows": ("follows from the earlier mistake", "yellow"),
    "rounded": ("rounded early", "yellow"),
}


def byhand(
    file: Path | None = None,
    /,
    *,
    example: str | None = None,
    examples: bool = False,
    verify: Path | None = None,
    generate: int | None = None,
    seed: int = 0,
    tokens: int = 3,
    folder: Path | None = None,
    csv: Path | None = None,
    points: float = 10.0,
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
    loss: str | None = None,
    target: MatrixText = None,
    upstream: MatrixText = None,
    digits: int = 4,
    tolerance: float | None = None,
    latex: bool = False,
    html: Path | None = None,
    json: bool = False,
) -> int:
    """Work through attention step by step in exact numbers, or check your own calculation.

    Every projection, dot product, exponential and sum is written out. Fractions and roots stay exact and are also shown
    as decimals. The output is compared with a separate float64 computation.

    Examples:

        qkv byhand --example three-tokens
        qkv byhand --x "1 0; 0 1" --wq "1 2; 0 1" --wk "1 0; 1 1" --wv "1/2 0; 0 3"
        qkv byhand --q "1 0" --k "1 0; 0 1" --v "4; 8" --scale 1 --html out.html
        qkv byhand --example three-tokens --loss sum
        qkv byhand --verify answer.toml
        qkv byhand --generate 30 --seed 7 --folder class
        qkv byhand --verify answers --folder class --csv grades.csv

    In a matrix, separate rows with ";" and cells with spaces or commas. Numbers: 3, -1/2, 0.25, √2, 1/sqrt(2); mixed
    numbers (2 1/2) work in files and between commas. A weight matrix that you leave out is the identity.

    Parameters
    ----------
    file
        A TOML, JSON or CSV file with a problem: x, wq, wk, wv (or q, k, v) and any of the settings below.
    example
        Solve a textbook example: three-tokens, copy, average, causal or two-heads. You can change it with the options
        below.
    examples
        List the textbook examples.
    verify
        Check your own calculation. PATH is a file with the problem (or example = "three-tokens") and the steps that you
        calculated: queries, keys, values, scores, scaled, weights, output, dO, dA, dQ … The exit code is 1 if a number
        is wrong. If PATH is a folder of such files, all of them are graded.
    generate
        Write this many different exercise sheets and their answer keys to --folder, as TOML, LaTeX and HTML. The
        settings below (heads, scale, causal, convention, loss) apply to all of them.
    seed
        With --generate: random seed; the same seed gives the same sheets.
    tokens
        With --generate: the number of tokens.
    folder
        The folder of sheets and answer keys. --generate creates it (default: class). With --verify, a folder of answers
        is checked against these keys.
    csv
        With --verify and a folder: write the grades to this file, and feedback for each student to the folder feedback
        next to it.
    points
        With --verify and a folder: the maximum points for a sheet.
    x
        Inputs, one token per row.
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
        Factor on the scores (β in some textbooks), such as 1/2, 0.3 or "1/sqrt(2)"; 1 for no scaling. Default: 1/√d.
    causal
        Each token attends only to itself and earlier tokens; --no-causal turns this off for an example or file.
    mask
        A matrix with the shape of the scores: 1 if the query may attend to the key, otherwise 0. "causal" is the same
        as --causal.
    positions
        Added to x: "sinusoidal", or a matrix with the shape of x.
    convention
        rows: one token per row, softmax(Q Kᵀ) V. columns: one token per column, V softmax(KᵀQ).
    loss
        Add the backward pass for this loss of the output H: sum, mean, upstream, squared-error, half-squared-error,
        mean-squared-error, cross-entropy or cross-entropy-sum.
    target
        For a squared error: a matrix with the shape of the output. For a cross-entropy: the class of each token,
        starting at 1, or - for no class, such as "2 - 1".
    upstream
        The gradient of the loss with respect to the output, dO. With it, --loss is not needed.
    digits
        Number of decimals shown.
    tolerance
        With --verify: the largest accepted error from early rounding. Default: 0.02.
    latex
        Print the solution as LaTeX (for amsmath).
    html
        Write a self-contained HTML page to this file. It shows how each number is computed, on hover or on focus.
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
        "loss": loss,
        "target": target,
        "upstream": upstream,
    }
    changes = {name: value for name, value in options.items() if value is not None}
    sources = [
        name
        for name, value in (("a file", file), ("--example", example), ("--verify", verify), ("--generate", generate))
        if value is not None
    ]
    if len(sources) > 1:
        raise ValueError(f"{' and '.join(sources)} were given: give one of them")
    _check_companions(sources, verify, folder, csv, tolerance)
    if generate is not None:
        return _generate(generate, seed, tokens, folder, changes, json)
    if verify is not None and verify.is_dir():
        if changes:
            raise ValueError(f"--{next(iter(changes))}: the problems of a folder are those of its answers, or --folder")
        return _grade(verify, folder, csv, points, tolerance, json)
    if verify is not None:
        settings, steps = read_answer(verify)
        return _verify(make_problem({**settings, **changes}), steps, tolerance, json)
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


def _check_companions(
    sources: list[str], verify: Path | None, folder: Path | None, csv: Path | None, tolerance: float | None
) -> None:
    """Options that go with others only."""
    from qkv._files import check_writable

    if tolerance is not None:
        if verify is None:
            raise ValueError("--tolerance goes with --verify")
        if not 0 <= tolerance < 1000:
            raise ValueError(f"--tolerance: expected a number from 0 up, got {tolerance}")
    if verify is not None and not verify.exists() and (folder is not None or csv is not None):
        raise ValueError(f"there is no folder {verify}; expected a folder of answers")
    grading = verify is not None and verify.is_dir()
    if folder is not None and sources != ["--generate"] and not grading:
        raise ValueError("--folder goes with --generate, or with --verify and a folder of answers")
    if csv is not None:
        if not grading:
            raise ValueError("--csv goes with --verify and a folder of answers")
        check_writable(csv)


def _generate(count: int, seed: int, tokens: int, folder: Path | None, changes: dict[str, Any], json: bool) -> int:
    from qkv.byhand.classroom import write_class
    from qkv.byhand.problem import MATRICES

    given = [name for name in (*MATRICES, "positions", "target", "upstream") if name in changes]
    if given:
        raise ValueError(f"--{given[0]} and --generate were given: the matrices of a class are drawn; leave it out")
    folder = folder or Path("class")
    sheets = write_class(folder, count, seed, changes, tokens)
    if json:
        print_json({"folder": str(folder), "seed": seed, "sheets": [path.stem for path in sheets]})
    else:
        out().print(f"wrote {count} sheets to {folder / 'sheets'} and their keys to {folder / 'keys'}", markup=False)
    return 0


def _grade(
    answers: Path, folder: Path | None, csv: Path | None, points: float, tolerance: float | None, json: bool
) -> int:
    from qkv._files import write_atomic
    from qkv.byhand.classroom import FEEDBACK, grade_answers, grades_csv, write_feedback
    from qkv.byhand.verification import TOLERANCE
    from qkv.cli.console import err

    if not 0 < points <= 1000:
        raise ValueError(f"--points: expected more than 0 and at most 1000, got {points:g}")

    def progress(grade: "AnswerGrade", done: int, count: int) -> None:
        err().print(f"{done} of {count}: {grade.file}: {grade.points:g} of {grade.possible:g}", markup=False)

    limit = TOLERANCE if tolerance is None else tolerance
    grades = grade_answers(answers, class_folder=folder, points=points, tolerance=limit, progress=progress)
    if csv is not None:
        write_feedback(grades, csv.parent / FEEDBACK)
        write_atomic(csv, grades_csv(grades))
        err().print(f"wrote {csv}, and feedback for each student to {csv.parent / FEEDBACK}", markup=False)
    if json:
        print_json([grade.to_dict() for grade in grades])
        return 0
    width = max(len(grade.student) for grade in grades)
    for grade in grades:
        line = Text(f"{grade.student:{width}}  {grade.points:6.4g} of {grade.possible:g}")
        line.append(f"  {grade.remark or 'all right'}", "" if grade.remark else "green")
        out().print(line, soft_wrap=True)
    return 0


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
    return 0 if solution.agrees else 1


def _list_examples(examples: dict[str, dict[str, Any]], json: bool) -> None:
    if json:
        print_json({name: settings["title"] for name, settings in examples.items()})
        return
    for name, settings in examples.items():
        out().print(f"[bold]{name:14}[/bold]{settings['title']}", soft_wrap=True)


def _verify(problem: "Problem", steps: dict[str, Any], tolerance: float | None, json: bool) -> int:
    from qkv.byhand.graph import StepGraph
    from qkv.byhand.verification import TOLERANCE, verify

    StepGraph(problem).check_steps(steps)
    result = verify(problem, steps, TOLERANCE if tolerance is None else tolerance)
    if json:
        print_json(result.to_dict())
    else:
        _print_verification(result)
    return 0 if result.ok else 1


def _print_verification(result: "Verification") -> None:
    width = max(9, *(len(check.step) + 2 for check in result.steps))
    for check in result.steps:
        words, style = VERDICTS[check.verdict]
        line = Text(f"{check.step:{width}}").append(words, style)
        if check.verdict != "right" or check.blank:
            counts = (
                (check.right, "right"),
                (check.follows, "carried forward"),
                (check.rounded, "rounded"),
                (check.wrong, "wrong"),
                (check.blank, "not given"),
            )
            line.append(f"  ({', '.join(f'{count} {word}' for count, word in counts if count)})", "dim")
        out().print(line, soft_wrap=True)
        for remark in check.remarks[:MAX_REMARKS]:
            _print_sentence(f"  {remark.sentence}", indent="    ")
        if len(check.remarks) > MAX_REMARKS:
            out().print(f"  and {len(check.remarks) - MAX_REMARKS} more wrong numbers in this step", soft_wrap=True)
    out().print()
    if result.first is not None:
        _print_sentence(f"First wrong number: {result.first.sentence}", indent="  ", style="bold")
    elif any(check.verdict == "rounded" for check in result.steps):
        out().print(Text("All right, apart from early rounding.", "bold green"), soft_wrap=True)
    else:
        out().print(Text("All right.", "bold green"), soft_wrap=True)


def _print_sentence(sentence: str, indent: str, style: str = "") -> None:
    """A sentence that may be long: in a terminal broken between words, else in one line."""
    lines = [sentence]
    if out().is_terminal:
        lines = textwrap.wrap(sentence, out().width, subsequent_indent=indent, break_on_hyphens=False)
    for line in lines:
        out().print(Text(line, style), soft_wrap=True)
