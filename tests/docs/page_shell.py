"""A shell in which `qkv` starts at once: one server process imports torch, and each command is a fork of it.

Run as a script, this file is the server. `qkv` in the shell's PATH is a small client that sends its arguments, folder
and streams, waits, and exits with the command's exit code.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
CLIENT = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({socket!r})
said = json.dumps([sys.argv[1:], os.getcwd()]).encode()
socket.send_fds(line, [len(said).to_bytes(4, "big") + said], [0, 1, 2])
sys.exit(line.recv(1)[0])
"""


class Shell:
    """Runs command lines in one folder, one after another."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.socket = home / "qkv.socket"
        client = home / "bin" / "qkv"
        client.parent.mkdir()
        client.write_text(CLIENT.format(python=sys.executable, socket=str(self.socket)))
        client.chmod(0o755)
        beside = os.pathsep.join((str(client.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "QKV"))}
        self.environment = {
            **plain,
            "PATH": beside,
            "PYTHONPATH": str(SOURCE),
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.server = subprocess.Popen([sys.executable, __file__, str(self.socket)], env=self.environment)
        while not self.socket.exists():
            assert self.server.poll() is None, "the server process did not start"
            time.sleep(0.05)

    def run(self, line: str, seconds: float = 900) -> tuple[int, str]:
        """The exit code of a line and its output: stdout and stderr together, as in a terminal."""
        bash = shutil.which("bash") or "sh"
        done = subprocess.run(
            [bash, "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout

    def close(self) -> None:
        self.server.terminate()
        self.server.wait()


def serve(place: str) -> None:
    """Import what every command needs, then fork a process for each command."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401

    import qkv.check
    import qkv.claims
    import qkv.cli.main
    import qkv.interp
    import qkv.training  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{place}.new")
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.rename(f"{place}.new", place)
    while True:
        line, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            _answer(line)
        line.close()


def _answer(line: socket.socket) -> None:
    """Run one command; if its client is killed, it is killed too."""
    said, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
    arguments, folder = json.loads(said[4 : 4 + int.from_bytes(said[:4], "big")])
    child = os.fork()
    if child == 0:
        line.close()
        _become(arguments, folder, streams)
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            line.send(bytes([os.waitstatus_to_exitcode(status) % 256]))
            os._exit(0)
        if select.select([line], [], [], 0.02)[0]:
            os.kill(child, signal.SIGKILL)
            os._exit(0)


def _become(arguments: list[str], folder: str, streams: list[int]) -> None:
    from qkv.cli.main import run

    for stream, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, number)
    os.chdir(folder)
    sys.argv = ["qkv", *arguments]
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
