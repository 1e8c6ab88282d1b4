"""Opt-in malloc settings for training on CPUs: keep freed memory in the process, in huge pages.

A training step frees hundreds of megabytes. glibc returns them to the system, which hands them out again in pages of
4 kB, each cleared and mapped anew; `python bench/malloc_trim.py` times this.
"""

import ctypes
import sys
from functools import cache

# from malloc.h and mman.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
MADV_HUGEPAGE = 14
HUGE_PAGE = 2 << 20
RESERVED = 1 << 30  # addresses, not memory: pages are allocated when they are written to
GROWTH = 64 << 20


@cache
def disable_malloc_trim() -> bool:
    """Make glibc keep freed memory from now on, in the whole process. Returns False where the C library is not glibc.

    Results do not change. The process stays as large as it was at its peak. `TrainConfig(disable_malloc_trim=True)`
    calls this.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        return False
    disabled = libc.mallopt(MMAP_MAX, 0) and libc.mallopt(TRIM_THRESHOLD, -1)
    _reserve(libc)
    return bool(disabled)


def _reserve(libc: ctypes.CDLL) -> None:
    """Grow the heap once by a large amount and ask for huge pages there; the system may ignore the request."""
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes = libc.free.argtypes = [ctypes.c_void_p]
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mallopt(TOP_PAD, RESERVED)
    before = libc.sbrk(None)
    libc.free(libc.malloc(GROWTH))
    after = libc.sbrk(None)
    libc.mallopt(TOP_PAD, GROWTH)
    first = -(-before // HUGE_PAGE) * HUGE_PAGE
    if after > first:
        libc.madvise(first, after - first, MADV_HUGEPAGE)
