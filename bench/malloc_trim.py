"""Training step on a CPU with malloc trimming on and off (disable_malloc_trim): python bench/malloc_trim.py"""

import subprocess
import sys
import time

import torch

from qkv.models import Seq2Seq, Seq2SeqConfig
from qkv.training.malloc import disable_malloc_trim

TOKENS, LENGTHS = 2048, (8, 10, 12, 14, 16, 20, 24, 32)  # of a batch, and of its texts
WARM_UP, EPOCHS, ROUNDS = 1, 3, 3


def step_milliseconds() -> float:
    """Mean time of forward and backward over batches of different shapes, as in real training."""
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocab_size=4000, dim=128, encoder_layers=4, decoder_layers=4, heads=4, mlp_dim=512)
    model, start = Seq2Seq(config), 0.0
    for epoch in range(WARM_UP + EPOCHS):
        if epoch == WARM_UP:
            start = time.perf_counter()
        for length in LENGTHS:
            source, target = torch.randint(1, 4000, (2, TOKENS // length, length))
            model(source, target).logsumexp(-1).sum().backward()
            model.zero_grad()
    return 1000 * (time.perf_counter() - start) / (EPOCHS * len(LENGTHS))


def measure_in_process(mode: str) -> float:
    """The same in a new process."""
    return float(subprocess.run([sys.executable, __file__, mode], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:]:
        if sys.argv[1] == "off" and not disable_malloc_trim():
            sys.exit("the C library is not glibc: there is nothing to compare")
        print(step_milliseconds())
        sys.exit()
    rounds = [[measure_in_process(mode) for mode in ("on", "off")] for _ in range(ROUNDS)]
    on, off = (min(times) for times in zip(*rounds, strict=True))
    print(f"training step, {torch.get_num_threads()} threads, best of {ROUNDS}: ", end="")
    print(f"malloc trimming on {on:.0f} ms, off {off:.0f} ms, {on / off:.2f} times as fast")
