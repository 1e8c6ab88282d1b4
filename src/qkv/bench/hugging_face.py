"""Benchmarks compared with Hugging Face transformers: generation speed and checkpoint loading.

A generation step reads every weight once, so memory bandwidth bounds it: bytes of the weights over the bandwidth. A
model that fits into the processor's cache may be faster than that bound.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv import checkpoints
from qkv.bench import OnNote, machine
from qkv.bench.measure import speed_ratio, time_interleaved
from qkv.bench.other_libraries import hf_gpt
from qkv.bench.report import BenchmarkResult, Column, Table
from qkv.models import GPT

# layers, dim, heads, vocabulary, rounds, rounds of a quick run
SIZES = ((4, 256, 8, 256, 15, 5), (6, 384, 6, 1000, 11, 4), (12, 768, 12, 50257, 5, 2))
PROMPT_TOKENS, NEW_TOKENS = 16, 64
GENERATE_COLUMNS = (
    Column("layers × dimension"),
    Column("weights", "MB", 1),
    Column("qkv", "tokens/s", 1),
    Column("transformers", "tokens/s", 1),
    Column("speed of qkv relative to it", "×"),
    Column("memory bound", "tokens/s", 1),
    Column("qkv's share of it", "%", 0),
    Column("same tokens"),
)
LOAD_COLUMNS = (
    Column("", ""),
    Column("parameters"),
    Column("median", "ms", 0),
    Column("quartiles", "ms"),
    Column("speed relative to from_pretrained", "×"),
)


def benchmark_generate(quick: bool, on_note: OnNote) -> BenchmarkResult:
    about = (
        f"Greedy generation, batch 1, {NEW_TOKENS} tokens after a prompt of {PROMPT_TOKENS}, float32, random weights "
        "saved by transformers and loaded by qkv. The memory bound is the bandwidth over the bytes of all weights that "
        "a step reads."
    )
    bandwidth = machine.memory_bandwidth()
    rows = []
    try:
        for layers, dim, heads, vocab_size, rounds, quick_rounds in SIZES:
            on_note(f"{layers} × {dim}")
            rows.append(_generate_row(layers, dim, heads, vocab_size, quick_rounds if quick else rounds, bandwidth))
    except ImportError:
        return BenchmarkResult("generate", about, (), ("transformers",))
    return BenchmarkResult("generate", about, (Table("Tokens a second", GENERATE_COLUMNS, tuple(rows)),))


def _generate_row(layers: int, dim: int, heads: int, vocab_size: int, rounds: int, bandwidth: float) -> tuple:
    theirs, ours = _build_twins(layers, dim, heads, vocab_size)
    prompt = torch.randint(0, vocab_size, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    calls = {
        "qkv": lambda: ours.generate(prompt, NEW_TOKENS),
        "transformers": lambda: _generate_by_transformers(theirs, prompt),
    }
    outputs = {name: call() for name, call in calls.items()}
    found = time_interleaved(calls, rounds, warmup=0)
    speeds = {name: NEW_TOKENS / timing.median for name, timing in found.items()}
    size = bytes_read_per_step(ours)
    bound = bandwidth / size
    return (
        f"{layers} × {dim}",
        size / 1e6,
        speeds["qkv"],
        speeds["transformers"],
        str(speed_ratio(found["qkv"], found["transformers"])),
        bound,
        100 * speeds["qkv"] / bound,
        "yes" if torch.equal(outputs["qkv"], outputs["transformers"]) else "no",
    )


def _build_twins(layers: int, dim: int, heads: int, vocab_size: int) -> tuple[nn.Module, GPT]:
    """A Hugging Face GPT-2 and the same model loaded by qkv from its saved folder."""
    torch.manual_seed(0)
    theirs = hf_gpt(layers, dim, heads, vocab_size, 256).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = checkpoints.load(Path(folder) / "model")
    assert isinstance(ours, GPT)
    return theirs, ours


def _generate_by_transformers(model: Any, prompt: Tensor) -> Tensor:
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )


def bytes_read_per_step(model: GPT) -> int:
    """The bytes of all weights that a step multiplies by; embedding tables, of which it reads one row, do not count."""
    tables = (
        {id(model.position_embedding.positions.weight)}
        if isinstance(model.position_embedding.positions, nn.Embedding)
        else set()
    )
    if not model.config.tie_embeddings:
        tables.add(id(model.tokens.weight))
    return sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in tables)


def benchmark_load(quick: bool, on_note: OnNote) -> BenchmarkResult:
    layers, dim, heads, rounds = (6, 384, 6, 5) if quick else (12, 768, 12, 7)
    about = (
        f"A GPT-2 of {layers} layers × {dim} with 50,257 tokens, float32, from a folder in the page cache. qkv maps "
        "the weights of its own folder and verifies their checksum, and copies those of other folders; transformers "
        "maps the file."
    )
    try:
        import transformers

        theirs = hf_gpt(layers, dim, heads, 50257, 256)
    except ImportError:
        return BenchmarkResult("load", about, (), ("transformers",))
    on_note("writing the folders")
    with tempfile.TemporaryDirectory() as folder:
        hf_folder, qkv_folder = Path(folder) / "hf", Path(folder) / "qkv"
        theirs.save_pretrained(hf_folder)
        checkpoints.load(hf_folder).save(qkv_folder)
        parameters = sum(parameter.numel() for parameter in theirs.parameters())
        del theirs
        on_note("loading")
        calls = {
            "qkv.load, our folder": lambda: checkpoints.load(qkv_folder),
            "qkv.load, their folder": lambda: checkpoints.load(hf_folder),
            "from_pretrained, their folder": lambda: transformers.GPT2LMHeadModel.from_pretrained(hf_folder),
        }
        with torch.no_grad():
            found = time_interleaved(calls, rounds)
    base = found["from_pretrained, their folder"]
    rows = []
    for name, timing in found.items():
        low, high = timing.quartiles
        ratio = None if timing is base else str(speed_ratio(timing, base))
        rows.append((name, parameters, timing.median * 1e3, f"{low * 1e3:.0f}–{high * 1e3:.0f}", ratio))
    return BenchmarkResult("load", about, (Table("Time to load", LOAD_COLUMNS, tuple(rows)),))
