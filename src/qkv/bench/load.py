"""Loading a checkpoint: a folder of safetensors, ours and Hugging Face's, beside from_pretrained."""

import tempfile
from pathlib import Path

import torch

from qkv import checkpoints as hub
from qkv.bench.measure import Note, interleaved, speed_ratio
from qkv.bench.peers import hf_gpt
from qkv.bench.result import Column, Result, Table


def run(quick: bool, note: Note) -> Result:
    layers, width, heads, rounds = (6, 384, 6, 5) if quick else (12, 768, 12, 7)
    about = (
        f"A GPT-2 of {layers} layers × {width} with 50,257 tokens, float32, from a folder that the system has in "
        "memory. qkv copies the weights out of the file and compares its own folder's with their SHA-256; transformers "
        "maps the file."
    )
    try:
        import transformers

        theirs = hf_gpt(layers, width, heads, 50257, 256)
    except ImportError:
        return Result("load", about, (), ("transformers",))
    note("writing the folders")
    with tempfile.TemporaryDirectory() as folder:
        foreign, own = Path(folder) / "foreign", Path(folder) / "own"
        theirs.save_pretrained(foreign)
        hub.load(foreign).save(own)
        size = sum(parameter.numel() for parameter in theirs.parameters())
        del theirs
        note("loading")
        with torch.no_grad():
            found = interleaved(
                {
                    "qkv.load, our folder": lambda: hub.load(own),
                    "qkv.load, their folder": lambda: hub.load(foreign),
                    "from_pretrained, their folder": lambda: transformers.GPT2LMHeadModel.from_pretrained(foreign),
                },
                rounds,
            )
    base = found["from_pretrained, their folder"]
    rows = []
    for name, timing in found.items():
        low, high = timing.quartiles
        ratio = None if timing is base else str(speed_ratio(timing, base))
        rows.append((name, size, timing.median * 1e3, f"{low * 1e3:.0f}–{high * 1e3:.0f}", ratio))
    columns = (
        Column("", ""),
        Column("parameters"),
        Column("median", "ms", 0),
        Column("quartiles", "ms"),
        Column("as fast as from_pretrained", "×"),
    )
    return Result("load", about, (Table("Time to load", columns, tuple(rows)),))
