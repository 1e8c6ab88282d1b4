"""Benchmark of the training loop's overhead over a bare step of forward, backward and optimizer.

Both take turns in one process: before the loop gets its next batch, a copy of its model makes a bare step, so that
other load on the machine affects both equally. The loop's time is from one batch to its request for the next.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import training
from qkv.bench import OnNote
from qkv.bench.report import BenchmarkResult, Column, Table
from qkv.data.batches import Batch
from qkv.models import PRESETS, build
from qkv.training.optimizers import make_optimizers

MODELS = {"vit": "nyu-hw4-vit", "gpt": "cs224n-a5-gpt"}  # name: preset


@dataclass(frozen=True)
class LoopOverhead:
    """The median seconds of a step, bare and in the loop.

    overhead: the median extra time of the loop's steps over the bare ones next to them, as a share of a bare step.
    """

    model: str
    parameters: int
    batch_size: int
    steps: int
    bare: float
    loop: float
    overhead: float
    threads: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def benchmark_training_loop(quick: bool, on_note: OnNote) -> BenchmarkResult:
    columns = (
        Column("model"),
        Column("parameters"),
        Column("bare step", "ms", 1),
        Column("step in the loop", "ms", 1),
        Column("overhead", "%", 2),
    )
    results = measure_overhead(steps=10 if quick else 30, on_note=on_note)
    rows = tuple((r.model, r.parameters, r.bare * 1e3, r.loop * 1e3, 100 * r.overhead) for r in results)
    about = (
        "The ViT of NYU DL HW4 and the GPT of CS224N A5, 8 items a batch: forward, backward and AdamW in plain "
        "PyTorch, alternating with the same step made by the training loop."
    )
    return BenchmarkResult("train", about, (Table("Overhead of the training loop", columns, rows),))


def measure_overhead(
    models: Sequence[str] = tuple(MODELS), *, steps: int = 20, batch_size: int = 8, on_note: OnNote = lambda _: None
) -> list[LoopOverhead]:
    """Measure each model, vit or gpt, on batches of random images or of 128 random characters."""
    if unknown := [name for name in models if name not in MODELS]:
        raise ValueError(f"unknown model {unknown[0]!r}; expected {' or '.join(MODELS)}")
    if steps < 2 or batch_size < 1:
        raise ValueError(f"steps must be at least 2 and batch_size at least 1, got {steps} and {batch_size}")
    return [_measure_model(name, steps, batch_size, on_note) for name in models]


class _AlternatingBatches:
    """One batch again and again; each request for it first makes and times a bare step."""

    def __init__(self, batch: Batch, bare_step: Callable[[Batch], None], steps: int) -> None:
        self.content, self.bare_step, self.steps = batch, bare_step, steps
        self.handed_out: float | None = None  # when the loop got its last batch
        self.loop_times: list[float] = []
        self.bare_times: list[float] = []
        self.threads = torch.get_num_threads()  # the loop asks for batches with one thread

    def num_batches(self, epoch: int) -> int:
        return self.steps

    def batch(self, epoch: int, index: int) -> Batch:
        requested = time.perf_counter()
        if self.handed_out is not None:
            self.loop_times.append(requested - self.handed_out)
        torch.set_num_threads(self.threads)
        start = time.perf_counter()
        self.bare_step(self.content)
        self.bare_times.append(time.perf_counter() - start)
        self.handed_out = time.perf_counter()
        return self.content


def _measure_model(name: str, steps: int, batch_size: int, on_note: OnNote) -> LoopOverhead:
    on_note(f"measuring the loop with {name}")
    torch.manual_seed(0)
    model = build(PRESETS[MODELS[name]])
    twin = copy.deepcopy(model)
    config = training.TrainConfig(steps=steps + 2, checkpoint=training.CheckpointConfig(log_every=10))
    batch, objective = _make_task(name, batch_size)
    batches = _AlternatingBatches(batch, _make_bare_step(name, twin, config), steps + 2)
    with tempfile.TemporaryDirectory() as folder:
        training.train(model, batches, objective, config, folder)
    loop_times, bare_times = batches.loop_times[1:], batches.bare_times[1 : len(batches.loop_times)]  # warm-up
    bare = statistics.median(bare_times)
    extra = [loop - bare for loop, bare in zip(loop_times, bare_times, strict=True)]
    return LoopOverhead(
        model=name,
        parameters=model.num_parameters,
        batch_size=batch_size,
        steps=len(loop_times),
        bare=bare,
        loop=statistics.median(loop_times),
        overhead=statistics.median(extra) / bare,
        threads=torch.get_num_threads(),
    )


def _make_task(name: str, batch_size: int) -> tuple[Batch, training.Objective]:
    if name == "vit":
        batch = {"images": torch.randn(batch_size, 3, 32, 32), "targets": torch.randint(0, 100, (batch_size,))}
        return batch, training.classification()
    tokens = torch.randint(1, 256, (batch_size, 129))
    loss_mask = torch.ones(batch_size, 128, dtype=torch.bool)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "loss_mask": loss_mask}, training.language_model()


def _make_bare_step(name: str, model: nn.Module, config: training.TrainConfig) -> Callable[[Batch], None]:
    (optimizer,) = make_optimizers(model, config.optimizer)
    model.train()

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        logits: Tensor = model(batch["images"] if name == "vit" else batch["tokens"])
        F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten()).backward()
        optimizer.step()

    return step
