"""Targets are loaded as running them in their folder would: once, importable, quiet, bounded, with their own errors."""

import json
import sys

import pytest

from qkv.check.calling.loading import TargetLoader
from qkv.cli.main import run as command

ATTEND = """
import torch

def attend(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
"""


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(folder, files):
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


SHAPES = {
    "sibling": ({"base_s.py": ATTEND}, "mine.py", "from base_s import attend"),
    "package, relative": (
        {"pack_r/__init__.py": "", "pack_r/base.py": ATTEND},
        "pack_r/mine.py",
        "from .base import attend",
    ),
    "package, from its root": (
        {"pack_a/__init__.py": "", "pack_a/base.py": ATTEND},
        "pack_a/mine.py",
        "from pack_a.base import attend",
    ),
    "subpackage": (
        {"pack_u/__init__.py": "", "pack_u/base.py": ATTEND, "pack_u/sub/__init__.py": ""},
        "pack_u/sub/mine.py",
        "from ..base import attend",
    ),
    "relative without __init__": ({"loose/base.py": ATTEND}, "loose/mine.py", "from .base import attend"),
    "named like an installed module": ({}, "random.py", ATTEND),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_target_loader_imports_siblings_and_packages(shape, tmp_path):
    files, target, text = SHAPES[shape]
    write(tmp_path, {**files, target: text})
    assert TargetLoader().find(f"{tmp_path / target}:attend").__name__ == "attend"


def test_target_loader_keeps_siblings_of_two_folders_apart(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, {"shared_helper.py": f"NAME = {name!r}", "mine.py": "from shared_helper import NAME"})
    found = [TargetLoader().find(f"{tmp_path / name / 'mine.py'}:NAME") for name in ("one", "two")]
    assert found == ["one", "two"]


def test_target_loader_executes_a_file_once_and_again_after_a_change(tmp_path):
    operator = """
import torch
torch.library.define("qkv_test_loading::attend", "(Tensor q, Tensor k, Tensor v) -> Tensor")
torch.library.impl("qkv_test_loading::attend", "CompositeImplicitAutograd")(
    lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v))

def attend(q, k, v):
    return torch.ops.qkv_test_loading.attend(q, k, v)
"""
    write(tmp_path, {"mine.py": operator, "other.py": "from mine import attend"})
    assert command(["check", f"{tmp_path}/other.py:attend"]) == 0  # imports mine.py
    assert command(["check", f"{tmp_path}/mine.py:attend", "--like", f"{tmp_path}/mine.py:attend"]) == 0
    (tmp_path / "mine.py").write_text("attend = 3 + 4  # another size")
    assert TargetLoader().find(f"{tmp_path}/mine.py:attend") == 7


def test_check_keeps_what_a_target_prints_off_stdout(tmp_path, capsys):
    text = ATTEND.replace("    return", "    print('called')\n    return") + "\nprint('imported')\n"
    write(tmp_path, {"loud.py": text})
    assert command(["check", f"{tmp_path}/loud.py:attend", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ok"]
    assert "imported" in shown.err
    assert "further prints of the target are left out" in shown.err
    assert shown.err.count("called") < 30


REFUSED = {
    "sys.exit": ("import sys\nsys.exit(3)", "called sys.exit(3): it ends the program at import"),
    "argparse": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
        "parses command-line arguments when it is imported (the following arguments are required: --data)",
    ),
    "endless loop": (
        "while True:\n    try:\n        pass\n    except Exception:\n        pass",
        "did not end within 0.5 s",
    ),
    "endless call": (
        "def attend(q, k, v):\n    while True:\n        pass",
        "could not be called: the call did not end within 0.5 s",
    ),
    "exit in a call": ("import sys\ndef attend(q, k, v):\n    sys.exit(1)", "called sys.exit(1)"),
    "async": ("async def attend(q, k, v):\n    return q", "attend is asynchronous (async def)"),
    "async module": (
        "import torch\nclass attend(torch.nn.Module):\n    async def forward(self, x):\n        return x",
        "attend is asynchronous (async def)",
    ),
    "GPU at import": (
        "import torch\nw = torch.zeros(1, device='cuda')\ndef attend(q, k, v): ...",
        "it needs a GPU (CUDA)",
    ),
    "GPU in a call": ("import torch\ndef attend(q, k, v):\n    return q.cuda()", "it needs a GPU (CUDA)"),
    "GPU in a module": (
        "import torch\nclass attend(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = torch.nn.Linear(8, 8).cuda()\n",
        "it needs a GPU (CUDA)",
    ),
    "syntax error": ("def attend(q, k, v:\n    return q", "is not valid Python, line 1: '(' was never closed"),
    "syntax error beside it": ("import broken_beside", "imports broken_beside.py, which is not valid Python, line 1"),
    "missing module": (
        "import no_such_module_anywhere",
        "'no_such_module_anywhere', which is neither beside it",
    ),
    "an error at import": ("x = 1\ny = x / 0", "raises ZeroDivisionError at line 2, `y = x / 0`: division by zero"),
    "input": ("name = input('name: ')", "asks for input when it is imported at line 1"),
    "no Python": ("\0\1", "is not valid Python"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_check_explains_a_target_that_cannot_be_loaded_or_called_in_one_sentence(case, tmp_path, capsys):
    text, said = REFUSED[case]
    write(tmp_path, {"mine.py": text, "broken_beside.py": "def f(:\n"})
    assert command(["check", f"{tmp_path}/mine.py:attend", "--time-limit", "0.5"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert "bug in qkv" not in shown.err
