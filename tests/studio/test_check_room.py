"""The Check room: examples for everybody, a person's own code only with permission, and no harm whatever it does."""

import pytest

from qkv import check
from qkv.check.mutants import MUTANTS, checked
from qkv.studio.api.check import REFUSED, SOUND
from qkv.studio.api.check_found import found
from qkv.studio.jobs import CancelledError, Job
from qkv.studio.work.post import EndedError, Post
from qkv.studio.work.worker import _done

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SOON = 60_000  # milliseconds: the process that checks imports torch first
HOSTILE = "<img src=x onerror=alert(1)>"
BAD = f'''
import torch
from torch import nn

class Leaking(nn.Module):
    """Sees the future; and its own words are markup."""

    def __init__(self, width=32):
        super().__init__()
        print("{HOSTILE}")
        self.project = nn.Linear(width, width)

    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("{HOSTILE}")
        return self.project(x + x.mean(1, keepdim=True))
'''


@pytest.fixture(scope="module")
def studio(serving):
    return serving(allow_code=True)


def test_an_example_shows_the_findings_that_the_library_has(studio, visit):
    page = visit(studio).go("check?mutant=softmax+over+the+queries")
    report = checked(MUTANTS["softmax over the queries"])
    rows = page.get_by_test_id("findings").locator("tbody tr")
    expect(rows).to_have_count(sum(finding.verdict != "n/a" for finding in report.findings), timeout=SOON)
    expect(page.get_by_test_id("sound")).to_contain_text(f"Not sound: {len(report.failed)} fail")
    expect(page.get_by_test_id("kind")).to_have_text(report.kind)
    for place, finding in enumerate(report.failed):
        row = rows.nth(place)
        expect(row).to_contain_text(f"fail{finding.check}{finding.evidence}")
        assert finding.score is None or row.locator("td.number").get_attribute("title") == repr(float(finding.score))
    expect(page.locator("pre.source")).to_contain_text("return scores.softmax(-2)")
    expect(page.get_by_test_id("reproduce")).to_contain_text("qkv check --zoo 'softmax over the queries'")
    cells = page.locator("svg rect:not(.chosen)")
    expect(cells).to_have_count(len(report.influence) * len(report.influence[0]))


def test_a_persons_bad_module_shows_its_finding_and_its_words_stay_words(studio, visit, tmp_path):
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    target = f"{tmp_path}/bad.py:Leaking"
    visitor = visit(studio)
    page = visitor.go(f"check?target={target}&name=none&kind=causal")
    page.get_by_role("button", name="check it").click()  # never without a click
    expect(page.get_by_test_id("sound")).to_contain_text("Not sound", timeout=SOON)
    report = check.run(target, check.named_contract("none", kind="causal"))
    failed = next(finding for finding in report.failed if finding.check == "causal")
    expect(page.get_by_test_id("findings")).to_contain_text(failed.evidence)
    expect(page.get_by_test_id("findings")).to_contain_text(f"RuntimeError: {HOSTILE}")
    expect(page.get_by_test_id("printed")).to_contain_text(HOSTILE)
    expect(page.get_by_test_id("reproduce")).to_contain_text(f"qkv check {target} --kind causal")
    assert page.locator("img").count() == 0 and "tab=own" in page.url

    (tmp_path / "loop.py").write_text("while True: print('again ' * 1000)\n", encoding="utf-8")
    page.get_by_label("file.py:Name").fill(f"{tmp_path}/loop.py:Never")
    page.get_by_role("button", name="check it").click()
    expect(page.get_by_text("checking …")).to_be_visible(timeout=SOON)
    page.get_by_role("button", name="cancel").click()
    expect(page.get_by_text("Cancelled")).to_be_visible(timeout=SOON)

    page.get_by_role("button", name="check it").click()
    expect(page.get_by_text("checking …")).to_be_visible(timeout=SOON)
    page.get_by_role("link", name="Playground").click()  # it is not checked on for nobody
    page.get_by_role("link", name="Check").click()
    expect(page.get_by_test_id("sound")).to_contain_text("Not sound", timeout=SOON // 2)


def test_what_could_be_checked_is_found_by_reading_and_offered(studio, visit, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Block:\n    def forward(self, x): ...\n"
        "class Attention:\n    def forward(self, x): ...\nclass Config: ...\ndef look(q, k, v): ...\ndef f(x): ...\n"
    )
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "deep.py").write_text("(" * 10_000)
    (tmp_path / "a folder.py").mkdir()
    names = ["mine.py:Attention", "mine.py:Block", "mine.py:look"]
    assert found(tmp_path) == names and not (tmp_path / "ran").exists()
    monkeypatch.chdir(tmp_path)
    page = visit(studio).go("check?tab=own")
    chosen = page.get_by_label("or one that was found")
    chosen.wait_for(timeout=SOON)
    assert chosen.locator("option").all_inner_texts()[1:] == names
    chosen.select_option("mine.py:look")
    assert page.get_by_label("file.py:Name").input_value() == "mine.py:look"


def test_without_permission_no_code_of_a_persons_is_run(serving, visit, post, tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    place = serving()
    page = visit(place).go("check?tab=own")
    expect(page.get_by_test_id("not-allowed")).to_contain_text("qkv studio --allow-code", timeout=SOON)
    for body in (
        {"target": f"{tmp_path}/mine.py:X"},
        {"target": "os:system"},
        {"target": "qkv:attention", "like": f"{tmp_path}/mine.py:X"},
    ):
        assert post(place, "/api/check/run", body) == (403, {"error": REFUSED})
    for body, words in (
        ({"mutant": HOSTILE}, "the zoo has no mutant"),
        ({"target": "attention.py"}, "a target is file.py:Name"),
        ({"target": "qkv:attention", "contract": {"kind": "sideways"}}, "kind is causal, bidirectional"),
        ({"target": "qkv:attention", "contract": {"name": "gold"}}, "contracts are none, course, encoder"),
        ({"target": "qkv:attention", "contract": {"kind": "window"}}, "says how wide it is"),
        ({"target": "qkv:attention", "seconds": 1e9}, "a check may take 1 to 600 seconds"),
        ({"target": "qkv:attention\n"}, "target is one line"),
    ):
        status, said = post(place, "/api/check/run", body)
        assert (status, words in said["error"]) == (400, True), said
    assert not (tmp_path / "ran").exists()


def test_work_that_ends_its_process_or_never_ends_leaves_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "tiny_task.py").write_text("def work(request, say): exec(request['code'])\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    post = Post("tiny_task")
    try:
        for code, words in (
            ("import sys; sys.exit(3)", r"sys\.exit\(3\)"),
            ("print('spam ' * 10**6); raise KeyError('gone')", "KeyError: 'gone'"),
            ("while True: pass", "ended after 0.5 seconds"),
            ("say(large='x' * (20 << 20))", "larger than 16 MB"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 \\(SIGSEGV"),
            ("import os; print('last words', flush=True); os._exit(4)", "exit code 4"),
        ):
            with pytest.raises(EndedError, match=words):
                list(post.ask({"code": code}, Job("1", "check"), seconds=0.5 if "while" in code else 60.0))
        assert post.printed == "last words"
        gone = Job("2", "check")
        gone.cancel.set()
        with pytest.raises(CancelledError):
            list(post.ask({"code": "while True: pass"}, gone))
        assert list(post.ask({"code": "say(fine=True)"}, Job("3", "check"))) == [{"begun": True}, {"fine": True}]
    finally:
        post.close()


def test_whatever_the_work_raises_becomes_a_sentence():
    class Task:
        @staticmethod
        def work(request, say):
            raise request["problem"]

    for problem, words in (
        (ValueError("a sentence"), "a sentence"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RecursionError("too\ndeep"), "RecursionError: too deep"),
        (SystemExit("bye"), "the code asked to end its process: sys.exit('bye')"),
    ):
        assert _done(Task, {"problem": problem}, None) == {"error": words}


def test_what_needs_no_permission_is_our_own_or_torchs():
    assert all(target.startswith(("qkv:", "qkv.", "torch.nn")) for target in SOUND)
