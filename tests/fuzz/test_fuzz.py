"""Fuzzing that stays: mutated files of every kind and random wrong command lines, a few in every test run, more in long ones.

`fuzz.py` runs them in forks of one process of its own; these tests read how each case ended.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hostile import HOSTILE_CALLS, HOSTILE_FILES
from mutate import mutate_bytes, mutate_json, mutate_text

FUZZ = Path(__file__).parent / "fuzz.py"
NUM_KINDS = 38

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def run_fuzz(folder: Path, *options: str) -> dict[str, dict]:
    """How each case ended; a failure shows what broke."""
    report = folder / "report.json"
    line = [sys.executable, str(FUZZ), "--json", str(report), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=3600)
    assert report.exists(), done.stderr
    return json.loads(report.read_text())


def broken(ended: dict[str, dict]) -> dict[str, tuple[str, str]]:
    return {name: (case["problem"], case["err"][-500:]) for name, case in ended.items() if case["problem"]}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> dict[str, dict]:
    return run_fuzz(tmp_path_factory.mktemp("hostile"), "--invocations", "0", "--files", "0", "--hostile")


def test_hostile_files_and_calls_break_no_promise_and_take_little_memory(hostile):
    assert len(hostile) == len(HOSTILE_FILES) + len(HOSTILE_CALLS)
    assert broken(hostile) == {}
    assert max(case["memory"] for case in hostile.values()) < 1_000_000_000


def test_hostile_sizes_are_refused_in_one_sentence(hostile):
    harmless = ("sinusoids", "regex that backtracks", "nested repetitions", "padding", "a run ", "a recipe ")
    for name in HOSTILE_FILES:
        if not any(word in name for word in harmless):
            assert hostile[name]["code"] == 2, name
            assert hostile[name]["err"].count("qkv: ") == 1 and len(hostile[name]["err"]) < 700, hostile[name]["err"]


def test_a_mutated_file_of_each_kind_breaks_no_promise(tmp_path):
    ended = run_fuzz(tmp_path, "--invocations", "12", "--files", str(NUM_KINDS), "--seed", "1")
    assert len(ended) == NUM_KINDS + 12
    assert broken(ended) == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_many_mutated_files_and_wrong_command_lines_break_no_promise(tmp_path, seed):
    assert broken(run_fuzz(tmp_path, "--invocations", "250", "--files", "1000", "--seed", str(seed))) == {}


def test_mutations_change_what_they_get_and_follow_from_their_seed():
    text = json.dumps({"layers": 2, "name": "a", "sizes": [1, 2, 3]})
    for mutate, content in ((mutate_bytes, text.encode()), (mutate_json, text), (mutate_text, "a = 1\nb = [2, 3]\n")):
        made = [mutate(content, random.Random(seed)) for seed in range(50)]
        assert made == [mutate(content, random.Random(seed)) for seed in range(50)]
        assert len(set(made)) > 25
