"""Threads of PyTorch on a CPU: computations on small tensors use one, and waiting threads do not hold a core for long.

On a machine with other work, synchronizing the threads of a small operation takes longer than the operation.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPIN_COUNT = "10000"  # rounds of the waiting loop; OpenMP's default is 300,000


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

    By default they wait in a loop for long: with another program on one of two cores, checking a small layer took 61 s
    of processor time instead of 4.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
