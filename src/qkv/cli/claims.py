"""`qkv claims`: textbook statements about attention and transformers, tested by experiments."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.claims import ClaimResult
    from qkv.claims.claim import Claim

COLORS = {"holds": "green", "holds-if": "yellow", "fails": "red", "undecided": "cyan"}


def claims(
    action: str | None = None,
    /,
    *names: str,
    every: Annotated[bool, Parameter(name="--all")] = False,
    seed: int = 0,
    knobs: Annotated[list[str] | None, Parameter(name="--set")] = None,
    wrong: str | None = None,
    data: str | None = None,
    long: bool = False,
    report: str | None = None,
    json: bool = False,
) -> int:
    """Test textbook claims about attention and transformers by experiment. Without arguments, list the claims.

    The exit code is 0 if every verdict is the expected one, otherwise 1.

    Examples:

        qkv claims
        qkv claims show copy
        qkv claims run copy average
        qkv claims run copy --set beta=2
        qkv claims run --all --report claims.html

    Parameters
    ----------
    action
        show: print the question, statement, reason and method of claims, without running them. run: run claims. Omit
        it to list the claims.
    names
        The names of the claims, as in the list.
    every
        With run: run all claims.
    seed
        Random seed.
    knobs
        Change a setting of the experiment, such as --set beta=30. May be repeated. `qkv claims show NAME` lists the
        settings.
    wrong
        Run the experiment on a wrong implementation of attention, such as --wrong no-scale. The verdict should
        change. `qkv claims show NAME` lists the implementations.
    data
        Dataset name or path, as in `qkv train`, for claims that use data, such as data-regimes-real.
    long
        Train longer (only for claims that train a model).
    report
        Write an HTML page with all numbers and figures to this file. It works offline.
    json
        Print the results as JSON.
    """
    if action is None:
        if every or report or knobs or data:
            raise ValueError("to run claims, use `qkv claims run NAME ...` or `qkv claims run --all`")
        return _list_claims(json)
    if action == "show":
        if every or report or knobs or wrong or data or not names:
            raise ValueError(
                "`qkv claims show NAME ...` needs names and takes only --json; to run: qkv claims run NAME"
            )
        return _show_claims(names, json)
    if action != "run":
        raise ValueError(f"`qkv claims` lists the claims; to run one: qkv claims run {' '.join((action, *names))}")
    from qkv._files import check_writable
    from qkv.claims.catalog import find_by_name, read_catalog

    catalog = read_catalog()  # without PyTorch: a wrong name is answered at once
    chosen = [find_by_name(name, catalog).name for name in names]
    if every == bool(chosen):
        raise ValueError("name the claims to run, or use --all; `qkv claims` lists them")
    chosen = list(catalog if every else dict.fromkeys(chosen))
    settings = _parse_settings(knobs or [], [catalog[name] for name in chosen])

    from qkv.claims import find_claim
    from qkv.claims.registry import check_takes_data

    options = {**settings, **_wrong_implementation(wrong, chosen)}
    for name in chosen:
        check_takes_data(find_claim(name), data)
    if report is not None:
        check_writable(report)
    results: "list[ClaimResult]" = []
    try:
        for result in _run(chosen, seed, {**options, "data": data}, long):
            results.append(result)
    except KeyboardInterrupt:
        if report is not None and results:
            _write_report(results, report)
        if json:
            print_json([result.to_dict() for result in results])
        else:
            _print_results(results)
        err().print(f"interrupted: {len(results)} of {len(chosen)} claims were run", style="yellow")
        raise
    if report is not None:
        _write_report(results, report)
    if json:
        print_json([result.to_dict() for result in results])
    else:
        _print_results(results)
    return 0 if all(result.verdict == result.expected for result in results) else 1


def _list_claims(json: bool) -> int:
    from qkv.claims.catalog import read_catalog
    from qkv.claims.questions import TITLES

    claims = read_catalog()

    if json:
        print_json(
            [
                {
                    "name": claim.name,
                    "question": TITLES[claim.name],
                    "family": claim.family,
                    "statement": claim.statement,
                    "cost": claim.cost,
                    "knobs": {knob.name: knob.default for knob in claim.knobs},
                }
                for claim in claims.values()
            ]
        )
        return 0
    longest = max(len(name) for name in claims)
    for family in dict.fromkeys(claim.family for claim in claims.values()):
        out().print(Text(family, style="bold"))
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=longest + 2, no_wrap=True)
        table.add_column(ratio=1)
        table.add_column(width=7, no_wrap=True, justify="right")
        for claim in [claim for claim in claims.values() if claim.family == family]:
            name, cost = Text(f"  {claim.name}", style="cyan"), Text(claim.cost, style="dim")
            table.add_row(name, Text(TITLES[claim.name]), cost)
        out().print(table)
    out().print("\nRead one: qkv claims show copy")
    out().print("Run some: qkv claims run copy beta")
    out().print("Run all:  qkv claims run --all --report claims.html")
    return 0


def _show_claims(names: tuple[str, ...], json: bool) -> int:
    """Print question, statement, condition, reason, method and settings of claims, without running them."""
    from qkv.claims.catalog import find_by_name, read_catalog
    from qkv.claims.courses import answers_with_claim
    from qkv.claims.explanations import REASONS, WRONG_IMPLEMENTATIONS
    from qkv.claims.questions import TITLES
    from qkv.claims.report import VERDICTS

    shown = []
    for claim in [find_by_name(name, read_catalog()) for name in dict.fromkeys(names)]:
        reason, method = REASONS[claim.name]
        shown.append(
            {
                "name": claim.name,
                "question": TITLES[claim.name],
                "statement": claim.statement,
                "expected": claim.expected,
                "condition": claim.condition,
                "reason": reason,
                "method": method,
                "knobs": {knob.name: {"help": knob.help, "default": knob.default} for knob in claim.knobs},
                "mutants": list(claim.mutants),
                "wrong": {name: WRONG_IMPLEMENTATIONS[name] for name in claim.mutants},
                "homework": [item for answer in answers_with_claim(claim.name) for item in answer.items],
                "cost": claim.cost,
            }
        )
    if json:
        print_json(shown)
        return 0
    for entry in shown:
        out().print(Text.assemble((entry["question"], "bold"), ("  " + entry["name"], "cyan")))
        expected = VERDICTS[entry["expected"]] + (f": {entry['condition']}" if entry["condition"] else "")
        knobs = ", ".join(f"{name} = {knob['default']:g} ({knob['help']})" for name, knob in entry["knobs"].items())
        wrong = "".join(f"\n  {name}: {what}" for name, what in entry["wrong"].items())
        table = Table.grid(padding=(0, 2))
        for title, text in (
            ("statement", entry["statement"]),
            ("expected", expected),
            ("reason", entry["reason"]),
            ("method", entry["method"]),
            ("settings", knobs or "none"),
            ("--wrong", f"wrong implementations that change the verdict:{wrong}"),
            ("homework", f"qkv questions {' '.join(entry['homework'])}" if entry["homework"] else "none"),
        ):
            table.add_row(Text(f"  {title}", style="dim"), Text(text))
        out().print(table)
        out().print(Text(f"  qkv claims run {entry['name']}  ({entry['cost']})\n", style="cyan"))
    return 0


def _parse_settings(texts: list[str], claims: "list[Claim]") -> dict[str, float]:
    """The settings of --set as numbers; each must belong to every claim that is run."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"--set needs a setting and a number, such as beta=30; got {text!r}") from None
    for claim in claims:
        known = {knob.name: knob for knob in claim.knobs}
        for name, value in values.items():
            if name not in known:
                listed = ", ".join(f"{knob.name} ({knob.help}; {knob.default:g})" for knob in claim.knobs) or "none"
                raise ValueError(f"{claim.name} has no setting {name!r}; its settings: {listed}")
            known[name].validate(value, claim.name)
    return values


def _wrong_implementation(wrong: str | None, names: list[str]) -> dict[str, Any]:
    """The wrong implementation as arguments of `run`; every claim that is run must name it."""
    if wrong is None:
        return {}
    from qkv.claims import find_claim
    from qkv.claims.mutants import wrong_implementation

    for name in names:
        known = find_claim(name).mutants
        if wrong not in known:
            raise ValueError(f"--wrong for {name} must be one of {', '.join(known)}; got {wrong!r}")
    return wrong_implementation(wrong)


def _run(names: list[str], seed: int, options: dict[str, Any], long: bool) -> "Iterator[ClaimResult]":
    from qkv.claims import run
    from qkv.claims.report import VERDICTS

    with err().status("") as status:
        for index, name in enumerate(names, start=1):
            started = time.perf_counter()
            label = f"{index}/{len(names)} {name}"
            status.update(label)

            def progress(message: str, label: str = label) -> None:
                status.update(f"{label}: {message}")

            result = run(name, seed, long=long, progress=progress, **options)
            err().print(f"{label}: {VERDICTS[result.verdict]}, {time.perf_counter() - started:.1f} s", style="dim")
            yield result


def _print_results(results: "list[ClaimResult]") -> None:
    from qkv.claims.questions import TITLES
    from qkv.claims.report import VERDICTS, format_number

    for result in results:
        verdict = VERDICTS[result.verdict]
        title = (f"  {result.name}  ", "cyan"), (TITLES[result.name], "bold")
        out().print(Text.assemble((verdict, f"bold {COLORS[result.verdict]}"), *title))
        out().print(Text(result.statement))
        if result.condition:
            out().print(Text(f"{verdict}: {result.condition}", style="italic"))
        if result.verdict != result.expected:
            expected = VERDICTS[result.expected]
            out().print(Text(f"with the default settings and a correct attention function: {expected}", style="red"))
        table = Table.grid(padding=(0, 2))
        for name, number in result.numbers.items():
            table.add_row(Text(f"  {name}", style="dim"), Text(format_number(number), justify="right"))
        out().print(table)
        out().print()
    if len(results) > 1:
        expected = sum(result.verdict == result.expected for result in results)
        seconds = sum(result.seconds for result in results)
        out().print(f"{expected} of {len(results)} verdicts as expected, {seconds:.1f} s")


def _write_report(results: "list[ClaimResult]", target: str) -> None:
    from qkv._files import write_atomic
    from qkv.claims import CLAIMS
    from qkv.claims.report import render_page

    with err().status("drawing the figures"):
        write_atomic(target, render_page(results, {claim.name: claim.family for claim in CLAIMS.values()}))
    err().print(f"wrote {target}", style="dim")
