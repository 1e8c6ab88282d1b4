"""`qkv mutants`: implementations with one known mistake each, all of them or one by its name."""

from qkv.cli.console import err, out, print_json


def mutants(*name: str, markdown: bool = False, all_findings: bool = False, json: bool = False) -> int:
    """Check the mutants: implementations with one known mistake each, which `qkv check` must catch.

    Without a name, check all of them and print which are caught, by which checks, and the diagnosis. With a name, show
    the code of that mutant and the findings that catch it. Exit code 1 if a mutant is missed.

    Examples:

        qkv mutants
        qkv mutants mask strict
        qkv mutants --markdown > docs/mutants.md

    Parameters
    ----------
    name
        The name of one mutant; quotes are optional.
    markdown
        Print the table of docs/mutants.md: which check catches which mutant.
    all_findings
        With a name: show also the checks that do not apply.
    json
        Print the results as JSON.
    """
    if not name:
        return _check_all(json, markdown)
    if markdown:
        raise ValueError("--markdown prints the table of all mutants: omit the name")
    return _check_one(" ".join(name), json, all_findings)


def _check_all(json: bool, markdown: bool) -> int:
    from qkv.check.mutants import MUTANTS, check_all_mutants
    from qkv.check.mutants.suite import as_dicts, as_markdown, summarize

    results = []
    with err().status("checking mutants") as status:
        for mutant, report in check_all_mutants():
            results.append((mutant, report))
            status.update(f"{len(results)} of {len(MUTANTS)}: {mutant.name}")
    if json:
        print_json(as_dicts(results))
    elif markdown:
        print(as_markdown(results), end="")
    else:
        for mutant, report in results:
            outcome = "[red]missed[/red]" if report.ok else "[green]caught[/green]"
            checks = ", ".join(finding.check for finding in report.failed)
            diagnosis = "none" if report.diagnosis is None else report.diagnosis.family
            out().print(f"{outcome}  {mutant.name} ({mutant.family}; diagnosis: {diagnosis}): {checks}")
        out().print(f"\n{summarize(results)}")
    return 0 if all(not report.ok for _, report in results) else 1


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
