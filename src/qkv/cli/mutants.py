"""`qkv mutants`: implementations with one known mistake each, all of them or one by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.check.mutants.suite import Results


def mutants(
    *name: str, every: bool = False, markdown: bool = False, all_findings: bool = False, json: bool = False
) -> int:
    """Run `qkv check` on mutants: implementations with one planted bug each, which it must catch.

    Some mutants are written by hand (docs/mutants.md lists them); others are generated from a bug, a coding style and a
    size. Without a name, print how many are caught and correctly diagnosed: all handwritten ones, and the generated
    ones at one size (several minutes). With a name, show the code of that mutant and the findings that catch it. The
    exit code is 1 if a mutant is missed.

    Examples:

        qkv mutants
        qkv mutants mask strict
        qkv mutants --markdown > docs/mutants.md

    Parameters
    ----------
    name
        The name of one mutant; quotes are optional.
    every
        Check all generated mutants at all sizes (about half an hour).
    markdown
        Print the table in docs/mutants.md: which check catches which handwritten mutant.
    all_findings
        With a name: also show the checks that do not apply.
    json
        Print the results as JSON.
    """
    if not name:
        return _check_all(json, markdown, every)
    if markdown:
        raise ValueError("--markdown prints the table of all mutants: omit the name")
    return _check_one(" ".join(name), json, all_findings)


def _check_all(json: bool, markdown: bool, every: bool) -> int:
    from qkv.check.mutants import MUTANTS, check_all_mutants, generate_mutants, sample_mutants
    from qkv.check.mutants.suite import as_dicts, as_markdown, summarize

    generated = [] if markdown else list(generate_mutants()) if every else sample_mutants()
    chosen = [*MUTANTS.values(), *generated]
    results = []
    with err().status("checking mutants") as status:
        for mutant, report in check_all_mutants(chosen):
            results.append((mutant, report))
            status.update(f"{len(results)} of {len(chosen)}: {mutant.name}")
    if json:
        print_json(as_dicts(results))
    elif markdown:
        print(as_markdown(results), end="")
    else:
        _show(results)
        out().print(f"\n{summarize(results)}")
    return 0 if all(not report.ok for _, report in results) else 1


def _show(results: Results) -> None:
    """The mutants that are missed or named otherwise, then the counts by family, style and size."""
    from rich.table import Table

    from qkv.check.mutants.suite import count_by, is_diagnosed

    for mutant, report in results:
        if report.ok:
            out().print(f"[red]missed[/red]  {mutant.name} ({mutant.family})")
        elif not is_diagnosed(mutant, report):
            named = "nothing" if report.diagnosis is None else report.diagnosis.family
            out().print(f"[yellow]named otherwise[/yellow]  {mutant.name} ({mutant.family}): {named}")
    for by in ("family", "style", "size"):
        table = Table(box=None, padding=(0, 2))
        table.add_column(by)
        for title in ("mutants", "caught", "named"):
            table.add_column(title, justify="right")
        for key, counts in count_by(results, by).items():
            table.add_row(key, *map(str, counts))
        out().print(table)
        out().print()


def _check_one(name: str, json: bool, all_findings: bool) -> int:
    from rich.syntax import Syntax

    from qkv.check.mutants import check_mutant, find_mutant
    from qkv.check.mutants.suite import as_dicts
    from qkv.check.render import terminal_report
    from qkv.check.report import BUG_FAMILIES

    mutant = find_mutant(name)
    file, line, code = mutant.source
    report = check_mutant(mutant)
    if json:
        about = as_dicts([(mutant, report)])[0]
        print_json({**about, "file": file, "line": line, "code": code, "report": report.to_dict()})
    else:
        out().print(f"[bold]{mutant.name}[/bold]  {file}:{line}", highlight=False)
        out().print(f"family “{mutant.family}”: {BUG_FAMILIES[mutant.family]}\n", highlight=False)
        out().print(Syntax(code, "python", background_color="default"))
        out().print(terminal_report(report, all_findings=all_findings))
    return 1 if report.ok else 0
