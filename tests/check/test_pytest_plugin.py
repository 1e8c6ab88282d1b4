"""`pytest --qkv`: one test for each finding, and nothing at all without the option."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def run_pytest(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_ADDOPTS": ""}
    line = [sys.executable, "-m", "pytest", "-p", "qkv_pytest", "-c", os.devnull, "--rootdir", str(folder), *arguments]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "student.py").write_text(
        "import torch\n"
        "def attention(q, k, v, mask=None):\n"
        "    scores = q @ k.transpose(-2, -1)\n"
        "    if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, -1e9)\n"
        "    return scores.softmax(-1) @ v\n"
    )
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_nothing_is_imported():\n    assert not {'torch', 'qkv'} & set(sys.modules)\n"
    )
    return tmp_path


def test_plugin_makes_each_finding_a_test_and_failures_show_their_evidence(folder):
    code, said = run_pytest(folder, "-v", "--qkv", "student.py:attention", "--qkv-contract", "textbook", "-k", "qkv")
    assert code == 1
    assert "qkv student.py:attention::scale FAILED" in said
    assert "the scale is missing" in said
    assert "qkv student.py:attention::deterministic-in-eval PASSED" in said
    assert "Traceback" not in said


def test_plugin_imports_neither_torch_nor_qkv_without_the_option(folder):
    code, said = run_pytest(folder, "-q")
    assert code == 0, said
    assert "1 passed" in said


def test_plugin_refuses_a_missing_target_with_one_sentence(folder):
    code, said = run_pytest(folder, "-q", "--qkv", "student.py:nothing")
    assert code == 4
    assert "student.py has no 'nothing'" in said
    assert "Traceback" not in said
