"""Keep oneDNN, torch's library for CPU products, from instructions that this machine announces but cannot execute.

Some virtual machines announce AMX and then end a process with SIGILL at its first bfloat16 product. That is tried once
in a process of its own; the answer is kept in the cache folder.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

from qkv._files import cache_folder, write_atomic

LOG = logging.getLogger("qkv")
VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
PRODUCTS = """
import torch
a = torch.ones(64, 64, dtype=torch.bfloat16)
for _ in range(20):
    a = torch.nn.functional.linear(a, a) / 64
"""
SECONDS = 120


@functools.cache
def avoid_broken_amx() -> None:
    """Limit oneDNN to AVX-512 where a bfloat16 product with AMX ends the process. Call it before the first product."""
    if VARIABLE in os.environ or "amx_tile" not in processor_flags().split():
        return
    if not _amx_works():
        LOG.warning("qkv: this machine announces AMX but cannot execute it; bfloat16 products do without it")
        os.environ[VARIABLE] = WITHOUT_AMX


def processor_flags() -> str:
    """The features of the processor as Linux lists them; elsewhere its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"


def _amx_works() -> bool:
    from importlib.metadata import version

    key = hashlib.sha256(repr((processor_flags(), platform.release(), version("torch"), PRODUCTS)).encode())
    known = cache_folder() / "amx" / key.hexdigest()[:16]
    try:
        return known.read_text(encoding="utf-8") == "works"
    except OSError:
        pass
    command = [sys.executable, "-c", PRODUCTS]
    works = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode >= 0
    with contextlib.suppress(OSError, ValueError):  # where it cannot be kept, it is tried again next time
        known.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(known, "works" if works else "fails")
    return works
