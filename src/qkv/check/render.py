"""Render a report: for the terminal, as JUnit XML for CI, and as one offline HTML page with the influence map."""

import math
from collections.abc import Sequence
from html import escape
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qkv._html import page
from qkv.check.report import Finding, Report

SIGNS = {"pass": "✓", "fail": "✗", "warn": "!", "inconclusive": "?", "described": "·", "n/a": "–"}
VERDICT_ORDER = ("fail", "warn", "inconclusive", "pass", "described", "n/a")

Effects = Sequence[Sequence[float]]  # an influence map: row i, column j is the effect of token j on output i


def count_verdicts(report: Report, order: Sequence[str]) -> str:
    """How many findings have each verdict, in words; "n/a" is not counted."""
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in order}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "n/a")


# -- terminal ----------------------------------------------------------------------------------------------------------

TERMINAL_STYLES = {
    "pass": ("✓", "green"),
    "fail": ("✗", "bold red"),
    "warn": ("!", "yellow"),
    "inconclusive": ("?", "yellow"),
    "described": ("·", "cyan"),
    "n/a": (" ", "dim"),
}


def terminal_report(report: Report, *, all_findings: bool = False) -> Group:
    """The report for the terminal, without findings that do not apply unless `all_findings`."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_row("target", report.target)
    head.add_row("called as", report.how)
    head.add_row("kind", Text(report.kind, style="bold"))
    head.add_row("promised", str(report.contract))
    parts: list[RenderableType] = [head]
    if report.influence:
        parts += [Text("\ninfluence map (row: output, column: changed token)"), terminal_influence(report.influence)]
    shown = [finding for finding in report.findings if all_findings or finding.verdict != "n/a"]
    verdict, style = ("sound", "bold green") if report.ok else ("NOT SOUND", "bold red")
    sums = Text(f"{verdict}: {count_verdicts(report, list(TERMINAL_STYLES))}", style=style)
    return Group(*parts, Text(""), _terminal_findings(shown), Text(""), sums)


def terminal_influence(effects: Effects) -> Text:
    """The influence map on a logarithmic scale, so that a leak of a millionth shows.

    >>> print(terminal_influence(((1.0, 0.0), (1e-3, 1.0))).plain)
      0 1
    0 ██··
    1 ▒▒██
    """
    columns = len(effects[0]) if effects else 0
    text = Text("  " + " ".join(f"{position % 10}" for position in range(columns)) + "\n")
    for row, line in enumerate(effects):
        cells = "".join(2 * _terminal_shade(effect) for effect in line)
        text.append(f"{row % 10} {cells}\n")
    text.rstrip()
    return text


def _terminal_shade(effect: float) -> str:
    for limit, shade in ((0.1, "█"), (1e-2, "▓"), (1e-4, "▒"), (1e-6, "░")):
        if effect > limit:
            return shade
    return "·"


def _terminal_findings(findings: list[Finding]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sign, style = TERMINAL_STYLES[finding.verdict]
        words = Text(finding.evidence)
        if finding.verdict in ("fail", "warn") and finding.hint:
            words.append(f"\n→ {finding.hint}", style="italic")
        table.add_row(Text(sign, style=style), Text(finding.check, style=style), words)
    return table


# -- JUnit XML ---------------------------------------------------------------------------------------------------------


def junit_xml(report: Report) -> str:
    """One test case for each finding; a failure carries its evidence and its hint."""
    skipped = ("n/a", "inconclusive")
    suite = ElementTree.Element(
        "testsuite",
        name=f"qkv check {report.target}",
        tests=str(len(report.findings)),
        failures=str(len(report.failed)),
        skipped=str(sum(finding.verdict in skipped for finding in report.findings)),
    )
    for finding in report.findings:
        case = ElementTree.SubElement(suite, "testcase", classname=report.target, name=finding.check)
        if finding.verdict == "fail":
            failure = ElementTree.SubElement(case, "failure", message=finding.evidence)
            failure.text = finding.hint or ""
        elif finding.verdict in skipped:
            ElementTree.SubElement(case, "skipped", message=finding.evidence)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


# -- HTML --------------------------------------------------------------------------------------------------------------

MIN_POWER = -6.0  # effects below this power of ten count as none
# viridis, which is perceptually even and prints in gray
COLORS = ("#440154", "#472c7a", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32", "#fde725")
STYLE = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.summary { font-size: 1.15rem; font-weight: 600; margin: 1rem 0; }
.pass { color: var(--good); } .fail { color: var(--bad); } .warn, .inconclusive { color: var(--maybe); }
.described { color: var(--queries); } .na { color: var(--soft); }
.report { width: 100%; } .report td { overflow-wrap: anywhere; } .report td:first-child { white-space: nowrap; }
.report td.check { min-width: 12rem; font-weight: 600; }
.hint { display: block; margin-top: .2rem; font-style: italic; color: var(--soft); }
.diagnosis { border-left: 3px solid var(--bad); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.map text { font: 10px system-ui, sans-serif; fill: var(--soft); }
.map rect.none { fill: none; stroke: var(--line); stroke-width: .5; }
@media print { .map rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def html_page(report: Report) -> str:
    """The report as one offline page without scripts; every text is escaped, names from the checked file too."""
    kind, word = ("pass", "Sound") if report.ok else ("fail", "Not sound")
    parts = [f'<p class="summary {kind}">{word}: {count_verdicts(report, VERDICT_ORDER)}</p>']
    facts = {"called as": report.how, "kind": report.kind, "promised": str(report.contract)}
    parts.append(
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in facts.items()) + "</dl>"
    )
    hints = dict.fromkeys(finding.hint for finding in report.failed if finding.hint)
    if hints:
        words = "".join(f"<p>{escape(hint)}</p>" for hint in hints)
        parts.append(f'<h2>The likely bug</h2><div class="diagnosis">{words}</div>')
    parts += ["<h2>Findings</h2>", _html_findings(report.findings)]
    if report.influence:
        parts += ["<h2>Influence map</h2>", svg_influence(report.influence)]
    parts.append(
        '<p class="soft">Scores have no scale: the forbidden effect divided by the effect of an allowed change. '
        "A pass says that the property held where it was measured, on short sequences and a few draws.</p>"
    )
    return page(f"qkv check: {report.target}", *parts, style=STYLE)


def _html_findings(findings: Sequence[Finding]) -> str:
    ordered = sorted(findings, key=lambda finding: VERDICT_ORDER.index(finding.verdict))
    head = '<tr><th>verdict</th><th>property</th><th class="number">score</th><th>evidence</th></tr>'
    body = "".join(_html_finding(finding) for finding in ordered)
    return f'<div class="scroll"><table class="report"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _html_finding(finding: Finding) -> str:
    kind = finding.verdict.replace("/", "")
    score = "" if finding.score is None else f"{finding.score:.2g}"
    hint = f'<span class="hint">→ {escape(finding.hint)}</span>' if finding.hint and finding.verdict != "pass" else ""
    return (
        f'<tr><td class="{kind}">{SIGNS[finding.verdict]} {escape(finding.verdict)}</td>'
        f'<td class="check">{escape(finding.check)}</td><td class="number">{score}</td>'
        f"<td>{escape(finding.evidence)}{hint}</td></tr>"
    )


def svg_influence(effects: Effects) -> str:
    """The influence map as SVG: a cell for each output (row) and changed token (column), on a logarithmic scale."""
    size, left, top = 26, 34, 30
    rows, columns = len(effects), len(effects[0])
    parts = [f'<text x="{left}" y="11">changed token →</text>']
    for j in range(columns):
        parts.append(f'<text x="{left + j * size + size / 2}" y="{top - 6}" text-anchor="middle">{j}</text>')
    for i in range(rows):
        parts.append(f'<text x="{left - 6}" y="{top + i * size + size / 2 + 3}" text-anchor="end">{i}</text>')
    for i, row in enumerate(effects):
        for j, effect in enumerate(row):
            words = f"<title>output {i} changes by {effect:.2g} of the largest change when token {j} changes</title>"
            parts.append(f"<rect {_svg_cell(left + j * size, top + i * size, size - 1, effect)}>{words}</rect>")
    width, height = left + columns * size + 130, max(top + rows * size + 8, 250)
    parts.append(_svg_legend(left + columns * size + 28, top))
    return (
        f'<figure><svg class="map" role="img" aria-label="influence map" viewBox="0 0 {width} {height}" '
        f'width="{width}">{"".join(parts)}</svg>'
        "<figcaption>Row: output; column: changed token. An empty cell: no influence.</figcaption></figure>"
    )


def _svg_cell(x: int, y: int, size: int, effect: float) -> str:
    color = effect_color(effect)
    fill = 'class="none"' if color is None else f'fill="{color}"'
    return f'x="{x}" y="{y}" width="{size}" height="{size}" {fill}'


def effect_color(effect: float) -> str | None:
    """The color of an effect; None for one too small to count.

    >>> effect_color(1.0), effect_color(0.0)
    ('#fde725', None)
    """
    if not effect > 10**MIN_POWER:
        return None
    depth = (math.log10(min(effect, 1.0)) - MIN_POWER) / -MIN_POWER
    return COLORS[min(int(depth * len(COLORS)), len(COLORS) - 1)]


def _svg_legend(x: int, y: int) -> str:
    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    parts = [f'<text x="{x}" y="{y - 8}">share of the largest</text>']
    for row, power in enumerate(range(0, int(MIN_POWER) - 1, -1)):
        effect, words = 10.0**power * 1.0001, f"10{str(power).translate(superscripts)}"
        if power == 0:
            words = "1"
        elif power == MIN_POWER:
            effect, words = 0.0, "under 10⁻⁶"
        cell = _svg_cell(x, y + row * 20, 16, effect)
        parts.append(f'<rect {cell}/><text x="{x + 24}" y="{y + row * 20 + 12}">{words}</text>')
    return "".join(parts)
