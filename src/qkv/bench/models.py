"""Benchmark of whole models: forward pass and training step, compared with other libraries' ViT and GPT.

Axes: b batch · t tokens · c model dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.bench import OnNote, machine, other_libraries
from qkv.bench.measure import Call, Timing, speed_ratio, time_interleaved
from qkv.bench.report import BenchmarkResult, Column, Table

OURS = "qkv"
COLUMNS = (
    Column("", ""),
    Column("parameters"),
    Column("median", "ms", 1),
    Column("quartiles", "ms"),
    Column("share of the matrix peak", "%", 0),
    Column("qkv is as fast", "×"),
)


def benchmark_models(quick: bool, on_note: OnNote) -> BenchmarkResult:
    vit_batch, gpt_batch, rounds = (16, 4, 5) if quick else (64, 16, 15)
    images = torch.randn(vit_batch, 3, 32, 32)
    classes = torch.randint(0, other_libraries.NUM_CLASSES, (vit_batch,))
    texts = torch.randint(0, other_libraries.VOCAB_SIZE, (2, gpt_batch, other_libraries.MAX_LENGTH))
    peak = machine.matrix_speed(torch.float32, torch.device("cpu"))
    gigaflops = 0.0 if peak is None else peak.gigaflops
    tables, not_installed, notes = [], [], []
    for title, builders, x, y, flops in (
        ("ViT, dimension 128, 6 layers", other_libraries.VITS, images, classes, vit_flops(vit_batch)),
        ("GPT, dimension 256, 4 layers", other_libraries.GPTS, texts[0], texts[1], gpt_flops(gpt_batch)),
    ):
        models, missing = other_libraries.build_available(builders)
        not_installed += missing
        for part, calls, passes in (
            ("forward", {name: forward_call(model, x) for name, model in models.items()}, 1),
            ("training step", {name: training_call(model, x, y) for name, model in models.items()}, 3),
        ):
            on_note(f"{title}, {part}")
            for model in models.values():
                model.train(part != "forward")
            found = time_interleaved(calls, rounds, warmup=2)
            tables.append(_make_table(f"{title}, batch {len(x)}: {part}", found, models, passes * flops, gigaflops))
            notes += _compare_with_fastest(f"{title}, {part}", found)
    return BenchmarkResult(
        "models",
        "The same sizes, float32, no dropout, one loss (cross-entropy of the logits) and one optimizer (AdamW, fused, "
        "learning rate 1e-4) for all. Operations are counted by formula: two for each multiplication by a weight and "
        "of queries, keys and values, half of that for causal attention; a training step counts as three forward "
        "passes. In training qkv's ViT computes only the part of its last block that the class is read from, with the "
        "same gradients; its share of the peak counts the operations that the others need.",
        tuple(tables),
        tuple(dict.fromkeys(not_installed)),
        tuple(notes),
    )


def forward_call(model: nn.Module, x: Tensor) -> Call:
    @torch.inference_mode()
    def call() -> Tensor:
        return model(x)

    return call


def training_call(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """Forward, backward and one step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def call() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()

    return call


def block_flops(tokens: int, dim: int, layers: int, *, causal: bool) -> float:
    """Operations of `layers` blocks on one sequence: 12·c² weights a token, and t² scores and averages."""
    attended = 4 * tokens**2 * dim * (0.5 if causal else 1.0)
    return layers * (2 * 12 * dim**2 * tokens + attended)


def vit_flops(batch: int) -> float:
    patches = 2 * 64 * 48 * 128
    return batch * (patches + block_flops(65, 128, 6, causal=False) + 2 * 128 * other_libraries.NUM_CLASSES)


def gpt_flops(batch: int) -> float:
    length = other_libraries.MAX_LENGTH
    head = 2 * length * 256 * other_libraries.VOCAB_SIZE
    return batch * (block_flops(length, 256, 4, causal=True) + head)


def _make_table(
    title: str, found: dict[str, Timing], models: dict[str, nn.Module], flops: float, gigaflops: float
) -> Table:
    rows = []
    for name, timing in found.items():
        low, high = timing.quartiles
        share = 100 * flops / timing.median / 1e9 / gigaflops if gigaflops else None
        ratio = None if name == OURS else str(speed_ratio(found[OURS], timing))
        parameters = sum(parameter.numel() for parameter in models[name].parameters())
        rows.append((name, parameters, timing.median * 1e3, f"{low * 1e3:.1f}–{high * 1e3:.1f}", share, ratio))
    return Table(title, COLUMNS, tuple(rows))


def _compare_with_fastest(what: str, found: dict[str, Timing]) -> list[str]:
    others = {name: timing for name, timing in found.items() if name != OURS}
    if not others:
        return []
    best = min(others, key=lambda name: others[name].median)
    ratio = speed_ratio(found[OURS], others[best])
    return [f"{what}: qkv is {ratio} × as fast as the fastest of the others, {best}."]
