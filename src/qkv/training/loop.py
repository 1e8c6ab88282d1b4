"""The training loop: `train` makes steps, logs, evaluates, saves checkpoints, and resumes bit-exactly.

The loop knows nothing about the model: data gives batches, an objective computes their loss, a TrainConfig holds the
rest. After a step it logs, evaluates and saves a checkpoint, in this order, each when due. A killed run resumes from
the newest complete checkpoint, and every number after it is the one an uninterrupted run would have.
"""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv._config import flatten
from qkv.data.batches import Batch, Batches, mix_seed
from qkv.training.checkpointing import CheckpointStore, Snapshot, environment, read_state, restore_tensors
from qkv.training.config import TrainConfig
from qkv.training.data_loader import Position, check_batches, load_batches
from qkv.training.distributed import World, full_tensor
from qkv.training.ema import WeightEMA
from qkv.training.gradients import GradientComputer, activation_checkpointing
from qkv.training.lock import lock_folder
from qkv.training.malloc import disable_malloc_trim
from qkv.training.metrics import METRICS_FILE, MetricsFile, MetricsLogger, TrainCallback, TrainResult
from qkv.training.nonfinite import LOSS_FUNCTION, ONLY_LOSS, NotFiniteError, find_first_cause
from qkv.training.objectives import Objective, check_objective
from qkv.training.optimizers import make_optimizers, scale_lr
from qkv.training.schedules import lr_factor
from qkv.training.state import TrainState
from qkv.training.tensorboard import CallbackList, TensorBoardCallback

Evaluate = Callable[[nn.Module], dict[str, float]]
Resume = Literal["auto", "never", "always"]
EVALUATION = -1  # stands for the batch index in the seed of an evaluation: no batch of a step has this number


def train(
    model: nn.Module,
    data: Batches,
    objective: Objective,
    config: TrainConfig,
    folder: str | Path,
    *,
    evaluate: Evaluate | None = None,
    callback: TrainCallback | None = None,
    resume: Resume = "auto",
    tensorboard: bool = False,
) -> TrainResult:
    """Train a model in place; `folder` gets metrics.jsonl and checkpoints.

    Args:
        data: batches by (epoch, index); `DatasetBatches` makes them from a torch Dataset.
        objective: function of (model, batch) that returns the mean loss of the batch, or (loss, metrics), or a
            `LossSum`, which counts items exactly where batches differ in size.
        evaluate: computes metrics of the model, which is in eval mode and has its EMA weights if there are any; see
            `evaluator`. Every process calls it.
        callback: receives progress, in rank zero.
        tensorboard: also write the curves for TensorBoard, to folder/tensorboard.
        resume: "auto" resumes from the newest complete checkpoint, or starts; "always" requires a checkpoint; "never"
            requires a new folder.

    SIGTERM and SIGINT stop the run after the current step, with a checkpoint; `TrainResult.stopped` says so. A loss or
    gradient that is not finite raises a `NotFiniteError` before the optimizer step.

    >>> import tempfile
    >>> from qkv.training import DatasetBatches, supervised
    >>> dataset = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    >>> objective = supervised(nn.functional.mse_loss)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(nn.Linear(3, 1), DatasetBatches(dataset, 4), objective, TrainConfig(steps=5), folder)
    >>> result.step, result.finished
    (5, True)
    """
    check_batches(data)
    check_objective(objective)
    world, folder = World.current(), Path(folder)
    config = TrainConfig.from_dict(json.loads(world.broadcast_text(json.dumps(config.to_dict()))))  # rank zero's config
    if config.disable_malloc_trim:
        disable_malloc_trim()
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        world.run_on_first(lambda: stack.enter_context(lock_folder(folder)) or "")
        stack.enter_context(activation_checkpointing(model, config.activation_checkpointing))
        callback = callback if callback is not None and world.is_first else TrainCallback()
        if tensorboard and world.is_first:
            callback = CallbackList(callback, TensorBoardCallback(folder))
        stack.callback(callback.close)
        trainer = Trainer(model, data, objective, config, folder, evaluate, callback, signals)
        trainer.restore(resume, stack)
        return trainer.fit()


class Trainer:
    """One process's part in a run. All randomness follows from (seed, step, batch, process)."""

    def __init__(
        self,
        model: nn.Module,
        data: Batches,
        objective: Objective,
        config: TrainConfig,
        folder: Path,
        evaluate: Evaluate | None,
        callback: TrainCallback,
        signals: "StopSignals",
    ) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(f"{type(model).__name__} has no trainable parameters: all are frozen, or there are none")
        self.model, self.data, self.config, self.folder = model, data, config, folder
        self.evaluate, self.callback, self.signals = evaluate, callback, signals
        self.world = World.current()
        self.gradients = GradientComputer(model, objective, self.world, config.parallel, config.dtype)
        self.optimizers = make_optimizers(model, config.optimizer)
        self.parameters = [p for optimizer in self.optimizers for g in optimizer.param_groups for p in g["params"]]
        self.ema = WeightEMA(model, config.ema_decay) if config.ema_decay else None
        self.state, self.store = TrainState(), CheckpointStore(folder)
        self.saved_step: int | None = None  # of the newest checkpoint

    def restore(self, resume: Resume, stack: ExitStack) -> None:
        """Load the checkpoint to resume from, if there is one."""
        path = self.world.run_on_first(lambda: self._find_checkpoint(resume))
        saved: dict[str, Any] = {}
        if path:
            saved = read_state(Path(path))
            self._check_data(path, saved)
            restore_tensors(Path(path), self.model, self.optimizers, self.ema)
            self.state.update_from(saved)
            self.saved_step = self.state.step
        file = None
        if self.world.is_first:
            file = MetricsFile(self.folder, saved.get("metrics_end", 0))
            stack.callback(file.close)
            if saved:
                self._note_changes(saved, file.missing)
        self.callback.on_start(self.state.step, self.config.steps)
        self.logger = MetricsLogger(self.state, self.config.steps, self.gradients.device, file, self.callback)

    def fit(self) -> TrainResult:
        """Train until the last step, or until asked to stop."""
        state, config = self.state, self.config
        if state.step > config.steps:
            raise ValueError(f"{self.folder} has made {state.step} steps already; steps={config.steps} is fewer")
        remaining = (config.steps - state.step) * config.grad_accumulation
        stop = False
        self.model.train()
        with closing(load_batches(self.data, state.position, remaining, config.num_workers)) as source:
            while state.step < config.steps and not stop:
                batches = [next(source) for _ in range(config.grad_accumulation)]
                stop = self.train_step(batches, self.signals.received is not None)
                stop = stop or (self.world.size == 1 and self.signals.received is not None)
                self._after_step(stop)
        self.model.eval()
        return self._result()

    def train_step(self, batches: list[tuple[Position, Batch]], stop: bool) -> bool:
        """Make one optimizer step from the gradient of all batches; return whether any process was asked to stop."""
        config, state = self.config, self.state
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        numbers = []
        for index, (_, batch) in enumerate(batches):
            self._seed(index)
            numbers.append(self.gradients.backward(batch, last=index == len(batches) - 1))
        *sums, stopping, norm = self._reduce(numbers, stop)
        scale = self.world.size / max(sums[1], 1.0)  # DDP and FSDP2 have divided by the number of processes
        state.grad_norm = norm * scale
        if not (math.isfinite(sums[0]) and math.isfinite(state.grad_norm)):
            raise NotFiniteError(self._explain_nonfinite(batches, sums[0]))
        if config.grad_clip is not None and state.grad_norm > config.grad_clip:
            scale *= config.grad_clip / state.grad_norm
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], scale)  # mean and clip in one pass
        factor = lr_factor(config.schedule, state.step, config.steps)
        state.lr = config.optimizer.lr * factor
        scale_lr(self.optimizers, factor)
        with self.gradients.mixed_precision():  # Muon multiplies matrices
            for optimizer in self.optimizers:
                optimizer.step()
        state.step += 1
        if self.ema is not None:
            self.ema.update(state.step)
        state.add_sums(self.gradients.metric_names, sums)
        last = batches[-1][0]
        state.epoch, state.position = last.epoch, last.next
        return stopping > 0

    def _reduce(self, numbers: list[Tensor], stop: bool) -> list[float]:
        """Return the step's sums and counts over all processes, how many processes were asked to stop, and the norm of
        the gradient of the sum: read at once, so that a GPU is waited for once per step."""
        summed = numbers[0] if len(numbers) == 1 else torch.stack(numbers).sum(0)
        summed = self.world.all_reduce(torch.cat((summed, summed.new_tensor([float(stop)]))))
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
        return torch.cat((summed, norm.detach().to(summed).reshape(1))).tolist()

    def _seed(self, index: int) -> None:
        seed = mix_seed(self.config.seed, self.state.step, index, self.world.rank)
        # torch.manual_seed seeds every kind of device there could be; for missing ones it keeps each call and its stack
        # until they appear: a millisecond and some memory at every step
        torch.default_generator.manual_seed(seed)
        if (device := self.gradients.device.type) in ("cuda", "mps", "xpu"):
            getattr(torch, device).manual_seed(seed)

    def _after_step(self, stop: bool) -> None:
        """Log, evaluate and save what is due after a step."""
        step, every = self.state.step, self.config.checkpoint
        last = step == self.config.steps
        if step % every.log_every == 0 or last:
            self.logger.log()
        improved = False
        if self.evaluate is not None and (last or (every.evaluate_every and step % every.evaluate_every == 0)):
            improved = self._evaluate(self.evaluate)
        due = every.checkpoint_every and step % every.checkpoint_every == 0
        if last or stop or due or improved:
            self._save()

    def _evaluate(self, evaluate: Evaluate) -> bool:
        """Evaluate the model; return whether it is the best so far."""
        state, config = self.state, self.config.checkpoint
        with self._evaluation_mode():
            found = {name: float(value) for name, value in evaluate(self.model).items()}
        state.evaluation = json.loads(self.world.broadcast_text(json.dumps(found)))  # all processes decide by the same
        self.logger.log_evaluation(state.evaluation)
        name = config.best_metric
        if not name:
            return False
        if name not in state.evaluation:
            raise ValueError(
                f"checkpoint.best_metric={name!r} is not a metric of evaluate: {', '.join(state.evaluation)}"
            )
        value = state.evaluation[name]
        sign = 1 if config.greater_is_better else -1
        improved = math.isfinite(value) and (state.best is None or sign * value > sign * state.best[1])
        if improved:
            state.best = (state.step, value)
        return improved

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Eval mode, no gradients, all parameters in this process, EMA weights if there are any; own random numbers."""
        self.model.eval()
        with ExitStack() as stack:
            if self.ema is not None:
                stack.enter_context(self.ema.swapped_in())
            stack.enter_context(self.gradients.unsharded())
            stack.enter_context(torch.no_grad())
            self._seed(EVALUATION)
            yield
        self.model.train()

    def _save(self) -> None:
        """Save a checkpoint; older ones are removed once it is complete."""
        state = self.state
        snapshot = Snapshot(
            self.model,
            self.optimizers,
            self.ema,
            {
                "metrics_end": self.logger.sync(),
                **state.to_dict(),
                "epoch_batches": self.data.num_batches(state.position.epoch),
                "config": self.config.to_dict(),
                "environment": environment(self.gradients.device, self.world.size),
            },
            keep=self.world.is_first,
        )

        def write() -> str:
            path = self.store.save(state.step, snapshot.write)
            self.store.prune(self.config.checkpoint.keep_last, state.best[0] if state.best else None)
            return str(path)

        path = self.world.run_on_first(write)
        self.saved_step = state.step
        self.callback.on_checkpoint(state.step, Path(path))
        self.logger.restart_timer()

    def _find_checkpoint(self, resume: Resume) -> str:
        """Return the checkpoint to resume from; "" to start."""
        if resume not in ("auto", "never", "always"):
            raise ValueError(f"resume must be auto, never or always, got {resume!r}")
        self.store.clean_up()
        if resume == "never" and (self.store.steps() or (self.folder / METRICS_FILE).exists()):
            raise ValueError(f"{self.folder} contains a run already; resume it with resume='auto' or use a new folder")
        newest = self.store.newest(self.callback.on_note)
        if newest is None and resume == "always":
            raise ValueError(f"{self.folder} has no complete checkpoint to resume from; resume='auto' would start")
        return "" if newest is None else str(newest)

    def _check_data(self, path: str, saved: dict[str, Any]) -> None:
        epoch = saved["position"][0]
        if (count := self.data.num_batches(epoch)) != saved["epoch_batches"]:
            raise ValueError(
                f"{path} was made with other data: epoch {epoch} had {saved['epoch_batches']} batches and has {count}. "
                "Resume with the same data, or start in a new folder"
            )

    def _note_changes(self, saved: dict[str, Any], missing: int) -> None:
        """Tell the user what differs from the run so far."""
        if missing:
            self.callback.on_note(f"{METRICS_FILE} lacks {missing} bytes that the checkpoint has seen: lines are lost")
        before, now = flatten(saved.get("config", {})), flatten(self.config.to_dict())
        changed = [
            f"{name} {before.get(name)} → {value}"
            for name, value in now.items()
            if before.get(name) != value and name != "num_workers" and not name.startswith("checkpoint.")
        ]
        if changed:
            self.callback.on_note(f"the config has changed since the checkpoint: {', '.join(changed)}")
        then = saved.get("environment", {})
        here = environment(self.gradients.device, self.world.size)
        other = [f"{name} {then.get(name)} → {value}" for name, value in here.items() if then.get(name) != value]
        if other:
            self.callback.on_note(f"the environment has changed, so the last digits may differ: {', '.join(other)}")

    def _explain_nonfinite(self, batches: list[tuple[Position, Batch]], loss: float) -> str:
        """Run the batches again to find what was not finite first."""

        def forward(index: int) -> Tensor:
            self._seed(index)
            return self.gradients.forward(batches[index][1])[0]

        items = [self.world.shard_batch(batch)[0] for _, batch in batches]
        causes = self.world.all_gather_text(find_first_cause(self.model, items, forward))
        cause = next((cause for cause in causes if cause != ONLY_LOSS), ONLY_LOSS)
        what = f"the gradient norm is {self.state.grad_norm}" if math.isfinite(loss) else f"the loss is {loss}"
        positions = ", ".join(f"{position.index} of epoch {position.epoch}" for position, _ in batches)
        advice = "A lower learning rate, a longer warm-up or gradient clipping often helps"
        if cause == LOSS_FUNCTION:
            advice = "Look for a division by 0, a logarithm of 0 or an overflow in the objective"
        return (
            f"step {self.state.step + 1}: {what}; {cause}. The optimizer step was not made (batch {positions}). "
            f"{advice}"
        )

    def _result(self) -> TrainResult:
        state, steps = self.state, self.config.steps
        finished, stopped = state.step == steps, self.signals.received
        if finished:
            stopped = self.world.broadcast_text(stopped or "") or None
        elif stopped is None:
            stopped = "another process"
        best = state.best if state.best and self.store.path(state.best[0]).exists() else None
        result = TrainResult(
            folder=self.folder,
            step=state.step,
            steps=steps,
            finished=finished,
            stopped=stopped,
            seconds=state.seconds,
            checkpoint=None if self.saved_step is None else self.store.path(self.saved_step),
            best=None if best is None else self.store.path(best[0]),
            best_value=None if best is None else best[1],
            evaluation=state.evaluation,
            best_step=None if best is None else best[0],
        )
        self.callback.on_end(result)
        return result


class StopSignals:
    """Turns SIGTERM and SIGINT into a flag (`received`) that is read after each step; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
