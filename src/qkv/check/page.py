"""A report as one offline page: what it is, what holds and what does not, who moves whom; no scripts."""

import math
from html import escape

from qkv._html import page as shell
from qkv.check.finding import Finding, Report

SIGNS = {"pass": "✓", "fail": "✗", "warn": "!", "inconclusive": "?", "described": "·", "n/a": "–"}
ORDER = tuple({"fail": 0, "warn": 1, "inconclusive": 2, "pass": 3, "described": 4, "n/a": 5})
FAINTEST = -6.0  # the power of ten below which a move is none
# viridis, which is even to the eye and prints in grey
SCALE = ("#440154", "#472c7a", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32", "#fde725")
STYLE = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.said { font-size: 1.15rem; font-weight: 600; margin: 1rem 0; }
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


def page(report: Report) -> str:
    """The whole page; every text in it, names from the file under test too, is escaped."""
    parts = [_sentence(report), _facts(report)]
    parts += [_diagnosis(report)] if any(f.hint for f in report.failed) else []
    parts += ["<h2>What was found</h2>", _table(report.findings)]
    if report.influence:
        parts += ["<h2>Who moves whom</h2>", influence_picture(report.influence)]
    parts.append(
        '<p class="soft">A verdict has no scale: the effect that must not be, divided by the effect of a change that '
        "may be. A pass says that the property held where it was measured, on short sequences and a few draws.</p>"
    )
    return shell(f"qkv check: {report.target}", *parts, style=STYLE)


def _sentence(report: Report) -> str:
    counts = {verdict: sum(f.verdict == verdict for f in report.findings) for verdict in ORDER if verdict != "n/a"}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    kind, word = ("pass", "Sound") if report.ok else ("fail", "Not sound")
    return f'<p class="said {kind}">{word}: {said}</p>'


def _facts(report: Report) -> str:
    rows = {"called as": report.how, "it is": report.kind, "promised": str(report.contract)}
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in rows.items()) + "</dl>"


def _diagnosis(report: Report) -> str:
    """What the mistakes probably are, each once."""
    hints = dict.fromkeys(finding.hint for finding in report.failed if finding.hint)
    said = "".join(f"<p>{escape(hint)}</p>" for hint in hints)
    return f'<h2>What the mistake probably is</h2><div class="diagnosis">{said}</div>'


def _table(findings: tuple[Finding, ...]) -> str:
    ordered = sorted(findings, key=lambda finding: ORDER.index(finding.verdict))
    head = '<tr><th>verdict</th><th>property</th><th class="number">score</th><th>evidence</th></tr>'
    body = "".join(_row(finding) for finding in ordered)
    return f'<div class="scroll"><table class="report"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _row(finding: Finding) -> str:
    kind = finding.verdict.replace("/", "")
    score = "" if finding.score is None else f"{finding.score:.2g}"
    hint = f'<span class="hint">→ {escape(finding.hint)}</span>' if finding.hint and finding.verdict != "pass" else ""
    return (
        f'<tr><td class="{kind}">{SIGNS[finding.verdict]} {escape(finding.verdict)}</td>'
        f'<td class="check">{escape(finding.check)}</td><td class="number">{score}</td>'
        f"<td>{escape(finding.evidence)}{hint}</td></tr>"
    )


def influence_picture(moves: tuple[tuple[float, ...], ...]) -> str:
    """The map as SVG: a cell for each output (row) and changed token (column), on a logarithmic scale with a legend."""
    size, left, top = 26, 34, 30
    rows, columns = len(moves), len(moves[0])
    cells = []
    for i, row in enumerate(moves):
        for j, move in enumerate(row):
            place = f'x="{left + j * size}" y="{top + i * size}" width="{size - 1}" height="{size - 1}"'
            words = f"<title>changing token {j} moves output {i} by {move:.2g} of the largest move</title>"
            colour = shade(move)
            fill = f'fill="{colour}"' if colour else 'class="none"'
            cells.append(f"<rect {place} {fill}>{words}</rect>")
    numbers = [
        *(
            f'<text x="{left + j * size + size / 2}" y="{top - 6}" text-anchor="middle">{j}</text>'
            for j in range(columns)
        ),
        *(
            f'<text x="{left - 6}" y="{top + i * size + size / 2 + 3}" text-anchor="end">{i}</text>'
            for i in range(rows)
        ),
        f'<text x="{left}" y="11">token changed →</text>',
    ]
    width, height = left + columns * size + 130, top + rows * size + 8
    legend = _legend(left + columns * size + 28, top)
    return (
        f'<figure><svg class="map" role="img" aria-label="influence map" viewBox="0 0 {width} {max(height, 250)}" '
        f'width="{width}">{"".join(numbers)}{"".join(cells)}{legend}</svg>'
        "<figcaption>Rows: outputs; columns: the token that was changed. An empty cell: no influence.</figcaption>"
        "</figure>"
    )


def shade(move: float) -> str | None:
    """The colour of a move; None for one too small to count.

    >>> shade(1.0), shade(0.0)
    ('#fde725', None)
    """
    if not move > 10**FAINTEST:
        return None
    depth = (math.log10(min(move, 1.0)) - FAINTEST) / -FAINTEST
    return SCALE[min(int(depth * len(SCALE)), len(SCALE) - 1)]


def _legend(x: int, y: int) -> str:
    step = 20
    parts = [f'<text x="{x}" y="{y - 8}">share of the largest</text>']
    for place in range(7):
        power = -place
        colour = shade(10.0**power * 1.0001) or SCALE[0]
        if power == -6:
            cell = f'<rect class="none" x="{x}" y="{y + place * step}" width="16" height="16"/>'
            words = "under 10⁻⁶"
        else:
            cell = f'<rect fill="{colour}" x="{x}" y="{y + place * step}" width="16" height="16"/>'
            words = "1" if power == 0 else f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
        parts.append(f'{cell}<text x="{x + 24}" y="{y + place * step + 12}">{words}</text>')
    return "".join(parts)
