"""Benchmark of whole models: forward pass and training step, compared with other libraries' ViT and GPT.

Axes: b batch · t tokens · c model dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.bench import OnNote, machine, other_libraries
from qkv.bench.measure import (
    Call,
    Timing,
    measure_memory,
    run_in_fresh_process,
    speed_ratio,
    time_interleaved,
)
from qkv.bench.other_libraries import Builder, ModelSize
from qkv.bench.report import BenchmarkResult, Column, Table

OURS = "qkv"
COLUMNS = (
    Column("", ""),
    Column("parameters"),
    Column("median", "ms", 1),
    Column("quartiles", "ms"),
    Column("share of the matrix peak", "%", 0),
    Column("speed of qkv relative to it", "×"),
)
STEP_COLUMNS = (*COLUMNS, Column("peak memory", "MiB", 0))
PROFILE_COLUMNS = (Column("operations"), Column("ViT", "%", 0), Column("GPT", "%", 0))
ABOUT = (
    "The same sizes, float32, no dropout, one loss (cross-entropy of the logits) and one optimizer (AdamW, fused, "
    "learning rate 1e-4) for all. Operations are counted by formula: two for each multiplication by a weight "
    "and for each multiplication of queries, keys and values; causal attention counts half. A training step counts as "
    "three forward passes. In training, qkv's ViT computes only the part of its last block that the class is read "
    "from; the gradients are the same. Its share of the peak counts the operations that the others need, and the row "
    "“whole last block” is qkv's ViT without this shortcut. The peak memory is that of one training step in a fresh "
    "process. The profile adds up the time inside PyTorch's operators (torch.profiler) over one training step of qkv's "
    "model at the smaller size."
)
# the kind of work, and the starts of the names of PyTorch's operators
OPERATOR_KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn", "aten::convolution"),
    "attention kernel": ("aten::_scaled_dot_product", "aten::_softmax"),
    "GELU": ("aten::gelu",),
    "layer norm": ("aten::native_layer_norm", "aten::layer_norm"),
    "additions, copies and sums": ("aten::add", "aten::copy_", "aten::sum", "aten::cat", "aten::mul", "aten::clone"),
    "optimizer": ("aten::_fused_adamw", "Optimizer"),
}
SHARED_KINDS = ("matrix products", "attention kernel")
OTHER_KIND = "everything else, with Python's own time"


@dataclass(frozen=True)
class Subject:
    """A kind of model that is compared: its builders, its inputs and its operations in one forward pass."""

    kind: str
    builders: Mapping[str, Builder]
    tokens: int
    causal: bool

    def batch(self, items: int) -> tuple[Tensor, Tensor]:
        """Random inputs and targets."""
        if self.kind == "ViT":
            size = other_libraries.IMAGE_SIZE
            return torch.randn(items, 3, size, size), torch.randint(0, other_libraries.NUM_CLASSES, (items,))
        texts = torch.randint(0, other_libraries.VOCAB_SIZE, (2, items, self.tokens))
        return texts[0], texts[1]

    def flops(self, size: ModelSize) -> float:
        """Operations of a forward pass of one batch: patches or none, blocks, and the classifier or the head."""
        blocks = block_flops(self.tokens, size.dim, size.layers, causal=self.causal)
        patches = 2 * (self.tokens - 1) * 48 * size.dim if self.kind == "ViT" else 0
        outputs = other_libraries.NUM_CLASSES if self.kind == "ViT" else self.tokens * other_libraries.VOCAB_SIZE
        return size.batch * (patches + blocks + 2 * size.dim * outputs)


SUBJECTS = {
    "ViT": Subject("ViT", other_libraries.VITS, 65, causal=False),
    "GPT": Subject("GPT", other_libraries.GPTS, other_libraries.MAX_LENGTH, causal=True),
}
SMALL = {"ViT": ModelSize(128, 6, 4, batch=64), "GPT": ModelSize(256, 4, 8, batch=16)}
LARGE = {"ViT": ModelSize(384, 12, 6, batch=16), "GPT": ModelSize(512, 8, 8, batch=8)}


def benchmark_models(quick: bool, on_note: OnNote) -> BenchmarkResult:
    peak = machine.matrix_speed(torch.float32, torch.device("cpu"))
    gigaflops = 0.0 if peak is None else peak.gigaflops
    tables, not_installed, notes = [], [], []
    rounds = 5 if quick else 15
    plan = [(kind, replace(size, batch=size.batch // 4) if quick else size, rounds) for kind, size in SMALL.items()]
    plan += [] if quick else [(kind, size, 7) for kind, size in LARGE.items()]
    for kind, size, rounds in plan:
        subject = SUBJECTS[kind]
        x, y = subject.batch(size.batch)
        models, missing = other_libraries.build_available(subject.builders, size)
        not_installed += missing
        title = f"{kind}, dimension {size.dim}, {size.layers} layers"
        for part, calls, passes in (
            ("forward", {name: forward_call(model, x) for name, model in models.items()}, 1),
            ("training step", {name: training_call(model, x, y) for name, model in models.items()}, 3),
        ):
            on_note(f"{title}, {part}")
            for model in models.values():
                model.train(part != "forward")
            found = time_interleaved(calls, rounds, warmup=2)
            memory = _measure_step_memory(kind, size, list(models)) if part == "training step" and not quick else {}
            flops = passes * subject.flops(size)
            tables.append(_make_table(f"{title}, batch {len(x)}: {part}", found, models, flops, gigaflops, memory))
            notes += _compare_with_fastest(f"{title}, {part}", found)
    on_note("profile")
    shares = {kind: profile_step(kind, size) for kind, size, _ in plan[:2]}
    tables.append(_make_profile(shares))
    notes += explain_limit(shares)
    return BenchmarkResult("models", ABOUT, tuple(tables), tuple(dict.fromkeys(not_installed)), tuple(notes))


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


def step_memory(kind: str, name: str, dim: int, layers: int, heads: int, batch: int) -> float:
    """MiB by which one training step raises the peak memory; run it in a fresh process."""
    size, subject = ModelSize(dim, layers, heads, batch), SUBJECTS[kind]
    model = subject.builders[name](size).train()
    return measure_memory(training_call(model, *subject.batch(batch))) / 2**20


def _measure_step_memory(kind: str, size: ModelSize, names: list[str]) -> dict[str, float]:
    shape = (size.dim, size.layers, size.heads, size.batch)
    return {name: run_in_fresh_process("qkv.bench.models:step_memory", kind, name, *shape) for name in names}


def profile_step(kind: str, size: ModelSize) -> dict[str, float]:
    """The share of a training step of qkv's model that each kind of operator takes, in percent."""
    subject = SUBJECTS[kind]
    call = training_call(subject.builders[OURS](size).train(), *subject.batch(size.batch))
    call()
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, torch.profiler.record_function("training step"):
        call()
    events = {event.key: event for event in profile.key_averages()}
    whole = events["training step"].cpu_time_total
    shares = dict.fromkeys((*OPERATOR_KINDS, OTHER_KIND), 0.0)
    for name, event in events.items():
        found = (kind for kind, starts in OPERATOR_KINDS.items() if name.startswith(starts))
        shares[next(found, OTHER_KIND)] += 100 * event.self_cpu_time_total / whole
    return shares


def explain_limit(shares: dict[str, dict[str, float]]) -> list[str]:
    """How much faster each step could be if it consisted of nothing but the operators that all libraries share."""
    notes = []
    for model, percent in shares.items():
        shared = sum(percent[kind] for kind in SHARED_KINDS)
        notes.append(
            f"{model}, training step: matrix products and PyTorch's attention kernel take {shared:.0f} % of it. All "
            f"libraries call them with the same sizes, and the products already run near the machine's peak. If "
            f"everything else took no time, the step would be {100 / shared:.2f} × as fast."
        )
    return notes


def _make_profile(shares: dict[str, dict[str, float]]) -> Table:
    rows = tuple((kind, *(shares[model][kind] for model in ("ViT", "GPT"))) for kind in (*OPERATOR_KINDS, OTHER_KIND))
    return Table("Profile of qkv's training step", PROFILE_COLUMNS, rows)


def _make_table(
    title: str,
    found: dict[str, Timing],
    models: dict[str, nn.Module],
    flops: float,
    gigaflops: float,
    memory: dict[str, float],
) -> Table:
    rows = []
    for name, timing in found.items():
        low, high = timing.quartiles
        share = 100 * flops / timing.median / 1e9 / gigaflops if gigaflops else None
        ratio = None if name == OURS else str(speed_ratio(found[OURS], timing))
        parameters = sum(parameter.numel() for parameter in models[name].parameters())
        row = (name, parameters, timing.median * 1e3, f"{low * 1e3:.1f}–{high * 1e3:.1f}", share, ratio)
        rows.append((*row, memory[name]) if memory else row)
    return Table(title, STEP_COLUMNS if memory else COLUMNS, tuple(rows))


def _compare_with_fastest(what: str, found: dict[str, Timing]) -> list[str]:
    others = {name: timing for name, timing in found.items() if not name.startswith(OURS)}
    if not others:
        return []
    best = min(others, key=lambda name: others[name].median)
    ratio = speed_ratio(found[OURS], others[best])
    return [f"{what}: the speed of qkv is {ratio} × that of {best}, the fastest of the others."]
