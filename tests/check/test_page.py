"""The report as a page: complete, offline, and deaf to what names in it say."""

import re
from html.parser import HTMLParser

import pytest

from qkv.check import Contract, Finding, Report
from qkv.check.page import SCALE, page, shade
from qkv.cli.main import run as command

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)> & \"'"


class Reader(HTMLParser):
    """Tags, attributes and text of a page; what is left open is an error."""

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


def test_every_text_is_escaped_and_every_tag_closed(report):
    read = Reader(page(report))
    assert read.open == []
    assert "script" not in read.tags and "img" not in read.tags
    assert not {name for name in read.attributes if name.startswith("on")}
    shown = "".join(read.words)
    assert shown.count("alert(1)</script>") >= 6 * 2


def test_everything_of_the_report_is_on_the_page(report):
    shown = "".join(Reader(page(report)).words)
    for finding in report.findings:
        assert finding.evidence in shown
    assert "kind causal" in shown
    assert "changing token 0 moves output 1 by 0.001" in shown


def test_the_page_asks_the_network_for_nothing(report):
    text = page(report)
    assert not re.search(r"""(?:src|href)=|url\(|@import""", text.replace("src=x", ""))
    assert "default-src 'none'" in text


def test_the_map_has_a_cell_for_each_pair_and_no_colour_where_nothing_moves(report):
    text = page(report)
    cells = re.findall(r"<rect [^>]*><title>", text)
    assert len(cells) == 4
    assert sum('class="none"' in cell for cell in cells) == 1
    assert shade(1e-7) is None
    assert [shade(10.0**-n) for n in (0, 3)] == [SCALE[-1], SCALE[4]]


def test_the_command_writes_it_whole(tmp_path, capsys):
    target = tmp_path / "report.html"
    assert command(["check", "torch.nn:MultiheadAttention", "--html", str(target)]) == 1
    assert "fully padded row" in target.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert command(["check", "torch.nn:MultiheadAttention", "--html", str(tmp_path)]) == 2
