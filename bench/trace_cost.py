"""What recording costs a run, and what a trace of a long text costs: python bench/trace_cost.py [tokens]

Times are of this process on one thread, so that other work on the machine counts little.
"""

import sys

import torch

from qkv.bench.look import long_text, recording


def main(tokens: int) -> None:
    torch.set_num_threads(1)
    watched = recording(1024)
    print(
        f"GPT of 4 layers, 1,024 tokens: plain {watched['plain_ms']:.0f} ms, recorded {watched['recorded_ms']:.0f} ms"
    )
    long = long_text(tokens)
    print(f"1 layer, 8 heads of 64, {tokens:,} tokens:")
    print(f"pooled map 512 × 512 of one head: {long['map_seconds']:.2f} s")
    print(f"exact windows 256 × 256, the slowest of 16: {long['window_seconds']:.3f} s")
    print(f"peak memory {long['more_mb']:.0f} MB over the plain run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32768)
