"""`qkv claims`: the textbook's statements, tried by experiment."""

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.claims import ClaimResult

COLOURS = {"holds": "green", "holds-if": "yellow", "fails": "red", "undecided": "cyan"}


def claims(
    *words: str,
    every: Annotated[bool, Parameter(name="--all")] = False,
    seed: int = 0,
    knobs: Annotated[list[str] | None, Parameter(name="--set")] = None,
    wrong: str | None = None,
    long: bool = False,
    report: str | None = None,
    json: bool = False,
) -> int:
    """The textbook's statements about attention and transformers, tried by experiment.

    Without names they are listed. The exit code is 0 when every verdict is the one that a sound attention gives, 1 when
    one is not.

    Examples:

        qkv claims
        qkv claims run copy beta
        qkv claims run copy --set beta=2
        qkv claims run --all --report claims.html

    Parameters
    ----------
    words
        Nothing, to list the claims; or `run` and the names of some; or `run --all`.
    every
        Run all claims.
    seed
        Another seed gives other random numbers.
    knobs
        Another condition of the experiment, such as --set beta=30: see where the claim breaks. May be given several
        times; a name that is not there is answered with those there are.
    wrong
        A wrong implementation in place of the right one, such as --wrong no-scale: the verdict should change.
    long
        Train longer, where a claim trains.
    report
        Write a page with all numbers and pictures to this file; it needs no network.
    json
        Print the results as JSON.
    """
    if not words:
        if every or report or knobs:
            raise ValueError("to run claims, say `qkv claims run` and their names, or `qkv claims run --all`")
        return _list(json)
    if words[0] != "run":
        raise ValueError(f"qkv claims lists; to run one, say: qkv claims run {' '.join(words)}")
    from qkv import claims as room
    from qkv._files import writable

    names = [room.find(name).name for name in words[1:]]
    if every == bool(names):
        raise ValueError("name the claims to run, or say --all: qkv claims lists them")
    names = room.names() if every else list(dict.fromkeys(names))
    setting = {**_setting(knobs or [], names), **_wrong(wrong, names)}
    if report is not None:
        writable(report)
    results = _run(names, seed, setting, long)
    if report is not None:
        _report(results, report)
    if json:
        print_json([_finite(result.as_dict()) for result in results])
    else:
        _show(results)
    return 0 if all(result.verdict == result.expected for result in results) else 1


def _list(json: bool) -> int:
    from qkv.claims import CLAIMS

    if json:
        print_json(
            [
                {
                    "name": claim.name,
                    "family": claim.family,
                    "statement": claim.statement,
                    "cost": claim.cost,
                    "knobs": {knob.name: knob.default for knob in claim.knobs},
                }
                for claim in CLAIMS.values()
            ]
        )
        return 0
    family, width = None, out().width
    longest = max(len(name) for name in CLAIMS)
    for claim in CLAIMS.values():
        if claim.family != family:
            family = claim.family
            out().print(Text(family, style="bold"))
        line = Text(f"  {claim.name:{longest}}  ", style="cyan")
        statement = Text(claim.statement, style="default")
        statement.truncate(max(width - len(line) - 9, 20), overflow="ellipsis", pad=True)
        out().print(line + statement + Text(f" {claim.cost:>8}", style="dim"), no_wrap=True, crop=True)
    out().print("\nRun some: qkv claims run copy beta")
    out().print("Run all:  qkv claims run --all --report claims.html")
    return 0


def _setting(knobs: list[str], names: list[str]) -> dict[str, Any]:
    """Knobs as numbers; each must belong to every claim that is run."""
    setting = {}
    for knob in knobs:
        name, equals, value = knob.partition("=")
        try:
            setting[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"--set takes a knob and a number, such as beta=30; got {knob!r}") from None
        if not equals:
            raise ValueError(f"--set takes a knob and a number, such as beta=30; got {knob!r}")
    if setting:
        from qkv.claims.registry import find, settings

        for name in names:
            settings(find(name), setting)
    return setting


def _wrong(wrong: str | None, names: list[str]) -> dict[str, Any]:
    """What stands in for the right one; each claim that is run must be one that it is meant to overturn."""
    if wrong is None:
        return {}
    from qkv.claims import find
    from qkv.claims.mutants import replacing

    for name in names:
        if wrong not in find(name).mutants:
            raise ValueError(f"{name} is tried with --wrong {', '.join(find(name).mutants)}; got {wrong!r}")
    return replacing(wrong)


def _run(names: list[str], seed: int, setting: dict[str, Any], long: bool) -> "list[ClaimResult]":
    from qkv import claims as room

    results = []
    with err().status("") as status:
        for index, name in enumerate(names, start=1):
            began = time.perf_counter()
            place = f"{index}/{len(names)} {name}"
            status.update(place)
            result = room.run(
                name, seed, long=long, note=lambda what, place=place: status.update(f"{place}: {what}"), **setting
            )
            results.append(result)
            err().print(f"{place}: {result.verdict}, {time.perf_counter() - began:.1f} s", style="dim")
    return results


def _show(results: "list[ClaimResult]") -> None:
    from qkv.claims.report import WORDS, shown

    for result in results:
        line = Text.assemble((WORDS[result.verdict], f"bold {COLOURS[result.verdict]}"), ("  " + result.name, "bold"))
        out().print(line)
        out().print(Text(result.statement))
        if result.condition:
            out().print(Text(f"{WORDS[result.verdict]}: {result.condition}", style="italic"))
        if result.verdict != result.expected:
            out().print(
                Text(
                    f"expected of a sound attention, with the claim's own conditions: {WORDS[result.expected]}",
                    style="red",
                )
            )
        table = Table.grid(padding=(0, 2))
        for name, number in result.numbers.items():
            table.add_row(Text(f"  {name}", style="dim"), Text(shown(number), justify="right"))
        out().print(table)
        out().print()
    if len(results) > 1:
        expected = sum(result.verdict == result.expected for result in results)
        seconds = sum(result.seconds for result in results)
        out().print(f"{expected} of {len(results)} as a sound attention gives them, {seconds:.1f} s")


def _report(results: "list[ClaimResult]", target: str) -> None:
    from qkv._files import write_whole
    from qkv.claims import CLAIMS
    from qkv.claims.report import page

    with err().status("drawing"):
        write_whole(target, page(results, {claim.name: claim.family for claim in CLAIMS.values()}))
    err().print(f"wrote {target}", style="dim")


def _finite(value):
    """Numbers that JSON has no word for become null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
