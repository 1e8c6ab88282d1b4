"""Reports as HTML (complete, offline, escaped), as JUnit XML and on the terminal."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from browser import chromium
from rich.console import Console

from qkv._html import COLOR_SCALE
from qkv.check import Contract, Finding, Report, run
from qkv.check.ci import junit_xml
from qkv.check.mutants import MUTANTS, check_mutant
from qkv.check.render import effect_color, html_page, terminal_influence, terminal_report
from qkv.cli.main import run as command

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)> & \"'"


class PageReader(HTMLParser):
    """Tags, attributes and text of a page; an unclosed tag is an error."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def report():
    verdicts = ("pass", "fail", "warn", "inconclusive", "described", "n/a")
    findings = tuple(Finding(f"{v} {HOSTILE}", v, 0.5, f"seen {HOSTILE}", f"try {HOSTILE}") for v in verdicts)
    return Report(HOSTILE, HOSTILE, HOSTILE, Contract(kind="causal"), findings, ((1.0, 0.0), (1e-3, 1.0)))


def test_html_page_escapes_every_text_and_closes_every_tag(report):
    read = PageReader(html_page(report))
    assert read.open == []
    assert "script" not in read.tags and "img" not in read.tags
    assert not {name for name in read.attributes if name.startswith("on")}
    shown = "".join(read.words)
    assert shown.count("alert(1)</script>") >= 6 * 2


def test_html_page_shows_everything_in_the_report(report):
    shown = "".join(PageReader(html_page(report)).words)
    for finding in report.findings:
        assert finding.evidence in shown
    assert "kind causal" in shown
    assert "output 1 changes by 0.001 of the largest change when token 0 changes" in shown


def test_html_page_asks_the_network_for_nothing(report):
    text = html_page(report)
    assert not re.search(r"""(?:src|href)=|url\(|@import""", text.replace("src=x", ""))
    assert "default-src 'none'" in text


def test_svg_influence_has_a_cell_per_pair_and_no_color_without_influence(report):
    cells = re.findall(r"<rect [^>]*><title>", html_page(report))
    assert len(cells) == 4
    assert sum('class="none"' in cell for cell in cells) == 1
    assert effect_color(1e-7) is None


def test_effect_color_is_the_color_scale_of_the_local_web_app():
    code = (Path(__file__).parents[2] / "web" / "src" / "viewer" / "colors.ts").read_text(encoding="utf-8")
    stops = re.findall(r'"(#[0-9a-f]{6})"', code.partition("STOPS = [")[2].partition("]")[0])
    assert list(COLOR_SCALE) == stops
    assert effect_color(1.0) == stops[-1] and effect_color(1e-6) is None
    assert effect_color(1e-3) == "#807c75"  # index 128 of 256: round(255 · 0.5), as influenceColor in influence.ts


def test_terminal_report_begins_with_mistake_fix_and_evidence_and_ends_with_what_passed():
    def attention(q, k, v, is_causal=False):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    text = StringIO()
    Console(width=200, file=text).print(terminal_report(run(attention, "textbook")))
    lines = [line.strip() for line in text.getvalue().splitlines() if line.strip()]
    assert lines[0].startswith("NOT SOUND: ")
    assert lines[1].startswith("✗ mistake") and "there is no causal mask on this path" in lines[1]
    assert lines[2].startswith("fix") and "add the causal mask" in lines[2]
    assert any(line.startswith("evidence") and "changes when token" in line for line in lines[3:7])
    assert any(line.startswith("passed: ") for line in lines) and lines[-1].startswith("NOT SOUND: ")


@pytest.mark.parametrize(("outputs", "columns"), [(2, 2), (12, 12), (101, 101), (1, 11)])
def test_terminal_influence_gives_every_label_the_number_of_its_row_or_column(outputs, columns):
    effects = [[float(column <= row) for column in range(columns)] for row in range(outputs)]
    head, *rows = terminal_influence(effects).plain.splitlines()
    left = len(rows[0]) - 2 * columns
    assert [int(row[:left]) for row in rows] == list(range(outputs))
    labels = [(found.start(), int(found.group())) for found in re.finditer(r"\d+", head)]
    assert len(labels) > 1 and all((place - left) / 2 == column for place, column in labels)


def test_html_page_repeats_no_hint_and_names_the_state_as_the_terminal_does(report):
    shared = tuple(replace(finding, hint="the same cause") for finding in report.findings)
    shown = html_page(replace(report, findings=shared))
    assert shown.count("→ the same cause") == 1
    assert "NOT SOUND: " in shown


@pytest.mark.parametrize("width", [390, 1440])
def test_html_page_fits_the_width_of_a_phone_and_of_a_desktop(width, tmp_path):
    def attention(q, k, v, is_causal=False):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    file = tmp_path / "report.html"
    file.write_text(html_page(run(attention, "textbook")), encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 850})
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        evidence = page.locator(".report .evidence").first.bounding_box()
        assert evidence["width"] > 200 and evidence["x"] + evidence["width"] <= width


def test_check_says_which_files_it_wrote(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["--html", "a.html", "--junit", "b.xml", "--sarif", "c.sarif"]
    command(["check", "torch.nn.functional:scaled_dot_product_attention", *files])
    shown = capsys.readouterr().err
    assert [name for name in files[1::2] if f"wrote {name}" in shown] == files[1::2]


def _evidence(target, check, contract=None):
    return next(finding.evidence for finding in run(target, contract).findings if finding.check == check)


def test_evidence_says_that_a_function_was_called_without_its_mask_or_with_its_causal_flag():
    def flagged(q, k, v, is_causal=False):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        weights = scores.softmax(-1)
        return (weights.masked_fill(hidden, 0) if is_causal else weights) @ v

    def bare(q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    for check in ("rows sum to one", "formula"):
        assert _evidence(flagged, check, "textbook").startswith("called without a mask, ")
        required = Contract("bidirectional", scale="head", softmax="keys")
        assert not _evidence(bare, check, required).startswith("called")
    assert _evidence(flagged, "alignment").startswith("with is_causal=True, 3 queries on 6 keys")


class LearnedPositions(torch.nn.Module):
    """Masks padded keys correctly; its positions count padding."""

    def __init__(self, dim=32):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(64, dim), torch.nn.Embedding(512, dim)
        self.layer = torch.nn.TransformerEncoderLayer(dim, 4, 64, batch_first=True)

    def forward(self, input_ids, attention_mask=None):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        return self.layer(x, src_key_padding_mask=None if attention_mask is None else attention_mask == 0)


def test_padding_removed_blames_positions_only_if_the_content_of_padding_does_nothing():
    leaking = {finding.check: finding for finding in check_mutant(MUTANTS["mask after the softmax"]).findings}
    counting = {finding.check: finding for finding in run(LearnedPositions, kind="bidirectional").findings}
    assert leaking["padding content (left)"].verdict == "fail"
    assert leaking["padding removed (left)"].hint.endswith("see padding content (left)")
    assert counting["padding content (left)"].verdict == "pass"
    assert counting["padding removed (left)"].hint.startswith("positions count padding")


def test_check_writes_the_html_file_atomically(tmp_path, capsys):
    target = tmp_path / "report.html"
    assert command(["check", "torch.nn:MultiheadAttention", "--html", str(target)]) == 1
    assert "fully padded row" in target.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert command(["check", "torch.nn:MultiheadAttention", "--html", str(tmp_path)]) == 2


def test_junit_xml_counts_failures_and_parses(tmp_path):
    target = tmp_path / "report.xml"
    assert command(["check", "torch.nn:MultiheadAttention", "--junit", str(target)]) == 1
    suite = ElementTree.parse(target).getroot()
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) == 1
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    text = junit_xml(run(torch.nn.functional.scaled_dot_product_attention))
    assert text.startswith("<?xml") and ElementTree.fromstring(text.partition("\n")[2]).attrib["failures"] == "0"


def test_terminal_report_hides_what_does_not_apply_unless_asked(report):
    def shown(**options):
        text = StringIO()
        Console(width=200, file=text).print(terminal_report(report, **options))
        return text.getvalue()

    assert "n/a <" not in shown() and "n/a <" in shown(all_findings=True)
    assert "1 pass, 1 fail, 1 warn, 1 inconclusive, 1 described" in shown()
    assert "influence map (row: output, column: changed token)" in shown()
