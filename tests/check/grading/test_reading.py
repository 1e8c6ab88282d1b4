"""read_submission: notebooks and archives become source files, or are refused with a reason."""

# ruff: noqa: E501

import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from course_submissions import NAMES, ROTARY
from handed_in import archive, notebook
from local_sandbox import LocalSandbox

from qkv.check.grading import grade as grade_module
from qkv.check.grading import load_rubric
from qkv.check.grading.reading import RefusedError, read_submission

MAGICS = """%matplotlib inline
!pip install einops \\
    torchvision
%%time
import matplotlib.pyplot as plt
import torchvision.transforms as T
from torchvision.datasets import CIFAR100
from google.colab import drive
files = !ls
text = '''
%not a magic
'''
plt.rcParams["figure.figsize"] = (3, 3)
transform = T.Compose([T.ToTensor()])
torch.cuda.is_available?
"""
TRAINING = """data = CIFAR100("data", download=True, transform=transform)
for epoch in range(10**9):
    loss = epoch
history = [train(i) for i in range(10**9)]
plt.plot(history)
plt.show()
"""


@pytest.fixture(autouse=True)
def _local_sandbox(monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def grade(tmp_path, name, content, rubric="cs224n-rope"):
    return grade_module.grade_file(load_rubric(rubric), write(tmp_path, name, content), "ada", 7)


def test_grade_file_reads_a_notebook_and_skips_magics_plots_and_training(tmp_path):
    found = grade(tmp_path, "ada.ipynb", notebook(("markdown", "# RoPE"), MAGICS, ROTARY, TRAINING))
    assert (found.total, found.remark) == (10, None)


def test_the_place_of_a_mistake_in_a_notebook_is_its_cell_and_line(tmp_path):
    wrong = ROTARY.replace("torch.arange(0, dim, 2) / dim", "torch.arange(dim // 2) / dim")
    found = grade(tmp_path, "ada.ipynb", notebook(("markdown", "# RoPE"), MAGICS, wrong))
    assert found.total == 8
    (mistake,) = found.mistakes
    line = next(n for n, text in enumerate(wrong.split("\n"), 1) if "10000.0" in text)
    assert (mistake.where.cell, mistake.where.number) == (3, line)
    assert str(mistake.where) == f"cell 3, line {line}"
    assert "10000.0" in mistake.where.text


def test_a_broken_cell_costs_only_what_it_defines_and_is_named(tmp_path):
    found = grade(tmp_path, "ada.ipynb", notebook("import torch\ndef broken(:\n", ROTARY))
    assert found.total == 10
    assert any("cell 1, line 2: SyntaxError" in note for note in found.notes)
    found = grade(tmp_path, "ada.ipynb", notebook("import torch", ROTARY.replace("return torch.stack((a", "return (")))
    assert found.total == 0
    assert "SyntaxError" in found.remark
    assert "cell 2, line" in found.remark


def test_an_error_in_a_notebook_names_cell_and_line(tmp_path):
    wrong = ROTARY.replace("    cos, sin = cache", "    unknown_name\n    cos, sin = cache")
    found = grade(tmp_path, "ada.ipynb", notebook("x = 1", wrong))
    assert found.total == 3
    assert "NameError: name 'unknown_name' is not defined (cell 2, line 11)" in str(found.mistakes)


def test_assignments_that_a_definition_needs_are_executed(tmp_path):
    base = "import torch\nBASE = float(10000)\nunused = [i for i in range(10**9) if str(i) == 'x']\n"
    found = grade(tmp_path, "ada.ipynb", notebook(base, ROTARY.replace("10000.0", "BASE")))
    assert found.total == 10


def test_a_module_written_by_a_cell_can_be_imported(tmp_path):
    cells = ("%%writefile helpers.py\nBASE = 10000.0\n", "from helpers import BASE", ROTARY.replace("10000.0", "BASE"))
    assert grade(tmp_path, "ada.ipynb", notebook(*cells)).total == 10


def test_a_notebook_exported_as_python_is_read_like_a_notebook(tmp_path):
    text = f"# In[1]:\nget_ipython().run_line_magic('matplotlib', 'inline')\n{ROTARY}\n# In[2]:\nprint(train(1))\n"
    assert grade(tmp_path, "ada.py", text).total == 10


def test_grade_file_reads_an_archive_whose_files_import_each_other(tmp_path):
    entries = {
        "hw5/src/__init__.py": "",
        "hw5/src/rope.py": ROTARY.replace("10000.0", "config.BASE").replace("import torch", "import torch\nfrom . import config"),
        "hw5/src/config.py": "BASE = 10000.0\n",
        "hw5/src/run.py": "import argparse\nargparse.ArgumentParser().parse_args(['x'])\n",
        "hw5/wiki.txt": "text",
        "__MACOSX/hw5/src/._rope.py": b"\x00\x05\x16\x07",
        "hw5/.ipynb_checkpoints/rope-checkpoint.py": "def apply_rotary_emb(x, rope_cache): return x",
        "hw5/src/__pycache__/rope.pyc": b"\x00",
    }  # fmt: skip
    found = grade(tmp_path, "ada.zip", archive(entries))
    assert (found.total, found.remark) == (10, None)


def test_absolute_imports_between_files_of_an_archive_work(tmp_path):
    text = ROTARY.replace("10000.0", "BASE").replace("import torch", "import torch\nfrom config import BASE")
    assert grade(tmp_path, "ada.zip", archive({"rope.py": text, "config.py": "BASE = 10000.0"})).total == 10


def test_files_of_an_archive_can_import_the_folder_that_holds_all_of_them(tmp_path):
    text = ROTARY.replace("10000.0", "BASE").replace("import torch", "import torch\nfrom vit.config import BASE")
    entries = {"hw5/src/vit/rope.py": text, "hw5/src/vit/config.py": "BASE = 10000.0"}
    assert grade(tmp_path, "ada.zip", archive(entries)).total == 10


def test_a_notebook_in_an_archive_and_python_files_are_graded_together(tmp_path):
    entries = {"a/rope.ipynb": notebook("import torch", ROTARY), "a/data.py": NAMES}
    found = grade(tmp_path, "ada.zip", archive(entries), "cs224n-a5")
    assert found.total == 20


def test_the_place_of_a_mistake_in_an_archive_is_file_and_line(tmp_path):
    wrong = ROTARY.replace("rope_cache[: x.shape[-2]]", "rope_cache")
    found = grade(tmp_path, "ada.zip", archive({"src/rope.py": wrong, "src/other.py": "x = 1"}))
    assert str(found.mistakes[0].where).startswith("rope.py, line ")


def test_two_files_that_define_the_same_differently_are_refused(tmp_path):
    found = grade(tmp_path, "ada.zip", archive({"a.py": ROTARY, "b.py": ROTARY + "# other"}))
    assert found.total == 0
    assert "apply_rotary_emb is defined in a.py and b.py, and they differ: hand in one of them" in found.remark
    assert grade(tmp_path, "ada.zip", archive({"a.py": ROTARY, "b.py": ROTARY})).total == 10
    assert grade(tmp_path, "ada.zip", archive({"rope.py": ROTARY, "old/rope.py": ROTARY + "# old"})).total == 10


def link():
    out = zipfile.ZipInfo("rope.py")
    out.external_attr = (stat.S_IFLNK | 0o777) << 16
    return out


def link_archive(tmp_path):
    path = tmp_path / "link.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(link(), "/etc/passwd")
    return path.read_bytes()


REFUSED = {
    "empty.py": (b" \n", "it is empty"),
    "empty.ipynb": (b"", "it is empty"),
    "null.py": (b"x = 1\0", "it has null bytes"),
    "latin.py": (b"# \xe9\xe8", "it is not UTF-8 text"),
    "codec.py": (b"# coding: klingon\n", "unknown encoding 'klingon'"),
    "cells.ipynb": (json.dumps({"cells": [], "nbformat": 4}), "the notebook is empty: it has no cells"),
    "text.ipynb": (notebook(("markdown", "only text")), "the notebook has no code cells"),
    "cut.ipynb": (notebook("x = 1")[:40], "it is not a valid notebook: the JSON cannot be read (line 1)"),
    "list.ipynb": ("[1]", "expected a JSON object with cells"),
    "julia.ipynb": (notebook("x = 1", metadata={"language_info": {"name": "julia"}}), "it is a notebook in 'julia'"),
    "deep.ipynb": ("[" * 100_000, "the JSON cannot be read"),
    "empty.zip": (archive({}), "the zip archive is empty"),
    "none.zip": (archive({"report.pdf": b"x", "data.txt": "x"}), "holds no Python file and no notebook; it holds report.pdf"),
    "nested.zip": (archive({"hw.zip": archive({"rope.py": ROTARY})}), "holds another archive, hw.zip, and no Python file"),
    "out.zip": (archive({"../../rope.py": ROTARY}), "an entry outside of itself: ../../rope.py"),
    "root.zip": (archive({"/etc/rope.py": ROTARY}), "an entry outside of itself: /etc/rope.py"),
    "bomb.zip": (archive({"rope.py": b"#" * 30_000_000}), "rope.py in the zip archive has more than 1000000 bytes"),
    "many.zip": (archive({f"{n}.txt": "" for n in range(2001)}), "the zip archive has 2001 entries; 2000 are allowed"),
    "sources.zip": (archive({f"{n}.py": "x = 1" for n in range(101)}), "more than 100 Python files"),
    "damaged.zip": (archive({"rope.py": ROTARY})[:-30], "the zip archive is damaged"),
    "text.zip": (b"hello", "it has the name of a zip archive but is none"),
    "big.py": (b"#" * 1_000_001, "it has 1000001 bytes; 1000000 are allowed"),
    "lines.py": (b"x=1\n" * 100_000, "it has 100001 lines of code; 100000 are allowed"),
    "written.ipynb": (notebook("%%writefile a.py\n" + "#" * 1_000_000).encode(), "its code has more than 1000000 characters"),
    "values.ipynb": (b'{"cells": [' + b"[]," * 1_000_001 + b"0]}", "its JSON has more than 2000000 values"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_read_submission_refuses_a_file_with_a_reason(name, tmp_path):
    content, reason = REFUSED[name]
    path = write(tmp_path, name, content)
    with pytest.raises(RefusedError) as caught:
        read_submission(path)
    assert reason in str(caught.value)
    found = grade_module.grade_file(load_rubric("cs224n-rope"), path, "ada", 7)
    assert (found.total, found.refused) == (0, found.remark)
    assert reason in found.refused


LONG = 990_000  # characters, just below what is allowed
SLOW = {
    "lines.py": b"x" + b"\n" * LONG + b"x",
    "annotations.py": b"Attention:\n" * (LONG // 11),
    "spaces.ipynb": notebook(" " * LONG + "x").encode(),
    "indented.ipynb": notebook((" " * 1000 + "x\n") * (LONG // 1001)).encode(),
    "lines.zip": archive({"folder/a.py": "x" + "\n" * LONG + "x"}),
    "bias.py": b"bias[" * (LONG // 5),
    "class.py": b"class" + b" " * LONG,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits processor time in a process of its own")
@pytest.mark.parametrize("name", SLOW)
def test_no_source_keeps_the_grader_busy(name, tmp_path):
    """A pattern that searches a long source in quadratic time keeps the grader from all other submissions."""
    import resource

    path = write(tmp_path, name, SLOW[name])
    child = os.fork()
    if child == 0:
        resource.setrlimit(
            resource.RLIMIT_CPU, (20, 20)
        )  # it takes less than a second; what is quadratic takes minutes
        try:
            submission = read_submission(path)
            submission.find_definition(["Attention"])
            submission.find_line("Attention", [r"(mask|tril|bias)\b.*\[.*:"])
            error = "The size of tensor a (3) must match the size of tensor b (4) (line 1)"
            grade_module._hint_from_error(error, grade_module._place_of_error(error, submission))
        except RefusedError:
            pass
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_links_in_archives_are_refused(tmp_path):
    with pytest.raises(RefusedError, match="a symbolic link: rope"):
        read_submission(write(tmp_path, "a.zip", link_archive(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bom.py", b"\xef\xbb\xbf" + ROTARY.encode()),
        ("windows.py", ROTARY.replace("\n", "\r\n").encode()),
        ("latin.py", b"# coding: latin-1\n# \xe9\n" + ROTARY.encode()),
        ("wide.py", ("\ufeff" + ROTARY).encode("utf-16-le")),
        ("notebook.py", notebook(ROTARY).encode()),
        ("archive.py", archive({"rope.py": ROTARY})),
        ("old.ipynb", json.dumps({"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": ROTARY}]}]}).encode()),
        ("text.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ROTARY}]}).encode()),
    ],
)  # fmt: skip
def test_encodings_and_old_formats_are_read(name, content, tmp_path):
    assert grade(tmp_path, name, content).total == 10


def test_find_line_searches_what_a_definition_uses_and_no_other(tmp_path):
    path = tmp_path / "ada.py"
    path.write_text(
        "from torch import nn\n\nWIDTH = 4\n\n\nclass Block(nn.Module):\n    def forward(self, x):\n"
        "        return self.norm(x)\n\n\ndef cut(x, p):\n    return x.unfold(2, p, WIDTH)\n\n\n"
        "class Patches(nn.Module):\n    def forward(self, x):\n        return cut(x, self.p)\n",
        encoding="utf-8",
    )
    submission = read_submission(path)

    def number(name, *patterns):
        line = submission.find_line(name, patterns)
        return line and line.number

    assert number("Block", r"norm") == 8
    assert number("Patches", r"norm", r"unfold") == 12  # not the norm of a class that it does not use
    assert number("Patches", r"WIDTH =") == 3  # by way of the function
    assert number("Patches", r"norm") == 16
