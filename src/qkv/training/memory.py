"""Memory of training on a CPU: what a step frees is kept for the next one, in large pages.

A step frees hundreds of megabytes. glibc gives them back to the system, which hands them out again in pages of 4 kB,
each cleared and mapped anew, which `python bench/memory.py` times.
"""

import ctypes
import sys
from functools import cache

# of malloc.h and mman.h
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
MADV_HUGEPAGE = 14
LARGE_PAGE = 2 << 20
RESERVED = 1 << 30  # addresses, not memory: pages are taken when they are written to
GROWTH = 64 << 20


@cache
def keep_freed() -> bool:
    """Keep freed memory in this process from now on; False where the C library is not glibc, and nothing changes.

    Numbers do not change. The process stays as large as it was at its largest.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        return False
    kept = libc.mallopt(MMAP_MAX, 0) and libc.mallopt(TRIM_THRESHOLD, -1)
    _reserve(libc)
    return bool(kept)


def _reserve(libc: ctypes.CDLL) -> None:
    """Let the heap grow once by a lot, and ask for large pages there; the system may ignore it."""
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes = libc.free.argtypes = [ctypes.c_void_p]
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mallopt(TOP_PAD, RESERVED)
    before = libc.sbrk(None)
    libc.free(libc.malloc(GROWTH))
    after = libc.sbrk(None)
    libc.mallopt(TOP_PAD, GROWTH)
    first = -(-before // LARGE_PAGE) * LARGE_PAGE
    if after > first:
        libc.madvise(first, after - first, MADV_HUGEPAGE)
