"""The memory that one call needs, measured in a process of its own: python -m qkv.bench.peak NAME LENGTH

Prints the bytes by which the call raised the process's peak.
"""

import subprocess
import sys
from pathlib import Path


def in_child(name: str, length: int) -> int | None:
    """The bytes that a call of one of `attention.COMPETITORS` adds to a fresh process's peak; None if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "qkv.bench.peak", name, str(length)], capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 else None


def _growth(name: str, length: int) -> int:
    import torch

    from qkv.bench.attention import COMPETITORS, inputs

    with torch.inference_mode():
        COMPETITORS[name](*inputs(64))  # what a first call sets up does not count
        q, k, v = inputs(length)
        before = _now()
        COMPETITORS[name](q, k, v)
    return max(_peak() - before, 0)


def _now() -> int:
    """The memory held now; where the system allows it, the peak is forgotten first."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS:")
    except OSError:
        return _peak()


def _peak() -> int:
    try:
        return _status("VmHWM:")
    except OSError:
        import resource

        grain = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * grain


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status does not tell {name}")


if __name__ == "__main__":
    sys.stdout.write(f"{_growth(sys.argv[1], int(sys.argv[2]))}\n")
