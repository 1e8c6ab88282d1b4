"""What recording costs a run, and what a trace of a long text costs: python bench/trace_cost.py [tokens]

Times are of this process on one thread, so that other work on the machine counts little.
"""

import resource
import sys
import time
from collections.abc import Callable

import torch

import qkv


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The median processor time of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


def peak() -> float:
    """The most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def recording(model: torch.nn.Module, call: Callable[[], object]) -> Callable[[], qkv.trace.Trace]:
    def run() -> qkv.trace.Trace:
        with qkv.trace.record(model) as trace:
            call()
        return trace

    return run


@torch.no_grad()
def main(tokens: int) -> None:
    torch.set_num_threads(1)
    model = qkv.models.GPT(qkv.models.GPTConfig(vocab=1000, length=1024, width=256, layers=4, heads=8)).eval()
    text = torch.randint(0, 1000, (1, 1024))
    recorded = recording(model, lambda: model(text))
    recorded(), model(text)
    plain, watched = seconds(lambda: model(text), 9), seconds(recorded, 9)
    print(f"GPT of 4 layers, 1,024 tokens: plain {plain * 1e3:.0f} ms, recorded {watched * 1e3:.0f} ms")
    layer, x = qkv.MultiHeadAttention(512, 8).eval(), torch.randn(1, tokens, 512)
    layer(x, causal=True)
    before = peak()
    trace = recording(layer, lambda: layer(x, causal=True))()
    print(f"1 layer, 8 heads of 64, {tokens:,} tokens: recording added {peak() - before:.0f} MB to the peak")
    print(f"pooled map 512 × 512 of one head: {seconds(lambda: trace.map(0, 3, 512)):.2f} s")
    rows = range(tokens - 256, tokens)
    print(f"exact window 256 × 256 of the last rows: {seconds(lambda: trace.weights(0, 3, 0, rows, rows), 5):.3f} s")
    print(f"peak memory {peak():.0f} MB, {peak() - before:.0f} MB over the plain run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32768)
