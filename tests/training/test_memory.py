"""Memory that a training step frees is kept, as the system counts pages."""

import subprocess
import sys

import pytest

LOOP = """
import resource, sys, torch
from qkv.loop.memory import keep_freed
if sys.argv[1] == "kept" and not keep_freed():
    sys.exit("not glibc")
torch.empty(16 << 20).fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for megabytes in range(48, 64):
    torch.empty(megabytes << 18).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_for(how: str) -> int:
    ran = subprocess.run([sys.executable, "-c", LOOP, how], capture_output=True, text=True)
    if "not glibc" in ran.stderr:
        pytest.skip("the C library is not glibc")
    return int(ran.stdout)


def test_freed_memory_is_not_asked_of_the_system_again():
    if pages_asked_for("given back") < 100_000:  # 16 tensors of about 14,000 pages of 4 kB each
        pytest.skip("the system hands out large pages, or keeps freed memory, by itself")
    assert pages_asked_for("kept") < 1_000
