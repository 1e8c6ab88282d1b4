"""Fork server of the sandbox: it has torch loaded and forks a new, isolated process for every call.

It runs no line of a submission itself, so no call knows anything of another.

grader — launcher — fork server (first in its process namespace) — a supervisor for each call — the submission's process
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

from . import memory_group, messages, namespaces, run_submission, seccomp

MAX_MESSAGE_BYTES = 1 << 16
SLICE_SECONDS = 0.25
COMPUTING_SHARE = 0.01  # of a slice; a process that gets less of a processor is taken for one that waits


def main(socket_number: int) -> None:
    """Receive the settings, build the sandbox, then answer calls until the grader hangs up."""
    channel = socket.socket(fileno=socket_number)
    namespaces.die_with_parent()
    message, _, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 0)
    settings = json.loads(message)
    torch.set_num_threads(1)
    with open(settings["source"], encoding="utf-8") as file:
        source = file.read()
    rooted = False
    if settings["isolated"]:
        settings["seccomp"] = seccomp.is_available()
        if settings["memory_group"]:
            memory_group.join(settings["memory_group"])
        try:
            rooted = namespaces.unshare_namespaces()
        except OSError as error:
            return _send(channel, {"refused": str(error)})
        namespaces.die_with_parent()  # new privileges clear the earlier request
        settings["user"] = namespaces.choose_user_id() if rooted else 0
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return None
    namespaces.die_with_parent()
    try:
        if settings["isolated"]:
            namespaces.build_root(settings["base"], settings["hidden"])
    except OSError as error:
        return _send(channel, {"refused": str(error)})
    _warm_up()
    _hide_own_paths()
    _send(channel, {"ready": "root" if rooted else "user"})
    serve(channel, settings, source, rooted)
    return None


def serve(channel: socket.socket, settings: dict[str, Any], source: str, rooted: bool) -> None:
    """Fork one supervisor for each call, one at a time."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)  # the grader has hung up
        child = os.fork()
        if child == 0:
            try:
                _supervise(channel, settings, json.loads(message), files, source, rooted)
            except BaseException as error:
                _send(channel, {"ended": "broken", "why": f"{type(error).__name__}: {error}"})
            os._exit(0)
        for file in files:
            os.close(file)
        os.waitpid(child, 0)


def _supervise(
    channel: socket.socket, settings: dict[str, Any], call: dict[str, Any], files: list[int], source: str, rooted: bool
) -> None:
    """Fork the submission's process, wait for it no longer than allowed, and report how it ended."""
    namespaces.die_with_parent()
    if settings["isolated"]:
        namespaces.unshare_processes()
    read_end, write_end = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            _isolate(settings, files, rooted, write_end)
            run_submission.answer(3, 4, source)
        finally:
            os._exit(0)
    os.close(write_end)
    broken = os.read(read_end, 1000)  # empty once the process is isolated
    ended = _wait(child, call["idle_seconds"], call["wall_seconds"])
    if not settings["isolated"]:
        _kill_group(child)
    if broken:
        ended = {"ended": "broken", "why": broken.decode("utf-8", "replace")}
    _send(channel, ended | {"seconds": time.monotonic() - started})


def _isolate(settings: dict[str, Any], files: list[int], rooted: bool, error_fd: int) -> None:
    """Turn this process into one that may only compute: the last trusted lines before the submission's own."""
    try:
        os.setsid()
        namespaces.die_with_parent()
        error_fd = _keep_only(files, error_fd)
        limits = settings["seconds"], settings["memory"], settings["file_size"]
        if settings["isolated"]:
            user = settings["user"]
            namespaces.mount_scratch(user)
            namespaces.set_limits(*limits, single_process=True)
            namespaces.drop_privileges(user, rooted=rooted)
            if settings["seccomp"]:
                seccomp.refuse_system_calls()
        else:
            os.chdir(settings["base"])
            namespaces.set_limits(*limits, single_process=False)
    except BaseException as error:
        os.write(error_fd, f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(1)
    os.close(error_fd)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _keep_only(files: list[int], error_fd: int) -> int:
    """Close every descriptor but 0 nothing, 1 and 2 its prints, 3 the request, 4 the result, 5 `error_fd`.

    Descriptor 5 is closed before the submission runs.
    """
    request, result, printed = files
    nothing = os.open("/dev/null", os.O_RDONLY)
    wanted = (nothing, printed, printed, request, result, error_fd)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in wanted]
    os.closerange(0, 200)
    for number, file in enumerate(high):
        os.dup2(file, number)
    os.closerange(len(high), 1024)
    return 5


def _wait(child: int, idle_seconds: float, wall_seconds: float) -> dict[str, Any]:
    """Wait for the process to end, and kill it after `idle_seconds` in which it did not compute, or `wall_seconds`.

    What it computes has its own limit, in processor time: on a busy machine the same work takes longer by the clock.
    """
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    idle, used, end = 0.0, 0.0, time.monotonic() + wall_seconds
    while not (in_time := bool(poll.poll(SLICE_SECONDS * 1000))) and idle < idle_seconds and time.monotonic() < end:
        try:
            used, before = _processor_seconds(child), used
        except OSError:  # it has just ended, and the next poll says so
            continue
        if used - before < COMPUTING_SHARE * SLICE_SECONDS:
            idle += SLICE_SECONDS
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(handle)
    if not in_time:
        return {"ended": "time"}
    if os.WIFSIGNALED(status):
        return {"ended": "signal", "signal": os.WTERMSIG(status)}
    return {"ended": "exit", "code": os.WEXITSTATUS(status)}


def _processor_seconds(process: int) -> float:
    """What the process has computed so far: clock_getcpuclockid of the C library, which needs no /proc."""
    return time.clock_gettime((~process << 3) | 2)


def _kill_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        return


def _warm_up() -> None:
    """Load once what torch loads on first use, so that not every call has to."""
    layer = torch.nn.Linear(4, 4).double()
    x = torch.ones(1, 2, 4, dtype=torch.float64, requires_grad=True)
    out = layer(x).softmax(-1).masked_fill(torch.zeros(2, 4, dtype=torch.bool), 0.0)
    torch.autograd.grad(out, [x, *layer.parameters()], torch.ones_like(out), allow_unused=True)
    messages.decode(messages.encode({"x": x}, {}))


def _hide_own_paths() -> None:
    """Let a submission import torch and its like, and nothing of qkv."""
    sys.path[:] = [path for path in sys.path if os.path.isdir(path)]
    sys.argv[:] = [""]


def _send(channel: socket.socket, fields: dict[str, Any]) -> None:
    channel.send(json.dumps(fields).encode())
