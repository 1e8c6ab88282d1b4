"""Run a function in several gloo processes on this machine, forked from the test."""

import multiprocessing
import os
import socket
import traceback

import torch


def run_processes(count, target, *arguments):
    """Run a function in `count` processes connected by gloo; fail if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    errors = context.SimpleQueue()
    processes = [
        context.Process(target=_member, args=(rank, count, port, errors, target, *arguments)) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
            process.join()
    message = "" if errors.empty() else errors.get()
    assert [process.exitcode for process in processes] == [0] * count, message


def _member(rank, count, port, errors, target, *arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    from qkv.training import init_distributed

    try:
        with init_distributed():
            target(*arguments)
    except BaseException:
        errors.put(traceback.format_exc())
        os._exit(1)
    os._exit(0)
