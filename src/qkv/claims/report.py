"""One offline page of results: the verdict first, then the numbers, then the picture."""

import html
from collections.abc import Sequence

from qkv import __version__
from qkv.claims.claim import ClaimResult, Number
from qkv.claims.predicates import Predicate

WORDS = {"holds": "holds", "holds-if": "holds if", "fails": "fails", "undecided": "undecided"}
PARTS = {"claim": "the statement", "beyond": "beyond its conditions", "control": "controls"}

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #5b636d; --line: #d9dde2;
  --holds: #00674b; --if: #7a5200; --fails: #b3261e; --undecided: #4a5560; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e8eb; --soft: #a3abb5; --line: #343a42;
  --holds: #4fc79f; --if: #e8b04a; --fails: #ff8078; --undecided: #a9b3be; } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --holds: #00674b; --if: #7a5200;
  --fails: #b3261e; --undecided: #4a5560; } figure, tr, .head { break-inside: avoid; }
  .head, .head + p, .statement { break-after: avoid; } nav { break-after: page; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 3rem 0 0; color: var(--soft); font-weight: 600; }
h3 { font-size: 1.3rem; margin: 0; }
p { margin: .4rem 0; max-width: 46rem; }
.soft, figcaption, summary { color: var(--soft); font-size: .9rem; }
nav table { margin-top: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
td, th { text-align: left; padding: .28rem .9rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
@media (min-width: 30rem) { nav td:nth-child(2) { white-space: nowrap; } }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .15em; }
article { border-top: 1px solid var(--line); padding: 1.6rem 0 1.2rem; margin-top: 1.2rem; }
.verdict { font-weight: 700; white-space: nowrap; }
.verdict::before { content: ""; display: inline-block; width: .62em; height: .62em; border-radius: 50%;
  margin-right: .45em; background: currentColor; }
.holds { color: var(--holds); } .holds-if { color: var(--if); } .fails { color: var(--fails); }
.undecided { color: var(--undecided); }
.fails::before { border-radius: 0; } .holds-if::before { border-radius: 0 50% 50% 0; }
.undecided::before { background: none; border: .14em solid currentColor; }
.head { display: flex; gap: 1rem; align-items: baseline; justify-content: space-between; flex-wrap: wrap; }
.statement { font-size: 1.05rem; }
.unexpected { color: var(--fails); font-weight: 600; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { display: block; height: auto; }
details { margin-top: .6rem; }
.off { color: var(--fails); }
"""


def page(results: Sequence[ClaimResult], families: dict[str, str]) -> str:
    """The whole page; `families` names each claim's family."""
    counts = {word: sum(r.verdict == word for r in results) for word in WORDS}
    told = ", ".join(f"{count} {WORDS[word]}" for word, count in counts.items() if count)
    off = [r for r in results if r.verdict != r.expected]
    seeds = ", ".join(sorted({str(r.seed) for r in results}))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>Claims, run</title><style>{STYLE}</style></head><body>",
        "<h1>The textbook, run</h1>",
        f"<p>{len(results)} statements about attention and transformers, each tried by an experiment: {told}.</p>",
        f'<p class="soft">qkv {__version__} · seed {seeds} · {sum(r.seconds for r in results):.0f} s · a verdict is '
        "computed from the measurements beside it; “holds if” names the condition, “fails” the counter-example.</p>",
    ]
    if off:
        names = ", ".join(html.escape(r.name) for r in off)
        parts.append(f'<p class="unexpected">Not the verdict that a sound attention gives: {names}.</p>')
    parts.append(_contents(results))
    family = None
    for result in results:
        if families.get(result.name) != family:
            family = families.get(result.name)
            parts.append(f"<h2>{html.escape((family or '').capitalize())}</h2>")
        parts.append(_article(result))
    return "\n".join([*parts, "</body></html>\n"])


def shown(number: Number) -> str:
    """A number for people, with its range where chance plays.

    >>> shown({"value": 0.5, "low": 0.25, "high": 0.75})
    '0.5 (0.25 to 0.75)'
    """
    if isinstance(number, dict):
        return f"{number['value']:.4g} ({number['low']:.3g} to {number['high']:.3g})"
    return f"{int(number):,}" if abs(number) < 1e15 and number == int(number) else f"{number:.4g}"


def _contents(results: Sequence[ClaimResult]) -> str:
    rows = "".join(
        f'<tr><td>{_verdict(r)}</td><td><a href="#claim-{r.name}">{r.name}</a></td>'
        f"<td>{html.escape(r.statement)}</td></tr>"
        for r in results
    )
    return f"<nav><table><thead><tr><th>verdict</th><th>claim</th><th>statement</th></tr></thead>{rows}</table></nav>"


def _article(result: ClaimResult) -> str:
    numbers = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="number">{shown(number)}</td></tr>'
        for name, number in result.numbers.items()
    )
    condition = f" — {html.escape(result.condition)}" if result.condition else ""
    unexpected = ""
    if result.verdict != result.expected:
        expected = f"Expected of a sound attention, with the claim’s own conditions: {WORDS[result.expected]}."
        unexpected = f'<p class="unexpected">{expected}</p>'
    picture = ""
    if result.panels:
        picture = f"<figure>{result.svg()}<figcaption>{html.escape(result.figure)}</figcaption></figure>"
    knobs = ", ".join(f"{name} = {value:g}" for name, value in result.knobs.items())
    return (
        f'<article id="claim-{result.name}"><div class="head"><h3>{result.name}</h3>'
        f'<span class="soft">seed {result.seed} · {result.seconds:.1f} s</span></div>'
        f'<p>{_verdict(result)}{condition}</p>{unexpected}<p class="statement">{html.escape(result.statement)}</p>'
        f"{picture}<table>{numbers}</table>{_tests(result.predicates)}"
        f'<p class="soft">Run with {html.escape(knobs) or "no knobs"}.</p></article>'
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
                f"<tr><td>{html.escape(p.name)}</td><td class=number>{p.value:.4g} {html.escape(p.bound)}</td>"
                f"<td{css}>{outcome}</td></tr>"
            )
    return f"<details><summary>what was tested</summary><table>{''.join(rows)}</table></details>"


def _verdict(result: ClaimResult) -> str:
    return f'<span class="verdict {result.verdict}">{WORDS[result.verdict]}</span>'
