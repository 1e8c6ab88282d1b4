"""Recording overhead and the cost of a trace of a long text: python bench/recording_cost.py [tokens]

Times are processor time on one thread, so that other load on the machine counts little.
"""

import sys

import torch

from qkv.bench.look import measure_long_text, measure_recording


def main(tokens: int) -> None:
    torch.set_num_threads(1)
    recorded = measure_recording(1024)
    print(
        f"GPT of 4 layers, 1,024 tokens: plain {recorded['plain_ms']:.0f} ms, recorded {recorded['recorded_ms']:.0f} ms"
    )
    long = measure_long_text(tokens)
    print(f"1 layer, 8 heads of dimension 64, {tokens:,} tokens:")
    print(f"pooled map 512 × 512 of one head: {long['map_seconds']:.2f} s")
    print(f"exact windows 256 × 256, the slowest of 16: {long['window_seconds']:.3f} s")
    print(f"peak memory {long['extra_mb']:.0f} MB in addition to the plain run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32768)
