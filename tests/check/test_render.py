"""Reports as HTML (complete, offline, escaped), as JUnit XML and on the terminal."""

import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from qkv._html import COLOR_SCALE
from qkv.check import Contract, Finding, Report, run
from qkv.check.ci import junit_xml
from qkv.check.render import effect_color, html_page, terminal_report
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
