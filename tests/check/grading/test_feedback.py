"""Feedback and journal: what a student reads, what the teacher reads, and what a second call grades again."""

# ruff: noqa: E501

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from course_submissions import ROTARY, ROTARY_WRONG
from handed_in import archive, notebook
from local_sandbox import LocalSandbox

from qkv.check.grading import grade as grade_module
from qkv.check.grading import load_rubric
from qkv.check.grading.feedback import common_mistakes, feedback_html, feedback_markdown, summary_markdown
from qkv.check.grading.grade import Grade
from qkv.check.grading.results import grades_table
from qkv.cli.main import run as run_command

HALVES = ROTARY.replace(*ROTARY_WRONG["halves"][0])
UNCUT = ROTARY.replace(*ROTARY_WRONG["not cut"][0])


@pytest.fixture(autouse=True)
def _local_sandbox(monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)


def hand_in(folder):
    folder.mkdir()
    files = {
        "ada.py": ROTARY, "bruno.ipynb": notebook("import torch", HALVES), "chen.zip": archive({"src/rope.py": UNCUT, "src/x.py": ""}),
        "dora.py": UNCUT, "emil.py": "  ",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return folder


def test_qkv_grade_writes_feedback_for_each_student_and_a_summary(tmp_path, capsys):
    line = ["grade", "cs224n-rope", str(hand_in(tmp_path / "in")), "--csv", str(tmp_path / "grades.csv")]
    assert run_command([*line, "--feedback", str(tmp_path / "out"), "--seed", "3", "--jobs", "1"]) == 0
    names = ["ada", "bruno", "chen", "class-summary", "dora", "emil"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"{n}.{e}" for n in names for e in ("html", "md")
    ]
    read = {name: (tmp_path / "out" / f"{name}.md").read_text(encoding="utf-8") for name in names}
    assert "# ada: 10 of 10 points" in read["ada"]
    assert "Nothing cost points." in read["ada"]
    assert "## Where you lost points\n\n### 1. equals the formula (−2)\n\n**Cell 2, line " in read["bruno"]
    assert "**Exact cause:** pairs are halves" in read["bruno"]
    assert "**Rope.py, line " in read["chen"] or "**rope.py, line " in read["chen"].lower()
    assert read["bruno"].index("Where you lost points") < read["bruno"].index("## Points")
    assert "## This file could not be graded\n\nit is empty." in read["emil"]
    summary = read["class-summary"]
    assert "5 submissions, 4 graded, 1 that could not be graded." in summary
    assert "| shorter sequences | 2 | chen, dora |" in summary
    assert "| emil | emil.py | it is empty |" in summary
    assert "<h3>1. equals the formula" in (tmp_path / "out" / "bruno.html").read_text(encoding="utf-8")
    rows = (tmp_path / "grades.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows] == ["student", "ada", "bruno", "chen", "dora", "emil"]
    assert rows[-1].endswith(",0,it is empty,3")
    assert "5 of 5" in capsys.readouterr().err


def test_a_second_call_of_qkv_grade_grades_only_what_changed(tmp_path, capsys, monkeypatch):
    folder, graded = hand_in(tmp_path / "in"), []
    original = grade_module.grade_file

    def grade_file(rubric, path, *args, **kwargs):
        graded.append(path.name)
        return original(rubric, path, *args, **kwargs)

    monkeypatch.setattr(grade_module, "grade_file", grade_file)
    line = ["grade", "cs224n-rope", str(folder), "--csv", str(tmp_path / "grades.csv"), "--json", "--jobs", "1"]
    assert run_command(line) == 0
    first = json.loads(capsys.readouterr().out)
    assert len(graded) == 5
    graded.clear()
    (folder / "dora.py").write_text(ROTARY)
    (folder / "fay.py").write_text(HALVES)
    assert run_command(line) == 0
    shown = capsys.readouterr()
    second = json.loads(shown.out)
    assert sorted(graded) == ["dora.py", "fay.py"]
    assert "4 of 6 are unchanged" in shown.err
    assert second["seed"] == first["seed"]
    assert [grade["total"] for grade in second["grades"]] == [10, 8, 9, 10, 0, 8]
    assert second["grades"][:3] == first["grades"][:3]
    graded.clear()
    assert run_command([*line, "--fresh"]) == 0
    assert len(graded) == 6
    graded.clear()
    assert run_command([*line, "--seed", "1"]) == 0
    assert len(graded) == 6


def test_a_journal_that_a_kill_cut_short_is_still_used(tmp_path, capsys):
    folder = hand_in(tmp_path / "in")
    line = ["grade", "cs224n-rope", str(folder), "--csv", str(tmp_path / "grades.csv"), "--jobs", "1"]
    assert run_command(line) == 0
    journal = tmp_path / "grades.journal.jsonl"
    content = journal.read_text(encoding="utf-8")
    journal.write_text(content[: len(content) * 2 // 3], encoding="utf-8")
    (tmp_path / "grades.csv").unlink()
    capsys.readouterr()
    assert run_command(line) == 0
    assert "are unchanged" in capsys.readouterr().err
    assert len((tmp_path / "grades.csv").read_text().splitlines()) == 6


def test_a_grade_survives_to_dict_and_from_dict(tmp_path):
    path = tmp_path / "ada.py"
    path.write_text(UNCUT)
    grade = grade_module.grade_file(load_rubric("cs224n-rope"), path, "ada", 7)
    assert Grade.from_dict(json.loads(json.dumps(grade.to_dict()))) == grade


def test_text_of_a_submission_is_no_markup_in_the_feedback(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        ROTARY.replace(
            "    cos, sin = cache",
            "    raise ValueError('<script>alert(1)</script> [x](y) | `z`')\n    cos, sin = cache",
        )
    )
    grade = grade_module.grade_file(load_rubric("cs224n-rope"), path, "<b>|*x*", 7)
    markdown, page = (
        feedback_markdown(grade, load_rubric("cs224n-rope")),
        feedback_html(grade, load_rubric("cs224n-rope")),
    )
    assert "<script>" not in page.split("<body>")[1]
    assert "\\<script\\>" in markdown
    assert "# \\<b\\>\\|\\*x\\*: " in markdown
    assert common_mistakes([grade])[0].students == ("<b>|*x*",)
    assert "\\<b\\>" in summary_markdown([grade], load_rubric("cs224n-rope"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--feedback", "{folder}/ada.py"], "--feedback must be a directory"),
        (["--feedback", "{folder}"], "holds the submissions"),
        (["--feedback", "{folder}/no/where"], "there is no directory"),
        (["--seconds", "0"], "--seconds must be at least 1"),
    ],
)
def test_wrong_use_of_feedback_is_one_sentence(arguments, said, tmp_path, capsys):
    folder = hand_in(tmp_path / "in")
    line = ["grade", "cs224n-rope", str(folder / "ada.py"), *(each.format(folder=folder) for each in arguments)]
    assert run_command(line) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_properties_with_partial_credit_earn_their_share(tmp_path):
    rubric, path = tmp_path / "mine.toml", tmp_path / "ada.py"
    text = Path(grade_module.__file__).with_name("rubrics").joinpath("cs224n-rope.toml").read_text(encoding="utf-8")
    begin = text.index("[[properties]]")
    parts = '[[properties]]\nname = "both"\npoints = 3\npartial = true\nchecks = ["shape", "shorter sequences", "formula"]\n'
    rubric.write_text(text[:begin] + parts, encoding="utf-8")
    path.write_text(HALVES)
    assert grade_module.grade_file(load_rubric(str(rubric)), path, "ada", 7).total == 2


def test_a_rubric_of_exercises_that_are_used_with_other_points(tmp_path):
    rubric, path = tmp_path / "mine.toml", tmp_path / "ada.py"
    rubric.write_text(
        'title = "Week 5"\n[[exercises]]\nuse = "cs224n-rope"\nname = "RoPE"\npoints = { "relative positions" = 5, "shape" = 0 }\n'
        '[[exercises]]\nuse = "rope"\ninterface = { function = "rotate" }\n',
        encoding="utf-8",
    )
    path.write_text(UNCUT + "\ndef rotate(x, positions):\n    return x\n")
    grade = grade_module.grade_file(load_rubric(str(rubric)), path, "ada", 7)
    shown = io.StringIO()
    Console(file=shown, width=60).print(grades_table([grade], load_rubric(str(rubric))))
    assert "1 RoPE (12)" in shown.getvalue()
    assert "ada      11  2  13 of 22" in " ".join(shown.getvalue().split("\n"))
    assert grade.possible == 12 + 10
    assert grade.properties[0].name == "RoPE: cache: shape"
    assert not any(part.name == "RoPE: shape" for part in grade.properties)
    assert {part.name: part.points for part in grade.properties}["RoPE: relative positions"] == 5
