"""A translator's training step on a CPU, with freed memory given back and kept, in turn: python bench/memory.py"""

import subprocess
import sys
import time

import torch

from qkv.models import Seq2Seq, Seq2SeqConfig
from qkv.training.memory import keep_freed

PLACES, LENGTHS = 2048, (8, 10, 12, 14, 16, 20, 24, 32)  # of a batch; its texts are equally long
WARM_UP, EPOCHS, ROUNDS = 1, 3, 3


def step_milliseconds() -> float:
    """Forward and backward, of batches that differ in shape as real ones do."""
    torch.manual_seed(0)
    config = Seq2SeqConfig(vocab_size=4000, dim=128, encoder_layers=4, decoder_layers=4, heads=4, mlp_dim=512)
    model, began = Seq2Seq(config), 0.0
    for epoch in range(WARM_UP + EPOCHS):
        if epoch == WARM_UP:
            began = time.perf_counter()
        for length in LENGTHS:
            source, target = torch.randint(1, 4000, (2, PLACES // length, length))
            model(source, target).logsumexp(-1).sum().backward()
            model.zero_grad()
    return 1000 * (time.perf_counter() - began) / (EPOCHS * len(LENGTHS))


def elsewhere(how: str) -> float:
    """The same, measured in a process of its own."""
    return float(subprocess.run([sys.executable, __file__, how], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:]:
        if sys.argv[1] == "kept" and not keep_freed():
            sys.exit("the C library here is not glibc: nothing to compare")
        print(step_milliseconds())
        sys.exit()
    rounds = [[elsewhere(how) for how in ("given back", "kept")] for _ in range(ROUNDS)]
    back, kept = (min(times) for times in zip(*rounds, strict=True))
    print(f"a step, {torch.get_num_threads()} threads, best of {ROUNDS}: ", end="")
    print(f"freed memory given back {back:.0f} ms, kept {kept:.0f} ms, {back / kept:.2f} times as fast")
