"""`qkv examples` and `qkv completion`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from qkv.cli import examples
from qkv.cli.main import COMMANDS, run

SOURCE = Path(__file__).parents[2] / "docs" / "examples"


def test_examples_lists_every_file_and_folder_of_docs_examples(capsys):
    assert set(examples.EXAMPLES) == {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert run(["examples"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in examples.EXAMPLES)


def test_examples_copies_files_unchanged_and_again_without_complaint(tmp_path, capsys):
    for _ in range(2):
        assert run(["examples", str(tmp_path / "new"), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
    assert {"student.py", "submissions/eva.zip", "adapters/attention.cpp"} <= set(result["files"])
    assert all((tmp_path / "new" / name).read_bytes() == (SOURCE / name).read_bytes() for name in result["files"])
    assert {path.relative_to(tmp_path / "new").as_posix() for path in tmp_path.rglob("*.*")} == set(result["files"])


def test_examples_keeps_a_changed_file_and_copies_nothing_unless_forced(tmp_path, capsys):
    (tmp_path / "student.py").write_text("mine")
    assert run(["examples", str(tmp_path)]) == 2
    assert "student.py differs from the example; choose another folder, or add --force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["student.py"]
    assert run(["examples", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "student.py").read_bytes() == (SOURCE / "student.py").read_bytes()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_with_every_command(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS) and "--alignment" in script


def test_completion_of_bash_completes_commands_and_options(capsys):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    run(["completion", "bash"])
    script = capsys.readouterr().out
    for words, expected in (("qkv by", "byhand"), ("qkv check --ali", "--alignment")):
        ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _qkv; echo ${{COMPREPLY[@]}}"
        done = subprocess.run([bash, "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]
