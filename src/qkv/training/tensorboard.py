"""TensorBoard: the curves of metrics.jsonl as event files, in the tensorboard/ directory of a run."""

from pathlib import Path
from typing import Any

from qkv.training.metrics import Progress, TrainCallback, TrainResult

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoardCallback(TrainCallback):
    """Writes training and validation curves for TensorBoard: `tensorboard --logdir runs`.

    A resumed run continues in the same directory; what was logged after its checkpoint is hidden.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard is not installed; install it with: pip install tensorboard") from None
        self._make_writer, self.folder = SummaryWriter, Path(folder) / TENSORBOARD_FOLDER
        self.writer: Any = None

    def on_start(self, step: int, steps: int) -> None:
        self.writer = self._make_writer(str(self.folder), purge_step=step + 1)

    def on_log(self, progress: Progress) -> None:
        for name, value in {"loss": progress.loss, **progress.metrics}.items():
            self.writer.add_scalar(f"{name}/train", value, progress.step)
        self.writer.add_scalar("lr", progress.rate, progress.step)

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{name}/validation", value, step)

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class CallbackList(TrainCallback):
    """Passes every event to several callbacks, in order."""

    def __init__(self, *callbacks: TrainCallback) -> None:
        self.callbacks = callbacks

    def on_start(self, step: int, steps: int) -> None:
        for each in self.callbacks:
            each.on_start(step, steps)

    def on_log(self, progress: Progress) -> None:
        for each in self.callbacks:
            each.on_log(progress)

    def on_evaluate(self, step: int, metrics: dict[str, float]) -> None:
        for each in self.callbacks:
            each.on_evaluate(step, metrics)

    def on_checkpoint(self, step: int, path: Path) -> None:
        for each in self.callbacks:
            each.on_checkpoint(step, path)

    def on_note(self, text: str) -> None:
        for each in self.callbacks:
            each.on_note(text)

    def on_end(self, result: TrainResult) -> None:
        for each in self.callbacks:
            each.on_end(result)

    def close(self) -> None:
        for each in self.callbacks:
            each.close()
