"""Writing on: greedy tokens a second at batch 1, beside Hugging Face's `generate` on the same weights.

A step reads every weight once, so memory bounds it: bytes of the weights over the bandwidth. A model that the
processor's cache holds may be faster than that bound.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv import checkpoints as hub
from qkv.bench import machine
from qkv.bench.measure import Note, interleaved, speed_ratio
from qkv.bench.peers import hf_gpt
from qkv.bench.result import Column, Result, Table
from qkv.models import GPT

# layers, width, heads, vocabulary, rounds, rounds of a quick run
SIZES = ((4, 256, 8, 256, 15, 5), (6, 384, 6, 1000, 11, 4), (12, 768, 12, 50257, 5, 2))
PROMPT, COUNT = 16, 64
COLUMNS = (
    Column("layers × width"),
    Column("weights", "MB", 1),
    Column("qkv", "tokens/s", 1),
    Column("transformers", "tokens/s", 1),
    Column("qkv is as fast", "×"),
    Column("bound by memory", "tokens/s", 1),
    Column("qkv's share of it", "%", 0),
    Column("same tokens"),
)


def run(quick: bool, note: Note) -> Result:
    about = (
        f"Greedy, batch 1, {COUNT} tokens after a prompt of {PROMPT}, float32, random weights that went from "
        "transformers to qkv through a saved folder. The bound is the bandwidth over the bytes of all weights that a "
        "step reads."
    )
    bandwidth = machine.memory_bandwidth()
    rows = []
    try:
        for layers, width, heads, vocab, rounds, few in SIZES:
            note(f"{layers} × {width}")
            rows.append(_row(layers, width, heads, vocab, few if quick else rounds, bandwidth))
    except ImportError:
        return Result("generate", about, (), ("transformers",))
    return Result("generate", about, (Table("Tokens a second", COLUMNS, tuple(rows)),))


def _row(layers: int, width: int, heads: int, vocab: int, rounds: int, bandwidth: float) -> tuple:
    theirs, ours = twins(layers, width, heads, vocab)
    prompt = torch.randint(0, vocab, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    answers = {"qkv": ours.generate(prompt, COUNT), "transformers": their_generate(theirs, prompt)}
    calls = {"qkv": lambda: ours.generate(prompt, COUNT), "transformers": lambda: their_generate(theirs, prompt)}
    found = interleaved(calls, rounds, warm=0)
    speeds = {name: COUNT / timing.median for name, timing in found.items()}
    size = read_bytes(ours)
    bound = bandwidth / size
    return (
        f"{layers} × {width}",
        size / 1e6,
        speeds["qkv"],
        speeds["transformers"],
        str(speed_ratio(found["qkv"], found["transformers"])),
        bound,
        100 * speeds["qkv"] / bound,
        "yes" if torch.equal(answers["qkv"], answers["transformers"]) else "no",
    )


def twins(layers: int, width: int, heads: int, vocab: int) -> tuple[nn.Module, GPT]:
    """A GPT-2 of Hugging Face's and ours, read from the folder that it wrote."""
    torch.manual_seed(0)
    theirs = hf_gpt(layers, width, heads, vocab, 256).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = hub.load(Path(folder) / "model")
    assert isinstance(ours, GPT)
    return theirs, ours


def their_generate(model, prompt: Tensor) -> Tensor:
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=COUNT,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )


def read_bytes(model: GPT) -> int:
    """The bytes of all weights that a step multiplies by; tables of which it looks up one row do not count."""
    looked_up = {id(model.place.positions.weight)} if isinstance(model.place.positions, nn.Embedding) else set()
    if not model.config.tie_embeddings:
        looked_up.add(id(model.tokens.weight))
    return sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in looked_up)
