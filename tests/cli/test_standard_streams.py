"""A closed, full or abandoned stdout or stderr, and SIGTERM: documented exit codes, no traceback, nothing left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.cli.standard_streams import SignalError

QKV = f"{sys.executable} -m qkv"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and a shell")


def shell(line: str) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    return done.returncode, without_notes(done.stderr)


def without_notes(said: str) -> str:
    """Without the note that a slow machine prints after a second: a test of it is in test_main.py."""
    return said.replace("loading PyTorch …\n", "").replace("computing …\n", "")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("{qkv} questions --json | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{qkv} --help | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{qkv} questions --json > /dev/full", 2, "qkv: cannot write to standard output: No space left on device\n"),
        ("{qkv} --help > /dev/full", 2, "qkv: cannot write to standard output: No space left on device\n"),
        ("{qkv} questions >&-", 2, "qkv: cannot write to standard output: Bad file descriptor\n"),
        ("{qkv} questions 2>&- > /dev/null", 0, ""),
        ("{qkv} nothing 2>&-", 2, ""),
        ("{qkv} nothing 2> /dev/full", 2, ""),
        ("{qkv} questions >&- 2>&-", 2, ""),
    ],
)
def test_qkv_with_a_closed_or_full_stream_ends_with_a_documented_exit_code(line, code, said):
    assert shell(line.format(qkv=QKV)) == (code, said)


def test_a_name_that_is_no_text_is_printed_escaped():
    """stdout is strict in most locales: it raised after the files of a command were written."""
    program = r"from qkv.cli.standard_streams import guard_streams; guard_streams(); print('a\udcff.toml √')"
    for encoding, said in (("utf-8", r"a\udcff.toml √"), ("ascii", r"a\udcff.toml \u221a")):
        env = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=120, env=env
        )
        assert (done.returncode, done.stdout) == (0, said + "\n")


def test_nothing_printed_reaches_a_file_that_got_the_number_of_a_closed_stream(tmp_path):
    page = tmp_path / "page.html"
    shell(f"{QKV} byhand --example three-tokens --html {page} >&- 2>&-")
    assert page.read_text().startswith("<!doctype html>")


def test_sigterm_to_qkv_grade_leaves_no_process_no_file_and_exit_code_143(tmp_path):
    submission = tmp_path / "sleeper.py"
    submission.write_text("import time\ntime.sleep(1000)")
    line = [sys.executable, "-m", "qkv", "grade", "rope", str(submission), "--csv", str(tmp_path / "grades.csv")]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=env)
    waited = time.monotonic()
    while len(children := descendants(process.pid)) < 4 and process.poll() is None and time.monotonic() < waited + 60:
        time.sleep(0.1)  # launcher, fork server, supervisor, submission
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    if process.returncode == 2:
        pytest.skip(said)
    assert (process.returncode, without_notes(said)) == (143, "qkv: terminated\n")
    assert list(temporary.iterdir()) == [] and not (tmp_path / "grades.csv").exists()
    waited = time.monotonic()
    while (left := [pid for pid in children if Path("/proc", str(pid)).exists()]) and time.monotonic() < waited + 20:
        time.sleep(0.1)  # the kernel kills the last of them when their parent has ended
    assert left == []


def descendants(pid: int) -> list[int]:
    try:
        found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(each) for each in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid for each in dict.fromkeys(found) for pid in (each, *descendants(each))]


def test_a_signal_inside_the_definition_of_a_class_still_gives_exit_code_143(monkeypatch, capsys):
    def define(*args, **kwargs):
        class Attribute:
            def __set_name__(self, owner, name):
                raise SignalError(signal.SIGTERM)

        type("Owner", (), {"attribute": Attribute()})  # before Python 3.12 a RuntimeError is raised from it

    monkeypatch.setattr(main, "make_app", lambda command: define)
    assert main.run(["doctor"]) == 143
    assert "terminated" in capsys.readouterr().err
