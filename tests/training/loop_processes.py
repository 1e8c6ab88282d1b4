"""Several processes on this machine that train together, copied from the one that tests."""

import multiprocessing
import os
import socket
import traceback

import torch


def together(count, target, *arguments):
    """Run a function in `count` processes joined by gloo; raise if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    words = context.SimpleQueue()
    made = [
        context.Process(target=_member, args=(rank, count, port, words, target, *arguments)) for rank in range(count)
    ]
    for process in made:
        process.start()
    for process in made:
        process.join(120)
        if process.is_alive():
            process.kill()
            process.join()
    said = "" if words.empty() else words.get()
    assert [process.exitcode for process in made] == [0] * count, said


def _member(rank, count, port, words, target, *arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    from qkv.training import joined

    try:
        with joined():
            target(*arguments)
    except BaseException:
        words.put(traceback.format_exc())
        os._exit(1)
    os._exit(0)
