"""HTML report of claims, one offline page: verdicts first, then numbers and figures. Change its colors in STYLE."""

import html
from collections.abc import Sequence

from qkv import __version__
from qkv._html import page, typeset
from qkv.claims.catalog import read_catalog
from qkv.claims.claim import ClaimResult, Number, Predicate
from qkv.claims.questions import TITLES

VERDICTS = {"holds": "holds", "holds-if": "holds if", "fails": "fails", "undecided": "undecided"}
PARTS = {"claim": "the statement", "beyond": "beyond its conditions", "control": "controls"}

STYLE = """
@media print { .head { break-inside: avoid; } .head, .head + p, .statement { break-after: avoid; }
  nav { break-after: page; } }
h2 { margin: 3rem 0 0; color: var(--soft); font-weight: 600; }
h3 { font-size: 1.3rem; margin: 0; }
summary { color: var(--soft); font-size: .9rem; }
table { width: 100%; }
nav table { margin-top: 1.2rem; }
@media (min-width: 30rem) { nav td:nth-child(2) { white-space: nowrap; } }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .15em; }
article { border-top: 1px solid var(--line); padding: 1.6rem 0 1.2rem; margin-top: 1.2rem; }
.verdict { font-weight: 700; white-space: nowrap; }
.verdict::before { content: ""; display: inline-block; width: .62em; height: .62em; border-radius: 50%;
  margin-right: .45em; background: currentColor; }
.holds { color: var(--good); } .holds-if { color: var(--maybe); } .fails { color: var(--bad); }
.undecided { color: var(--open); }
.fails::before { border-radius: 0; } .holds-if::before { border-radius: 0 50% 50% 0; }
.undecided::before { background: none; border: .14em solid currentColor; }
.head { display: flex; gap: 1rem; align-items: baseline; justify-content: space-between; flex-wrap: wrap; }
.statement { font-size: 1.05rem; }
.unexpected { color: var(--bad); font-weight: 600; }
details { margin-top: .6rem; }
.off { color: var(--bad); }
"""


def render_page(results: Sequence[ClaimResult], families: dict[str, str]) -> str:
    """The whole page; `families` maps each claim to its family."""
    counts = {word: sum(r.verdict == word for r in results) for word in VERDICTS}
    summary = ", ".join(f"{count} {VERDICTS[word]}" for word, count in counts.items() if count)
    unexpected = [r for r in results if r.verdict != r.expected]
    seeds = ", ".join(sorted({str(r.seed) for r in results}))
    parts = [
        f"<p>Statements about attention and transformers, each tested by an experiment: {summary}. Some are expected "
        f"to fail: {len(results) - len(unexpected)} of {len(results)} verdicts are as expected.</p>",
        f'<p class="soft">qkv {__version__} · seed {seeds} · {sum(r.seconds for r in results):.0f} s · a verdict is '
        "computed from the measurements below it; “holds if” names the condition, “fails” the counter-example.</p>",
    ]
    if unexpected:
        names = ", ".join(html.escape(r.name) for r in unexpected)
        parts.append(f'<p class="unexpected">Not the verdict of a correct attention: {names}.</p>')
    parts.append(_contents(results))
    family = None
    for result in results:
        if families.get(result.name) != family:
            family = families.get(result.name)
            parts.append(f"<h2>{html.escape((family or '').capitalize())}</h2>")
        parts.append(_article(result))
    return page("Textbook claims, tested", *parts, style=STYLE)


def format_number(number: Number) -> str:
    """A number with its range, where chance plays a part.

    >>> format_number({"value": 0.5, "low": 0.25, "high": 0.75})
    '0.5 (0.25 to 0.75)'
    """
    if isinstance(number, dict):
        return f"{number['value']:.4g} ({number['low']:.3g} to {number['high']:.3g})"
    return f"{int(number):,}" if abs(number) < 1e15 and number == int(number) else f"{number:.4g}"


def _contents(results: Sequence[ClaimResult]) -> str:
    rows = "".join(
        f'<tr><td>{_verdict(r)}</td><td><a href="#claim-{r.name}">{r.name}</a></td>'
        f"<td>{typeset(TITLES[r.name])}</td></tr>"
        for r in results
    )
    return f"<nav><table><thead><tr><th>verdict</th><th>claim</th><th>question</th></tr></thead>{rows}</table></nav>"


def _article(result: ClaimResult) -> str:
    numbers = "".join(
        f'<tr><td>{typeset(name)}</td><td class="number">{format_number(number)}</td></tr>'
        for name, number in result.numbers.items()
    )
    condition = f" — {typeset(result.condition)}" if result.condition else ""
    unexpected = ""
    if result.verdict != result.expected:
        expected = f"With the default settings and a correct attention function: {VERDICTS[result.expected]}."
        unexpected = f'<p class="unexpected">{expected}</p>'
    figure = ""
    if result.panels:
        figure = f"<figure>{result.svg()}<figcaption>{typeset(result.figure)}</figcaption></figure>"
    helps = {knob.name: knob.help for knob in read_catalog()[result.name].knobs}
    settings = ", ".join(f"{name} = {value:g} ({helps[name]})" for name, value in result.knobs.items())
    return (
        f'<article id="claim-{result.name}"><div class="head"><h3>{typeset(TITLES[result.name])}</h3>'
        f'<span class="soft">{result.name} · seed {result.seed} · {result.seconds:.1f} s</span></div>'
        f'<p>{_verdict(result)}{condition}</p>{unexpected}<p class="statement">{typeset(result.statement)}</p>'
        f"{figure}<table>{numbers}</table>{_tests(result.predicates)}"
        f'<p class="soft">Settings: {html.escape(settings) or "none"}.</p></article>'
    )


def _tests(predicates: Sequence[Predicate]) -> str:
    rows = []
    for part, title in PARTS.items():
        chosen = [p for p in predicates if p.part == part]
        if chosen:
            rows.append(f'<tr><th colspan="3">{title}</th></tr>')
        for p in chosen:
            outcome = {True: "yes", False: "no", None: "cannot tell"}[p.ok]
            css = "" if p.as_expected else ' class="off"'
            rows.append(
                f"<tr><td>{typeset(p.name)}</td><td class=number>{p.value:.4g} {html.escape(p.bound)}</td>"
                f"<td{css}>{outcome}</td></tr>"
            )
    return f"<details><summary>what was tested</summary><table>{''.join(rows)}</table></details>"


def _verdict(result: ClaimResult) -> str:
    return f'<span class="verdict {result.verdict}">{VERDICTS[result.verdict]}</span>'
