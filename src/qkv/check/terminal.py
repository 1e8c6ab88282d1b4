"""A report in the terminal: what it is, who sees whom, what holds and what does not."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qkv.check.finding import Finding, Report

STYLES = {
    "pass": ("✓", "green"),
    "fail": ("✗", "bold red"),
    "warn": ("!", "yellow"),
    "inconclusive": ("?", "yellow"),
    "described": ("·", "cyan"),
    "n/a": (" ", "dim"),
}


def render(report: Report, *, everything: bool = False) -> Group:
    """The whole report; what does not apply is left out unless `everything` is asked for."""
    parts: list[RenderableType] = [_head(report)]
    if report.influence:
        parts += [Text("\nwho moves whom (rows: outputs, columns: the token changed)"), influence_map(report.influence)]
    shown = [finding for finding in report.findings if everything or finding.verdict != "n/a"]
    parts += [Text(""), _table(shown), Text(""), _sum(report)]
    return Group(*parts)


def influence_map(moves: tuple[tuple[float, ...], ...]) -> Text:
    """The map, on a logarithmic scale, so that a leak of a millionth shows.

    >>> print(influence_map(((1.0, 0.0), (1e-3, 1.0))).plain)
      0 1
    0 ██··
    1 ▒▒██
    """
    picture = Text("  " + " ".join(f"{place % 10}" for place in range(len(moves))) + "\n")
    for row, line in enumerate(moves):
        cells = "".join(2 * _shade(move) for move in line)
        picture.append(f"{row % 10} {cells}\n")
    picture.rstrip()
    return picture


def _shade(move: float) -> str:
    for limit, shade in ((0.1, "█"), (1e-2, "▓"), (1e-4, "▒"), (1e-6, "░")):
        if move > limit:
            return shade
    return "·"


def _head(report: Report) -> Table:
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_row("target", report.target)
    head.add_row("called as", report.how)
    head.add_row("it is", Text(report.kind, style="bold"))
    head.add_row("promised", str(report.contract))
    return head


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sign, style = STYLES[finding.verdict]
        words = Text(finding.evidence)
        if finding.verdict in ("fail", "warn") and finding.hint:
            words.append(f"\n→ {finding.hint}", style="italic")
        table.add_row(Text(sign, style=style), Text(finding.check, style=style), words)
    return table


def _sum(report: Report) -> Text:
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in STYLES}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "n/a")
    return Text(f"{'sound' if report.ok else 'NOT SOUND'}: {said}", style="bold green" if report.ok else "bold red")
