"""Whole models: forward pass and training step, beside the same architecture built by others.

Axes: b batch · t tokens · c model width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.bench import machine, peers
from qkv.bench.measure import Call, Note, Timing, interleaved, speed_ratio
from qkv.bench.result import Column, Result, Table

OURS = "qkv"
COLUMNS = (
    Column("", ""),
    Column("parameters"),
    Column("median", "ms", 1),
    Column("quartiles", "ms"),
    Column("share of the matrix peak", "%", 0),
    Column("qkv is as fast", "×"),
)


def run(quick: bool, note: Note) -> Result:
    vit_batch, gpt_batch, rounds = (16, 4, 5) if quick else (64, 16, 15)
    images, classes = torch.randn(vit_batch, 3, 32, 32), torch.randint(0, peers.CLASSES, (vit_batch,))
    texts = torch.randint(0, peers.VOCAB, (2, gpt_batch, peers.LENGTH))
    peak = machine.matrix_speed(torch.float32, torch.device("cpu"))
    gigaflops = 0.0 if peak is None else peak.gigaflops
    tables, absent, notes = [], [], []
    for title, makers, x, y, work in (
        ("ViT, 128 wide, 6 layers", peers.VITS, images, classes, vit_work(vit_batch)),
        ("GPT, 256 wide, 4 layers", peers.GPTS, texts[0], texts[1], gpt_work(gpt_batch)),
    ):
        models, missing = peers.available(makers)
        absent += missing
        for part, calls, times in (
            ("forward", {name: forward(model, x) for name, model in models.items()}, 1),
            ("training step", {name: training(model, x, y) for name, model in models.items()}, 3),
        ):
            note(f"{title}, {part}")
            for model in models.values():
                model.train(part != "forward")
            found = interleaved(calls, rounds, warm=2)
            tables.append(_table(f"{title}, batch {len(x)}: {part}", found, models, times * work, gigaflops))
            notes += _fastest(f"{title}, {part}", found)
    return Result(
        "models",
        "The same sizes, float32, no dropout, one loss (cross-entropy of the logits), one optimiser (AdamW, fused, "
        "learning rate 1e-4) for all. Operations are counted by formula: two for each multiplication by a weight and "
        "of queries, keys and values, causal attention half; a training step is three forward passes. In training "
        "qkv's ViT computes of its last block only what the class is read from, with the same gradients; its share of "
        "the peak counts the operations that the others need.",
        tuple(tables),
        tuple(dict.fromkeys(absent)),
        tuple(notes),
    )


def forward(model: nn.Module, x: Tensor) -> Call:
    @torch.inference_mode()
    def call() -> Tensor:
        return model(x)

    return call


def training(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """Forward, backward and a step of AdamW."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def call() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimiser.step()

    return call


def block_work(tokens: int, width: int, layers: int, *, causal: bool) -> float:
    """Operations of `layers` blocks on one sequence: 12·c² weights a token, and t² scores and averages."""
    attended = 4 * tokens**2 * width * (0.5 if causal else 1.0)
    return layers * (2 * 12 * width**2 * tokens + attended)


def vit_work(batch: int) -> float:
    patches = 2 * 64 * 48 * 128
    return batch * (patches + block_work(65, 128, 6, causal=False) + 2 * 128 * peers.CLASSES)


def gpt_work(batch: int) -> float:
    head = 2 * peers.LENGTH * 256 * peers.VOCAB
    return batch * (block_work(peers.LENGTH, 256, 4, causal=True) + head)


def _table(title: str, found: dict[str, Timing], models: dict[str, nn.Module], work: float, gigaflops: float) -> Table:
    rows = []
    for name, timing in found.items():
        low, high = timing.quartiles
        share = 100 * work / timing.median / 1e9 / gigaflops if gigaflops else None
        ratio = None if name == OURS else str(speed_ratio(found[OURS], timing))
        size = sum(parameter.numel() for parameter in models[name].parameters())
        rows.append((name, size, timing.median * 1e3, f"{low * 1e3:.1f}–{high * 1e3:.1f}", share, ratio))
    return Table(title, COLUMNS, tuple(rows))


def _fastest(what: str, found: dict[str, Timing]) -> list[str]:
    others = {name: timing for name, timing in found.items() if name != OURS}
    if not others:
        return []
    best = min(others, key=lambda name: others[name].median)
    return [f"{what}: qkv is {speed_ratio(found[OURS], others[best])} × as fast as the fastest peer, {best}."]
