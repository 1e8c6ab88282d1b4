"""`qkv tour` opens the studio in a terminal, and ends by itself everywhere else."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.cli import tour


@pytest.mark.parametrize(
    ("stdin", "stdout", "environment", "here"),
    [
        (True, True, {}, True),
        (True, True, {"CI": "false"}, True),
        (True, True, {"CI": "true"}, False),
        (False, True, {}, False),
        (True, False, {}, False),
    ],
)
def test_is_interactive_needs_a_terminal_at_both_ends_and_no_ci(monkeypatch, stdin, stdout, environment, here):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout, raising=False)
    monkeypatch.delenv("CI", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tour.is_interactive() is here


def test_tour_in_a_terminal_opens_the_studio_and_ctrl_c_ends_both(tmp_path):
    heard = tmp_path / "heard"
    fake = tmp_path / "browser"
    fake.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {heard}\n')
    fake.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{fake} %s", "TMPDIR": str(tmp_path), "COLUMNS": "80", "TERM": "dumb"}
    environment.pop("CI", None)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "qkv", "tour", "--steps", "0"],
        stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    said = b""
    try:
        until = time.monotonic() + 90
        while b"open.html" not in said and time.monotonic() < until:
            said += os.read(master, 4096)
        while not (heard.exists() and heard.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        file = Path(heard.read_text().removeprefix("file://"))
        assert file.is_file()
        numbers = re.findall(r"(\d)\. (?:Attention|A checked|The studio)", said.decode())
        assert numbers == ["1", "2", "3"]
        time.sleep(0.5)  # it answers by now
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not file.exists()
    finally:
        process.kill()
        process.wait()
        os.close(master)
