"""Benchmark of start-up: the wall time of whole commands in fresh processes, and which heavy modules they import."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from qkv.bench import OnNote
from qkv.bench.measure import time_interleaved
from qkv.bench.report import BenchmarkResult, Column, Table

LAYER = '''"""A small causal self-attention layer."""

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))
'''
# arguments and the target in seconds
COMMANDS = {
    ("--help",): 0.5,
    ("byhand", "--example", "three-tokens"): 0.8,
    ("claims", "show", "copy"): 0.8,
    ("questions", "N1c"): 0.8,
    ("check", "layer.py:CausalSelfAttention", "--contract", "textbook"): 3.5,
    ("look", "qkv:shakespeare", "To be, or not to be"): 3.5,
}
HEAVY = ("torch", "torch._dynamo", "transformers", "matplotlib")
COLUMNS = (
    Column("command"),
    Column("median", "s", 2),
    Column("quartiles", "s"),
    Column("target, at most", "s", 1),
    Column("which of torch, torch._dynamo, transformers and matplotlib it imports"),
)


def benchmark_start_up(quick: bool, on_note: OnNote) -> BenchmarkResult:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "layer.py").write_text(LAYER)
        on_note("starting commands")
        calls = {" ".join(command): lambda command=command: run_command(command, folder) for command in COMMANDS}
        found = time_interleaved(calls, 3 if quick else 7)
        rows = []
        for command, target in COMMANDS.items():
            timing = found[" ".join(command)]
            low, high = timing.quartiles
            imported = [name for name in list_imports(command, folder) if name in HEAVY]
            spread = f"{low:.2f}–{high:.2f}"
            rows.append((f"qkv {' '.join(command)}", timing.median, spread, target, ", ".join(imported) or "none"))
    about = "Wall time of whole commands, each in a fresh process, after one warm-up start that is not measured."
    return BenchmarkResult("start-up", about, (Table("Wall time", COLUMNS, tuple(rows)),))


def run_command(command: tuple[str, ...], folder: str, *options: str) -> str:
    """Run qkv with these arguments in a folder and return what it writes to stderr; RuntimeError if it fails."""
    path = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, *options, "-c", "from qkv.cli.main import main; main()", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"qkv {' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stderr


def list_imports(command: tuple[str, ...], folder: str) -> list[str]:
    """The modules that a command imports, in order."""
    lines = run_command(command, folder, "-X", "importtime").splitlines()
    return [line.rsplit("|", 1)[-1].strip() for line in lines if line.startswith("import time:")]
