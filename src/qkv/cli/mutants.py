"""`qkv check --zoo`: the known mistakes, all of them or one by its name."""

from qkv.cli.console import err, out, print_json


def check_zoo(json: bool, matrix: bool) -> int:
    """Walk through the zoo and say which mutants are caught, by what, and what they are named."""
    from qkv.check.mutants import MUTANTS, walk
    from qkv.check.mutants.table import as_dicts, as_page, summary

    rows = []
    with err().status("walking through the zoo") as status:
        for mutant, report in walk():
            rows.append((mutant, report))
            status.update(f"{len(rows)} of {len(MUTANTS)}: {mutant.name}")
    if json:
        print_json(as_dicts(rows))
    elif matrix:
        print(as_page(rows), end="")
    else:
        for mutant, report in rows:
            sign = "[red]missed[/red]" if report.ok else "[green]caught[/green]"
            by = ", ".join(finding.check for finding in report.failed)
            named = "not named" if report.diagnosis is None else f"named: {report.diagnosis.family}"
            out().print(f"{sign}  {mutant.name} ({mutant.family}; {named}): {by}")
        out().print(f"\n{summary(rows)}")
    return 0 if all(not report.ok for _, report in rows) else 1


def check_mutant(name: str, json: bool, all_findings: bool) -> int:
    """One mutant: what is wrong with it, its code, and the findings that catch it."""
    from rich.syntax import Syntax

    from qkv.check.diagnosis import FAMILIES
    from qkv.check.mutants import checked, find
    from qkv.check.mutants.table import as_dicts
    from qkv.check.terminal import render

    mutant = find(name)
    file, line, code = mutant.source
    report = checked(mutant)
    if json:
        print_json(
            {**as_dicts([(mutant, report)])[0], "file": file, "line": line, "code": code, "report": report.as_dict()}
        )
    else:
        out().print(f"[bold]{mutant.name}[/bold]  {file}:{line}", highlight=False)
        out().print(f"a mistake of the family “{mutant.family}”: {FAMILIES[mutant.family]}\n", highlight=False)
        out().print(Syntax(code, "python", background_color="default"))
        out().print(render(report, everything=all_findings))
    return 1 if report.ok else 0
