"""The Check page: built-in examples always, own code only with --allow-code, and no harm whatever it does."""

import pytest

from qkv import check
from qkv.check.mutants import MUTANTS, check_mutant
from qkv.studio.api.check import BUILT_IN, NOT_ALLOWED, find_targets

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SOON = 180_000  # milliseconds: the worker process imports torch first, perhaps on a busy machine
HOSTILE = "<img src=x onerror=alert(1)>"
BAD = f'''
import torch
from torch import nn

class Leaking(nn.Module):
    """Leaks future tokens; prints and raises markup."""

    def __init__(self, width=32):
        super().__init__()
        print("{HOSTILE}")
        self.project = nn.Linear(width, width)

    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("{HOSTILE}")
        return self.project(x + x.mean(1, keepdim=True))
'''
UNMASKED = """def attention(q, k, v, is_causal=True):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v
"""


@pytest.fixture(scope="module")
def studio(serving):
    return serving(allow_code=True)


def test_check_page_shows_the_findings_of_the_library(studio, visit):
    page = visit(studio).go("check?mutant=softmax+over+the+queries")
    report = check_mutant(MUTANTS["softmax over the queries"])
    rows = page.get_by_test_id("findings").locator("tbody tr")
    expect(rows).to_have_count(sum(finding.verdict != "n/a" for finding in report.findings), timeout=SOON)
    expect(page.get_by_test_id("sound")).to_contain_text(f"NOT SOUND: {len(report.failed)} fail")
    expect(page.get_by_test_id("kind")).to_have_text(report.kind)
    for place, finding in enumerate(report.failed):
        row = rows.nth(place)
        expect(row).to_contain_text(f"fail{finding.check}{finding.evidence}")
        assert finding.score is None or row.locator("td.number").get_attribute("title") == repr(float(finding.score))
    expect(page.locator("pre.source")).to_contain_text("return scores.softmax(-2)")
    expect(page.get_by_test_id("reproduce")).to_contain_text("qkv mutants 'softmax over the queries'")
    cells = page.locator("svg rect:not(.chosen)")
    expect(cells).to_have_count(len(report.influence) * len(report.influence[0]))


def test_own_code_with_a_bug_is_reported_and_its_texts_stay_text(studio, visit, tmp_path):
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    target = f"{tmp_path}/bad.py:Leaking"
    visitor = visit(studio)
    page = visitor.go(f"check?target={target}&name=none&kind=causal")
    page.get_by_role("button", name="check", exact=True).click()  # never without a click
    expect(page.get_by_test_id("sound")).to_contain_text("NOT SOUND", timeout=SOON)
    report = check.run(target, kind="causal")
    failed = next(finding for finding in report.failed if finding.check == "causal")
    expect(page.get_by_test_id("findings")).to_contain_text(failed.evidence)
    expect(page.get_by_test_id("findings")).to_contain_text(f"RuntimeError: {HOSTILE}")
    expect(page.get_by_test_id("printed")).to_contain_text(HOSTILE)
    expect(page.get_by_test_id("reproduce")).to_contain_text(f"qkv check {target} --kind causal")
    assert page.locator("img").count() == 0 and "tab=own" in page.url

    (tmp_path / "loop.py").write_text("while True: print('again ' * 1000)\n", encoding="utf-8")
    page.get_by_label("file.py:Name").fill(f"{tmp_path}/loop.py:Never")
    page.get_by_role("button", name="check", exact=True).click()
    expect(page.get_by_text("checking …")).to_be_visible(timeout=SOON)
    page.get_by_role("button", name="cancel").click()
    expect(page.get_by_text("Cancelled")).to_be_visible(timeout=SOON)

    page.get_by_role("button", name="check", exact=True).click()
    expect(page.get_by_text("checking …")).to_be_visible(timeout=SOON)
    page.get_by_role("link", name="Playground").click()  # leaving the page cancels the check
    page.get_by_role("link", name="Check").click()
    expect(page.get_by_test_id("sound")).to_contain_text("NOT SOUND", timeout=SOON)


def test_edited_targets_mark_the_findings_as_previous_and_the_line_at_fault_is_shown(studio, visit, tmp_path):
    (tmp_path / "one.py").write_text(UNMASKED, encoding="utf-8")
    (tmp_path / "two.py").write_text(UNMASKED, encoding="utf-8")
    target = f"{tmp_path}/one.py:attention"
    page = visit(studio).go(f"check?target={target}&name=textbook")
    page.get_by_role("button", name="check", exact=True).click()
    expect(page.get_by_test_id("sound")).to_contain_text("NOT SOUND", timeout=SOON)
    expect(page.get_by_role("heading", name="one.py:attention")).to_be_visible()
    report = check.run(target, "textbook")
    assert report.diagnosis is not None and "one.py:3" in report.diagnosis.line
    expect(page.get_by_test_id("line")).to_have_text(report.diagnosis.line)
    expect(page.get_by_test_id("previous")).to_have_count(0)

    field = page.get_by_label("file.py:Name")
    field.fill(f"{tmp_path}/two.py:attention")
    expect(page.get_by_test_id("previous")).to_be_visible()
    expect(page.get_by_role("heading", name="one.py:attention")).to_be_visible()
    field.fill(target)
    expect(page.get_by_test_id("previous")).to_have_count(0)
    page.get_by_label("contract the properties").select_option("encoder")
    expect(page.get_by_test_id("previous")).to_be_visible()


def test_find_targets_parses_files_without_running_them(studio, visit, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Block:\n    def forward(self, x): ...\n"
        "class Attention:\n    def forward(self, x): ...\nclass Config: ...\ndef look(q, k, v): ...\ndef f(x): ...\n"
    )
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "deep.py").write_text("(" * 10_000)
    (tmp_path / "a folder.py").mkdir()
    names = ["mine.py:Attention", "mine.py:Block", "mine.py:look"]
    assert find_targets(tmp_path) == names and not (tmp_path / "ran").exists()
    monkeypatch.chdir(tmp_path)
    page = visit(studio).go("check?tab=own")
    chosen = page.get_by_label("or choose one")
    chosen.wait_for(timeout=SOON)
    assert chosen.locator("option").all_inner_texts()[1:] == names
    chosen.select_option("mine.py:look")
    assert page.get_by_label("file.py:Name").input_value() == "mine.py:look"


def test_without_allow_code_no_own_code_runs(serving, visit, post, tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    place = serving()
    page = visit(place).go("check?tab=own")
    expect(page.get_by_test_id("not-allowed")).to_contain_text("qkv studio --allow-code", timeout=SOON)
    for body in (
        {"target": f"{tmp_path}/mine.py:X"},
        {"target": "os:system"},
        {"target": "qkv:attention", "like": f"{tmp_path}/mine.py:X"},
    ):
        assert post(place, "/api/check/run", body) == (403, {"error": NOT_ALLOWED})
    for body, words in (
        ({"mutant": HOSTILE}, "there is no mutant"),
        ({"target": "attention.py"}, "a target is file.py:Name"),
        ({"target": "qkv:attention", "contract": {"kind": "sideways"}}, "kind: expected causal, bidirectional"),
        (
            {"target": "qkv:attention", "contract": {"name": "gold"}},
            "one of the contracts none, textbook, encoder",
        ),
        ({"target": "qkv:attention", "contract": {"kind": "window"}}, "needs a width"),
        ({"target": "qkv:attention", "time_limit": 1e9}, "time_limit must be from 1 to 600 seconds"),
        ({"target": "qkv:attention\n"}, "target must be one line"),
    ):
        status, answer = post(place, "/api/check/run", body)
        assert (status, words in answer["error"]) == (400, True), answer
    assert not (tmp_path / "ran").exists()


def test_built_in_targets_belong_to_qkv_or_torch():
    assert len(BUILT_IN) > 3 and all(target.startswith(("qkv:", "qkv.", "torch.nn")) for target in BUILT_IN)
