"""Threads of PyTorch on a CPU: computations on small tensors use one, and waiting threads do not hold a core for long.

On a machine with other work, synchronizing the threads of a small operation takes longer than the operation.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPIN_COUNT = "10000"  # about 0.2 ms of waiting in a loop, longer than the pause between two operations of a model


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread; also a decorator.

    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def limit_spinning() -> None:
    """Let OpenMP's threads sleep after a short wait; before torch is imported. The user's own settings stay.

    By default they wait in a loop for milliseconds: with another program on a core, small operations take 50 times
    as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
