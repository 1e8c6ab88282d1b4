"""What the training loop costs over the bare step: forward, backward, optimiser.

By turns, in one process: before the loop gets its next batch, a twin of its model makes a bare step. So both have the
same machine, with whatever else it is doing. The loop's time is from a batch given to the next one asked for.
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

from qkv import training as loop
from qkv.bench.measure import Note
from qkv.bench.result import Column, Result, Table
from qkv.data.batches import Batch
from qkv.models import PRESETS, build
from qkv.training.optimizers import make_optimisers

MODELS = ("vit", "gpt")


@dataclass(frozen=True)
class Cost:
    """How long a step takes, bare and in the loop: medians, in seconds.

    overhead: the median of what the loop's steps took over the bare ones beside them, as a share of a bare one.
    """

    model: str
    parameters: int
    items: int
    steps: int
    bare: float
    loop: float
    overhead: float
    threads: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(quick: bool, note: Note) -> Result:
    """The benchmark: the loop beside the bare step."""
    columns = (
        Column("model"),
        Column("parameters"),
        Column("bare step", "ms", 1),
        Column("step in the loop", "ms", 1),
        Column("more", "%", 2),
    )
    costs = measured(steps=10 if quick else 30, note=note)
    rows = tuple((c.model, c.parameters, c.bare * 1e3, c.loop * 1e3, 100 * c.overhead) for c in costs)
    about = (
        "The course's ViT and GPT, 8 items a batch: forward, backward and AdamW written out, beside the same step made "
        "by the training loop, in turns."
    )
    return Result("train", about, (Table("What the loop costs", columns, rows),))


def measured(
    models: Sequence[str] = MODELS,
    *,
    steps: int = 20,
    items: int = 8,
    note: Note = lambda _: None,
) -> list[Cost]:
    """Measure each of the models: the course's ViT and GPT, on `items` random pictures or rows of 128 letters."""
    if unknown := [name for name in models if name not in MODELS]:
        raise ValueError(f"the loop is measured with {' and '.join(MODELS)}; got {unknown[0]!r}")
    if steps < 2 or items < 1:
        raise ValueError(f"steps are at least 2 and items 1; got {steps} and {items}")
    return [_measured(name, steps, items, note) for name in models]


class _Alternating:
    """One batch again and again; each time it is asked for, the bare step is made and timed first."""

    def __init__(self, batch: Batch, bare: Callable[[Batch], None], steps: int) -> None:
        self.content, self.bare, self.steps = batch, bare, steps
        self.given: float | None = None
        self.loops: list[float] = []
        self.bares: list[float] = []
        self.threads = torch.get_num_threads()  # the loop has batches made by one

    def count(self, epoch: int) -> int:
        return self.steps

    def batch(self, epoch: int, index: int) -> Batch:
        asked = time.perf_counter()
        if self.given is not None:
            self.loops.append(asked - self.given)
        torch.set_num_threads(self.threads)
        began = time.perf_counter()
        self.bare(self.content)
        self.bares.append(time.perf_counter() - began)
        self.given = time.perf_counter()
        return self.content


def _measured(name: str, steps: int, items: int, note: Callable[[str], None]) -> Cost:
    note(f"measuring the loop with {name}")
    torch.manual_seed(0)
    model = build(PRESETS[f"course-{name}"])
    twin = copy.deepcopy(model)
    settings = loop.Settings(steps=steps + 2, saving=loop.Saving(log_every=10))
    batch, objective = _task(name, items)
    batches = _Alternating(batch, _bare_step(name, twin, settings), steps + 2)
    with tempfile.TemporaryDirectory() as folder:
        loop.train(model, batches, objective, settings, folder)
    loops, bares = batches.loops[1:], batches.bares[1 : len(batches.loops)]  # the first step allocates
    over = [took - bare for took, bare in zip(loops, bares, strict=True)]
    bare = statistics.median(bares)
    return Cost(
        model=name,
        parameters=model.num_parameters,
        items=items,
        steps=len(loops),
        bare=bare,
        loop=statistics.median(loops),
        overhead=statistics.median(over) / bare,
        threads=torch.get_num_threads(),
    )


def _task(name: str, items: int) -> tuple[Batch, loop.Objective]:
    if name == "vit":
        batch = {"images": torch.randn(items, 3, 32, 32), "targets": torch.randint(0, 100, (items,))}
        return batch, loop.classification()
    tokens = torch.randint(1, 256, (items, 129))
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "scored": torch.ones(items, 128, dtype=torch.bool)}
    return batch, loop.language_model()


def _bare_step(name: str, model: nn.Module, settings: loop.Settings) -> Callable[[Batch], None]:
    (optimiser,) = make_optimisers(model, settings.optimiser)
    model.train()

    def step(batch: Batch) -> None:
        optimiser.zero_grad(set_to_none=True)
        logits: Tensor = model(batch["images"] if name == "vit" else batch["tokens"])
        F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten()).backward()
        optimiser.step()

    return step
