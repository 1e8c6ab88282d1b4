"""Compile a C file of this package at first use, and load it.

The library is kept in the cache folder (kernels/) under a name made of its source, the compiler, its options and the
processor's features (a home directory may be shared by different machines), so that each is compiled for once. Where
there is no compiler, or QKV_NO_COMPILE=1 is set, there is no library.
"""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from qkv._files import cache_folder
from qkv._onednn import processor_flags

LOG = logging.getLogger("qkv")
COMPILERS = ("cc", "gcc", "clang")
COMMON = ("-std=gnu11", "-O3", "-shared", "-fPIC")  # gnu11: a product and a sum become one instruction
# tried in this order: for this processor and with threads, and then with less
OPTIONS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ())
SECONDS = 120


@functools.cache
def load_kernel(source: Path) -> ctypes.CDLL | None:
    """The compiled library of a C file; None, with one line on stderr that says why, where it cannot be compiled."""
    if os.environ.get("QKV_NO_COMPILE", "0") not in ("", "0"):
        return None
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        LOG.warning("qkv: generation is slower than it could be, because no C compiler (cc, gcc, clang) was found")
        return None
    try:
        return ctypes.CDLL(str(_compile(source, compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        LOG.warning("qkv: generation is slower than it could be, because %s did not compile: %s", source.name, reason)
        return None


def _compile(source: Path, compiler: str) -> Path:
    """The path of the library, which is compiled if it is not in the cache."""
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    key = hashlib.sha256(source.read_bytes() + version + repr((COMMON, OPTIONS)).encode() + processor_flags().encode())
    name = f"{source.stem}-{key.hexdigest()[:16]}.so"
    folder = kernel_folder()
    if not (folder / name).is_file():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _try_options(source, compiler, Path(scratch) / name)
            os.replace(Path(scratch) / name, folder / name)  # whole, also where two processes compile at once
    return folder / name


def _try_options(source: Path, compiler: str, target: Path) -> None:
    reason = ""
    for options in OPTIONS:
        command = [compiler, *COMMON, *options, str(source), "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode == 0:
            return
        reason = reason or done.stderr
    raise OSError(next((line for line in reason.splitlines() if "error" in line), f"{compiler} failed"))


def kernel_folder() -> Path:
    """The folder of compiled libraries; the user's alone, because what it holds is run."""
    folder = cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "getuid") and (folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022):
        raise OSError(f"others can write to {folder}")
    return folder
