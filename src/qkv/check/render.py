"""Render a report: for the terminal, and as one offline HTML page with the influence map."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qkv._html import COLOR_SCALE, page
from qkv.check.report import EXACTLY, Finding, Report

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
    """The report for the terminal: mistakes with fix and evidence first, then what was measured, then what passed.

    `all_findings` adds a table of every finding, also of those that do not apply.
    """
    style = "bold green" if report.ok else "bold red"
    parts: list[RenderableType] = [Text(f"{state_of(report)}: {report.target}", style=style)]
    parts += [part for mistake in find_mistakes(report) for part in (Text(""), _terminal_mistake(mistake))]
    notes = _terminal_notes(report)
    if notes.row_count:
        parts += [Text(""), notes]
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim")
    head.add_row("called as", report.how)
    head.add_row("kind", Text(report.kind, style="bold"))
    head.add_row("required", str(report.contract))
    parts += [Text(""), head]
    if report.influence:
        parts += [Text("\ninfluence map (row: output, column: changed token)"), terminal_influence(report.influence)]
    if all_findings:
        return Group(*parts, Text(""), _terminal_findings(list(report.findings)), Text(""), _terminal_counts(report))
    measured = _terminal_findings([finding for finding in report.findings if finding.verdict == "described"])
    passed = [finding.check for finding in report.findings if finding.verdict == "pass"]
    if measured.row_count:
        parts += [Text(""), measured]
    if passed:
        parts += [Text(""), Text(f"passed: {', '.join(passed)}")]
    return Group(*parts, Text(""), _terminal_counts(report))


@dataclass(frozen=True)
class Mistake:
    """Findings with one cause: what is wrong, how it is usually fixed, where, the evidence, and when it acts."""

    words: str
    fix: str
    line: str
    certainty: str
    findings: tuple[Finding, ...]
    when: str = ""


def find_mistakes(report: Report) -> list[Mistake]:
    """The failed findings, grouped by their cause; the diagnosis first."""
    cause, groups = report.diagnosis, {}
    for finding in report.failed:
        groups.setdefault(finding.hint or "", []).append(finding)
    mistakes = []
    for hint, findings in groups.items():
        words, found, fix = hint.removeprefix(EXACTLY).partition(f" [{findings[0].family}]: ")
        is_cause = cause is not None and (hint.endswith(cause.hint) or cause.words in hint)
        certainty = "explained exactly, at several shapes" if hint.startswith(EXACTLY) else ""
        if not found:
            words, fix = findings[0].evidence, hint
        line = cause.line if is_cause and cause is not None else ""
        when = cause.condition if is_cause and cause is not None else findings[0].condition
        when = "" if when in words else when
        mistakes.append((not is_cause, Mistake(words, fix, line, certainty, tuple(findings), when)))
    return [mistake for _, mistake in sorted(mistakes, key=lambda pair: pair[0])]


def _terminal_mistake(mistake: Mistake) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold red", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("✗ mistake", Text(mistake.words, style="bold red"))
    rows = {"when": mistake.when, "fix": mistake.fix, "line": mistake.line, "certainty": mistake.certainty}
    for name, words in rows.items():
        if words:
            table.add_row(Text(f"  {name}", style="dim"), Text(words))
    for number, finding in enumerate(mistake.findings):
        if mistake.words != finding.evidence:
            name = Text("" if number else "  evidence", style="dim")
            table.add_row(name, Text(f"{finding.check}: {finding.evidence}"))
        else:
            table.add_row(Text("  check", style="dim"), Text(finding.check))
    return table


def _terminal_notes(report: Report) -> Table:
    """Warnings, and required properties that could not be tested."""
    table = _terminal_findings([f for f in report.findings if f.verdict in ("warn", "inconclusive")])
    for missing in report.unproven:
        table.add_row(Text("✗", style="bold red"), Text("not tested", style="bold red"), Text(missing))
    return table


def _terminal_counts(report: Report) -> Text:
    verdict, style = state_of(report), "bold green" if report.ok else "bold red"
    untested = f", {len(report.unproven)} required but not tested" if report.unproven else ""
    return Text(f"{verdict}: {count_verdicts(report, list(TERMINAL_STYLES))}{untested}", style=style)


def state_of(report: Report) -> str:
    """Sound, not sound, or not proven: nothing failed, but a required property could not be tested."""
    if report.failed:
        return "NOT SOUND"
    return "NOT PROVEN" if report.unproven else "sound"


def terminal_influence(effects: Effects) -> Text:
    """The influence map on a logarithmic scale, so that a leak of a millionth shows.

    >>> print(terminal_influence(((1.0, 0.0), (1e-3, 1.0))).plain)
      0 1
    0 ██··
    1 ▒▒██
    """
    columns = len(effects[0]) if effects else 0
    left = len(str(max(len(effects) - 1, 0)))
    step = (len(str(max(columns - 1, 0))) + 2) // 2  # a label and a blank; a column is two characters wide
    labels = "".join(f"{column:<{2 * step}}" for column in range(0, columns, step))
    text = Text(f"{'':{left}} {labels.rstrip()}\n")
    for row, line in enumerate(effects):
        cells = "".join(2 * _terminal_shade(effect) for effect in line)
        text.append(f"{row:>{left}} {cells}\n")
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
        if finding.shapes and finding.verdict not in ("described", "n/a"):
            words.append(f"  [{finding.shapes}]", style="dim")
        if finding.verdict in ("fail", "warn") and finding.hint:
            words.append(f"\n→ {finding.hint}", style="italic")
        table.add_row(Text(sign, style=style), Text(finding.check, style=style), words)
    return table


# -- HTML --------------------------------------------------------------------------------------------------------------

MIN_POWER = -6.0  # effects below this power of ten count as none
STYLE = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.summary { font-size: 1.15rem; font-weight: 600; margin: 1rem 0; }
.pass { color: var(--good); } .fail { color: var(--bad); } .warn, .inconclusive { color: var(--maybe); }
.described { color: var(--open); } .na { color: var(--soft); }
.report { width: 100%; } .report td { overflow-wrap: anywhere; } .report td:first-child { white-space: nowrap; }
.report .check { font-weight: 600; } .report .evidence { display: block; }
@media (max-width: 40rem) { body { padding: 1.2rem .9rem 2rem; } .report td, .report th { padding-right: .6rem; }
  .report td:first-child { white-space: normal; } dl { grid-template-columns: 1fr; } dt { margin-top: .3rem; } }
.shapes { color: var(--soft); font-size: .85em; }
.hint { display: block; margin-top: .2rem; font-style: italic; color: var(--soft); }
.diagnosis { border-left: 3px solid var(--bad); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.map text { font: 10px system-ui, sans-serif; fill: var(--soft); }
.map rect.none { fill: none; stroke: var(--line); stroke-width: .5; }
@media print { .map rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def html_page(report: Report) -> str:
    """The report as one offline page without scripts; every text is escaped, names from the checked file too."""
    kind, word = "pass" if report.ok else "fail", state_of(report)
    parts = [f'<p class="summary {kind}">{word}: {count_verdicts(report, VERDICT_ORDER)}</p>']
    about: list[str] = []
    facts = {"called as": report.how, "kind": report.kind, "required": str(report.contract)}
    about.append(
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in facts.items()) + "</dl>"
    )
    for mistake in find_mistakes(report):
        rows = {"when": mistake.when, "fix": mistake.fix, "line": mistake.line, "certainty": mistake.certainty}
        words = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows.items() if text)
        evidence = "".join(f"<li>{escape(f.check)}: {escape(f.evidence)}</li>" for f in mistake.findings)
        parts.append(
            f'<div class="diagnosis"><p><strong>{escape(mistake.words)}</strong></p>'
            f"<dl>{words}</dl><ul>{evidence}</ul></div>"
        )
    parts += [f'<p class="fail">not tested: {escape(missing)}</p>' for missing in report.unproven]
    parts += [*about, "<h2>Findings</h2>", _html_findings(report.findings)]
    if report.influence:
        parts += ["<h2>Influence map</h2>", svg_influence(report.influence)]
    parts.append(
        '<p class="soft">Scores have no scale: the forbidden effect divided by the effect of an allowed change. '
        "A pass says that the property held at the shapes in brackets, on a few draws.</p>"
    )
    return page(f"qkv check: {report.target}", *parts, style=STYLE)


def _html_findings(findings: Sequence[Finding]) -> str:
    ordered = sorted(findings, key=lambda finding: VERDICT_ORDER.index(finding.verdict))
    head = '<tr><th>verdict</th><th>property and evidence</th><th class="number">score</th></tr>'
    shown: set[str] = set()  # a hint that several findings share is shown once, with the first of them
    body = "".join(_html_finding(finding, shown) for finding in ordered)
    return f'<table class="report"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _html_finding(finding: Finding, shown: set[str]) -> str:
    kind = finding.verdict.replace("/", "")
    score = "" if finding.score is None else f"{finding.score:.2g}"
    hint = ""
    if finding.hint and finding.verdict != "pass" and finding.hint not in shown:
        shown.add(finding.hint)
        hint = f'<span class="hint">→ {escape(finding.hint)}</span>'
    shapes = f' <span class="shapes">[{escape(finding.shapes)}]</span>' if finding.shapes else ""
    return (
        f'<tr><td class="{kind}">{SIGNS[finding.verdict]} {escape(finding.verdict)}</td>'
        f'<td><span class="check">{escape(finding.check)}</span>'
        f'<span class="evidence">{escape(finding.evidence)}{shapes}</span>{hint}</td>'
        f'<td class="number">{score}</td></tr>'
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
    """The color of an effect, on the scale of the local web app; None for one too small to count.

    >>> effect_color(1.0), effect_color(0.0)
    ('#ffea46', None)
    """
    if not effect > 10**MIN_POWER:
        return None
    depth = (math.log10(min(effect, 1.0)) - MIN_POWER) / -MIN_POWER
    position = round(255 * depth) / 255 * (len(COLOR_SCALE) - 1)
    low = min(int(position), len(COLOR_SCALE) - 2)
    stops = [[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in COLOR_SCALE[low : low + 2]]
    mixed = (math.floor(a + (b - a) * (position - low) + 0.5) for a, b in zip(*stops, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _svg_legend(x: int, y: int) -> str:
    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    parts = [f'<text x="{x}" y="{y - 8}">share of the largest</text>']
    for row, power in enumerate(range(0, int(MIN_POWER) - 1, -1)):
        effect, words = 10.0**power * 1.0001, f"10{str(power).translate(superscripts)}"
        if power == 0:
            words = "1"
        elif power == MIN_POWER:
            effect, words = 0.0, "none (under 10⁻⁶)"
        cell = _svg_cell(x, y + row * 20, 16, effect)
        parts.append(f'<rect {cell}/><text x="{x + 24}" y="{y + row * 20 + 12}">{words}</text>')
    return "".join(parts)
