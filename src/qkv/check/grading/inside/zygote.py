"""The process that stands between grader and submission: it has torch loaded, runs no line of a submission itself, and
makes a new process for every call, so that no call knows anything of another.

grader — launcher — zygote (first in its process namespace) — a keeper for each call — the submission's process.
"""

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

import torch

from . import answer, enclose, wire

LONGEST_MESSAGE = 1 << 16


def main(socket_number: int) -> None:
    """Take the settings from the socket, build the walls, then answer calls until the grader hangs up."""
    channel = socket.socket(fileno=socket_number)
    enclose.die_with_parent()
    message, _, _, _ = socket.recv_fds(channel, LONGEST_MESSAGE, 0)
    settings = json.loads(message)
    torch.set_num_threads(1)
    with open(settings["source"], encoding="utf-8") as file:
        source = file.read()
    rooted = False
    if settings["walls"]:
        try:
            rooted = enclose.leave_the_system()
        except OSError as error:
            return _tell(channel, {"refused": str(error)})
        enclose.die_with_parent()  # new rights clear what was said before
        settings["user"] = enclose.stranger() if rooted else 0
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return None
    enclose.die_with_parent()
    try:
        if settings["walls"]:
            enclose.build_root(settings["base"], settings["hidden"])
    except OSError as error:
        return _tell(channel, {"refused": str(error)})
    _warm_up()
    _forget_ourselves()
    _tell(channel, {"ready": "root" if rooted else "user"})
    serve(channel, settings, source, rooted)
    return None


def serve(channel: socket.socket, settings: dict[str, Any], source: str, rooted: bool) -> None:
    """One keeper at a time, one call each."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, LONGEST_MESSAGE, 3)
        if not message:
            os._exit(0)  # the grader has hung up
        child = os.fork()
        if child == 0:
            try:
                _keep(channel, settings, json.loads(message), files, source, rooted)
            except BaseException as error:
                _tell(channel, {"ended": "broken", "why": f"{type(error).__name__}: {error}"})
            os._exit(0)
        for file in files:
            os.close(file)
        os.waitpid(child, 0)


def _keep(
    channel: socket.socket, settings: dict[str, Any], call: dict[str, Any], files: list[int], source: str, rooted: bool
) -> None:
    """Make the submission's process, wait for it no longer than allowed, and say how it ended."""
    enclose.die_with_parent()
    if settings["walls"]:
        enclose.own_processes()
    ready, told = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            _prepare(settings, files, rooted, told)
            answer.answer(3, 4, source)
        finally:
            os._exit(0)
    os.close(told)
    broken = os.read(ready, 1000)  # empty once the walls stand
    ended = _wait(child, call["wall"])
    if not settings["walls"]:
        _kill_group(child)
    if broken:
        ended = {"ended": "broken", "why": broken.decode("utf-8", "replace")}
    _tell(channel, ended | {"seconds": time.monotonic() - started})


def _prepare(settings: dict[str, Any], files: list[int], rooted: bool, told: int) -> None:
    """From trusted code to a process that may do nothing but compute: the last lines before the submission's own."""
    try:
        os.setsid()
        enclose.die_with_parent()
        told = _only_these_files(files, told)
        if settings["walls"]:
            user = settings["user"]
            enclose.own_scratch(user)
            enclose.limit(settings["seconds"], settings["memory"], settings["file_size"], alone=True)
            enclose.become(user, rooted=rooted)
        else:
            os.chdir(settings["base"])
            enclose.limit(settings["seconds"], settings["memory"], settings["file_size"], alone=False)
    except BaseException as error:
        os.write(told, f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(1)
    os.close(told)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _only_these_files(files: list[int], told: int) -> int:
    """0 nothing · 1, 2 what it prints · 3 the request · 4 the result · 5 `told`, which is closed before it runs."""
    request, result, printed = files
    nothing = os.open("/dev/null", os.O_RDONLY)
    wanted = (nothing, printed, printed, request, result, told)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in wanted]
    os.closerange(0, 200)
    for place, file in enumerate(high):
        os.dup2(file, place)
    os.closerange(len(high), 1024)
    return 5


def _wait(child: int, seconds: float) -> dict[str, Any]:
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    in_time = bool(poll.poll(seconds * 1000))
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(handle)
    if not in_time:
        return {"ended": "time"}
    if os.WIFSIGNALED(status):
        return {"ended": "signal", "signal": os.WTERMSIG(status)}
    return {"ended": "exit", "code": os.WEXITSTATUS(status)}


def _kill_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        return


def _warm_up() -> None:
    """What torch loads on first use is loaded here once, not in every call."""
    layer = torch.nn.Linear(4, 4).double()
    x = torch.ones(1, 2, 4, dtype=torch.float64, requires_grad=True)
    out = layer(x).softmax(-1).masked_fill(torch.zeros(2, 4, dtype=torch.bool), 0.0)
    torch.autograd.grad(out, [x, *layer.parameters()], torch.ones_like(out), allow_unused=True)
    wire.decode(wire.encode({"x": x}, {}))


def _forget_ourselves() -> None:
    """A submission that imports finds torch and its like, and nothing of ours."""
    sys.path[:] = [path for path in sys.path if os.path.isdir(path)]
    sys.argv[:] = [""]


def _tell(channel: socket.socket, words: dict[str, Any]) -> None:
    channel.send(json.dumps(words).encode())
