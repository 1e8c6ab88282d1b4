"""disable_malloc_trim: freed memory stays in the process; training does not call it unless asked."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_runs import CONFIG, run

from qkv.training import loop

LOOP = """
import resource, sys, torch
from qkv.training.malloc import disable_malloc_trim
if sys.argv[1] == "kept" and not disable_malloc_trim():
    sys.exit("not glibc")
torch.empty(16 << 20).fill_(1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for megabytes in range(48, 64):
    torch.empty(megabytes << 18).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_page_faults(how: str) -> int:
    ran = subprocess.run([sys.executable, "-c", LOOP, how], capture_output=True, text=True)
    if "not glibc" in ran.stderr:
        pytest.skip("the C library is not glibc")
    return int(ran.stdout)


def test_disable_malloc_trim_keeps_freed_memory():
    if count_page_faults("default") < 100_000:  # 16 tensors of about 14,000 pages of 4 kB each
        pytest.skip("the system hands out huge pages, or keeps freed memory, by default")
    assert count_page_faults("kept") < 1_000


def test_train_changes_malloc_settings_only_if_the_config_opts_in(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "disable_malloc_trim", lambda: calls.append(True))
    run(tmp_path / "default", replace(CONFIG, steps=3))
    assert not calls
    run(tmp_path / "opt_in", replace(CONFIG, steps=3, disable_malloc_trim=True))
    assert calls == [True]
