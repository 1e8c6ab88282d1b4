"""A run: model, optimisers, place in the data, sums of what was measured; and the step that moves all of them."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.batches import Batch, Batches, mixed
from qkv.training.config import Settings
from qkv.training.diagnosis import NOTHING, NotFiniteError, first_cause
from qkv.training.distributed import World
from qkv.training.ema import Average
from qkv.training.gradients import Computer
from qkv.training.loader import Position
from qkv.training.metrics_log import plain
from qkv.training.optimizers import make_optimisers, set_rate
from qkv.training.schedules import factor
from qkv.training.score import Objective
from qkv.training.shards import gathered
from qkv.training.snapshot import Snapshot, environment, load_into, read_state

EVALUATION = -1  # no batch of a step has this number: what evaluation draws is of its own


class Run:
    """The state of training, and how a step changes it. Everything random follows from (seed, step, batch, process)."""

    def __init__(self, model: nn.Module, objective: Objective, settings: Settings, world: World) -> None:
        self.model, self.settings, self.world = model, settings, world
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(f"{type(model).__name__} has no parameter to train: all are frozen, or there are none")
        self.computer = Computer(model, objective, world, settings.parallel, settings.dtype)
        self.optimisers = make_optimisers(model, settings.optimiser)
        self.average = Average(model, settings.average) if settings.average else None
        self.parameters = [p for optimiser in self.optimisers for g in optimiser.param_groups for p in g["params"]]
        self.step = 0
        self.position = Position()  # of the next batch
        self.last = self.position  # of the last one
        self.rate = 0.0  # what the optimiser's learning rate was at the last step
        self.sums: dict[str, list[float]] = {}  # since the last log line: name → [sum, count]
        self.norm = 0.0
        self.seconds = 0.0  # of all the time spent, before and after interruptions
        self.numbers: dict[str, float] = {}  # of the last evaluation
        self.best: tuple[int, float] | None = None  # step and value

    def advance(self, placed: list[tuple[Position, Batch]], stop: bool) -> bool:
        """One update from its batches; returns whether any process was asked to stop."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        batches = [batch for _, batch in placed]
        last = len(batches) - 1
        numbers = [self._forward(index, batch, last=index == last) for index, batch in enumerate(batches)]
        *sums, asked, norm = self._read(numbers, stop)
        scale = self.world.size / max(sums[1], 1.0)  # DDP and FSDP2 have divided by the number of processes
        self.norm = norm * scale
        if not (math.isfinite(sums[0]) and math.isfinite(self.norm)):
            raise NotFiniteError(self._diagnosed(placed, sums[0]))
        self._update(scale)
        for name, total, count in zip(self.computer.names, sums[::2], sums[1::2], strict=True):
            held = self.sums.setdefault(name, [0.0, 0.0])
            held[0] += total
            held[1] += count
        self.last, self.position = placed[-1][0], placed[-1][0].next
        return asked > 0

    def _forward(self, index: int, batch: Batch, *, last: bool) -> Tensor:
        """Forward and backward of one batch; its numbers."""
        self._seed(index)
        return self.computer.add(batch, last=last)

    def _seed(self, index: int) -> None:
        seed_here(mixed(self.settings.seed, self.step, index, self.world.rank), self.computer.device)

    def _read(self, numbers: list[Tensor], stop: bool) -> list[float]:
        """The update's sums and counts over all processes, how many of those were asked to stop, and the norm of the
        gradient of the sum: one reading, so that a GPU is waited for once a step."""
        summed = numbers[0] if len(numbers) == 1 else torch.stack(numbers).sum(0)
        summed = self.world.total(torch.cat((summed, summed.new_tensor([float(stop)]))))
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = gathered(torch.nn.utils.get_total_norm(gradients))
        return torch.cat((summed, norm.detach().to(summed).reshape(1))).tolist()

    def _update(self, scale: float) -> None:
        """Divide the gradient by the count and clip it, in one pass; then move the weights."""
        clip = self.settings.clip
        if clip is not None and self.norm > clip:
            scale *= clip / self.norm
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], scale)
        now = factor(self.settings.schedule, self.step, self.settings.steps)
        self.rate = self.settings.optimiser.lr * now
        set_rate(self.optimisers, now)
        for optimiser in self.optimisers:
            optimiser.step()
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)

    def _diagnosed(self, placed: list[tuple[Position, Batch]], loss: float) -> str:
        """What was not finite, and where first; the batches are run again to find out."""

        def forward(index: int) -> None:
            self._seed(index)
            self.computer.forward(placed[index][1])

        batches = [self.world.share(batch)[0] for _, batch in placed]
        causes = self.world.texts(first_cause(self.model, batches, forward))
        cause = next((cause for cause in causes if cause != NOTHING), NOTHING)
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {self.norm}"
        places = ", ".join(f"{place.index} of epoch {place.epoch}" for place, _ in placed)
        return (
            f"step {self.step + 1}: {what}; {cause}. The update was not made (batch {places}). A smaller rate, a "
            "longer warm-up or clipping often helps"
        )

    @contextmanager
    def to_evaluate(self) -> Iterator[None]:
        """The model as it is evaluated: in eval mode, whole in this process, with the average of its weights if any."""
        self.model.eval()
        with ExitStack() as stack:
            if self.average is not None:
                stack.enter_context(self.average.in_place())
            stack.enter_context(self.computer.whole())
            stack.enter_context(torch.no_grad())
            self._seed(EVALUATION)
            yield
        self.model.train()

    def means(self) -> dict[str, float]:
        """The means since the last call; the sums begin anew."""
        found = {name: total / count if count else 0.0 for name, (total, count) in self.sums.items()}
        self.sums = {}
        return found

    def snapshot(self, journal_end: int, batches: Batches) -> Snapshot:
        """Everything there is to keep."""
        state: dict[str, Any] = {
            "step": self.step,
            "position": list(self.position),
            "epoch_batches": batches.count(self.position.epoch),
            "sums": self.sums,
            "best": self.best,
            "evaluation": {name: plain(value) for name, value in self.numbers.items()},
            "seconds": self.seconds,
            "journal_end": journal_end,
            "settings": self.settings.as_dict(),
            "environment": environment(self.computer.device, self.world.size),
        }
        return Snapshot(self.model, self.optimisers, self.average, state, keep=self.world.first)

    def restore(self, place: Path, batches: Batches) -> dict[str, Any]:
        """Become what a checkpoint holds; returns its state."""
        state = read_state(place)
        position = Position(*state["position"])
        if (now := batches.count(position.epoch)) != state["epoch_batches"]:
            raise ValueError(
                f"{place} was made with other data: epoch {position.epoch} had {state['epoch_batches']} batches and "
                f"has {now}. Go on with the same data, or begin in a new folder"
            )
        load_into(place, self.model, self.optimisers, self.average)
        self.step, self.position, self.sums = state["step"], position, state["sums"]
        self.best = None if state["best"] is None else tuple(state["best"])
        self.numbers = {name: math.nan if value is None else value for name, value in state["evaluation"].items()}
        self.seconds = state["seconds"]
        return state


def seed_here(seed: int, device: torch.device) -> None:
    """Seed what the CPU and this device draw from.

    torch.manual_seed seeds every kind of device there could be: for those that are not there it keeps each call, with
    its stack, until they are: a millisecond and some memory at every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "mps", "xpu"):
        getattr(torch, device.type).manual_seed(seed)
