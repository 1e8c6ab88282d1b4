"""--repro: the script fails on the mutant, passes on the correct twin, and needs neither qkv nor anything but torch."""

import os
import subprocess
import sys

import pytest

from qkv.check import run
from qkv.check.mutants import generate_mutants
from qkv.check.repro import make_repro
from qkv.cli.main import run as command

pytestmark = pytest.mark.long  # minutes in all

GENERATED = generate_mutants()
NAMES = (
    "no mask · function · always",
    "scale twice · layer, separate projections · always",
    "mask transposed · model · more than 16 tokens",
    "output detached · layer, grouped heads and fused kernel · odd lengths",
)


def run_script(script, file):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    line = [sys.executable, str(script), str(file)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)


def check_script(mutant, folder):
    (folder / "mutant.py").write_text(mutant.code, encoding="utf-8")
    (folder / "twin.py").write_text(mutant.twin, encoding="utf-8")
    target = f"{folder}/mutant.py:{mutant.target}"
    script = make_repro(target, run(target, mutant.contract), mutant.contract)
    assert "qkv" not in script.partition("\n")[2].replace("self.qkv", "").replace("'qkv'", "").replace(str(folder), "")
    (folder / "repro.py").write_text(script, encoding="utf-8")
    wrong, right = (run_script(folder / "repro.py", folder / name) for name in ("mutant.py", "twin.py"))
    assert wrong.returncode == 1 and "AssertionError: counter-example" in wrong.stderr, script
    assert right.returncode == 0, right.stderr
    return script


@pytest.mark.parametrize("name", NAMES)
def test_make_repro_fails_on_the_mutant_and_passes_on_its_twin(name, tmp_path):
    script = check_script(next(mutant for mutant in GENERATED if mutant.name == name), tmp_path)
    assert len(script.splitlines()) <= 22


@pytest.mark.long
@pytest.mark.parametrize("mutant", GENERATED[::9], ids=lambda mutant: mutant.name)
def test_make_repro_fails_on_many_mutants_and_passes_on_their_twins(mutant, tmp_path):
    check_script(mutant, tmp_path)


def test_check_writes_the_smallest_counter_example_it_finds(tmp_path, capsys):
    file, script = tmp_path / "leaky.py", tmp_path / "out.py"
    file.write_text(next(mutant for mutant in GENERATED if mutant.name == NAMES[2]).code)
    assert command(["check", f"{file}:Model", "--kind", "causal", "--repro", str(script)]) == 1
    text = script.read_text(encoding="utf-8")
    assert "(1, 17)" in text and "the last token changes an earlier output" in text
    assert "fails on the counter-example" in " ".join(capsys.readouterr().err.split())


def test_check_says_why_there_is_no_script(tmp_path, capsys):
    script = tmp_path / "out.py"
    assert command(["check", "torch.nn:MultiheadAttention", "--repro", str(script)]) == 1
    assert "needs a target in a file" in " ".join(capsys.readouterr().err.split())
    assert not script.exists()
