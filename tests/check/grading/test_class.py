"""A class of 20 files of all kinds, graded with one command in the real sandbox."""

# ruff: noqa: E501

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from course_submissions import ROTARY, ROTARY_STYLES, ROTARY_WRONG
from handed_in import archive, notebook

from qkv.check.grading.client import Sandbox, SandboxUnavailableError
from qkv.cli.main import run as run_command


def wrong(name):
    return ROTARY.replace(*ROTARY_WRONG[name][0])


LIAR = (
    ROTARY
    + """
import sys
from sandbox import messages, run_submission
messages.encode = lambda *a, **k: b"10 of 10"
"""
)
CLASS = {  # name: content, points, what the remark says
    "ada.py": (ROTARY, 10, None),
    "alan.py": (ROTARY_STYLES["complex numbers"], 10, None),
    "barbara.ipynb": (notebook(("markdown", "# A5"), "%matplotlib inline\nimport torchvision", ROTARY, "while True: pass"), 10, None),
    "claude.ipynb": (notebook(ROTARY_STYLES["complex numbers"], "import matplotlib.pyplot as plt\nplt.plot([1])"), 10, None),
    "dora.zip": (archive({"a5/src/attention.py": ROTARY, "__MACOSX/a5/._x.py": b"\0", "a5/wiki.txt": "x"}), 10, None),
    "edsger.zip": (archive({"rope.ipynb": notebook(ROTARY), "report.pdf": b"x"}), 10, None),
    "frances.py": (wrong("halves"), 8, "equals the formula: "),
    "grace.ipynb": (notebook("import torch", wrong("sin first")), 8, "cache: cos and sin: "),
    "hedy.zip": (archive({"rope.py": wrong("not cut")}), 9, "shorter sequences: "),
    "ian.py": (wrong("the other way"), 8, "it rotates the other way"),
    "joan.py": ("import torch\ndef apply_rotary_emb(x, rope_cache:\n", 0, "the file does not run: SyntaxError"),
    "karen.py": ("import nothing_of_this_name\n" + ROTARY, 0, "the file does not run: ModuleNotFoundError"),
    "lynn.ipynb": (notebook("def apply_rotary_emb(x, rope_cache):\nreturn x"), 0, "IndentationError"),
    "mary.py": ("\n", 0, "it is empty"),
    "niklaus.ipynb": (notebook(("markdown", "later")), 0, "the notebook has no code cells"),
    "ole.zip": (archive({"__MACOSX/._x.py": b"\0"}), 0, "no Python file and no notebook"),
    "peter.py": ("while True: pass\n" + ROTARY, 0, "it was stopped: it did not answer within"),
    "quitter.py": (ROTARY + "\nimport os\nos._exit(0)\n", 0, "ended without returning anything"),
    "rolf.zip": (archive({"../../rope.py": ROTARY}), 0, "an entry outside of itself"),
    "sam.py": (LIAR, 0, "the reply is not a valid message"),
}  # fmt: skip


@pytest.mark.long
def test_qkv_grade_grades_a_class_of_20_with_one_command(tmp_path, capsys):
    try:
        with Sandbox("x = 1", "x", None, seed=1):
            pass
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this system: {error}")
    folder = tmp_path / "in"
    folder.mkdir()
    for name, (content, _, _) in CLASS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    line = [
        "grade",
        "cs224n-rope",
        str(folder),
        "--csv",
        str(tmp_path / "grades.csv"),
        "--feedback",
        str(tmp_path / "out"),
    ]
    assert run_command([*line, "--json"]) == 0
    shown = capsys.readouterr()
    grades = {Path(grade["path"]).name: grade for grade in json.loads(shown.out)["grades"]}
    assert {name: grade["total"] for name, grade in grades.items()} == {name: case[1] for name, case in CLASS.items()}
    for name, (_, _, said) in CLASS.items():
        assert (said in grades[name]["remark"]) if said else grades[name]["remark"] is None, grades[name]["remark"]
    with open(tmp_path / "grades.csv", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert len(rows) == 20
    assert all(rows[Path(name).stem]["total"] == str(points) for name, (_, points, _) in CLASS.items())
    assert len(list((tmp_path / "out").glob("*.md"))) == 21
    assert "20 of 20" in shown.err
    assert run_command(line) == 0  # resumed: nothing is graded again
    assert "20 of 20 are unchanged" in capsys.readouterr().err
