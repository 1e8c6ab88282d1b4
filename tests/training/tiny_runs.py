"""Tiny runs for the tests of training: data, models, and processes that are killed."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from qkv import training
from qkv.data.batches import generator_for
from qkv.models import GPT, GPTConfig
from qkv.training import checkpointing as files

VOCAB = 11


class Letters:
    """Rows that count upwards from a random letter; some tokens are not in the loss; batches know their position."""

    def __init__(self, size=4, length=6, epoch=5):
        self.size, self.length, self.epoch = size, length, epoch

    def num_batches(self, epoch):
        return self.epoch + epoch % 2

    def batch(self, epoch, index):
        generator = generator_for(7, epoch, index)
        first = torch.randint(0, VOCAB, (self.size, 1), generator=generator)
        rows = (first + torch.arange(self.length + 1)) % VOCAB
        scored = torch.rand(self.size, self.length, generator=generator) < 0.7
        position = torch.full((self.size,), float(1000 * epoch + index))
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "loss_mask": scored, "position": position}


def objective(model, batch):
    """The language-model loss, with the position in the data as a metric."""
    score = training.language_model(accuracy=True)(model, batch)
    position = (batch["position"].double().sum(), len(batch["position"]))
    return training.LossSum(score.total, score.count, {**score.metrics, "position": position})


def gpt(dropout=0.1, dtype=torch.float32, seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"dim": 16, "layers": 2, "heads": 2, "mlp_dim": 24, "max_length": 8, **fields}
    return GPT(GPTConfig(vocab_size=VOCAB, dropout=dropout, **sizes)).to(dtype)


CONFIG = training.TrainConfig(
    steps=12,
    seed=3,
    grad_accumulation=2,
    ema_decay=0.9,
    optimizer=training.OptimizerConfig(lr=1e-2, weight_decay=0.1),
    schedule=training.ScheduleConfig(warmup_steps=3),
    checkpoint=training.CheckpointConfig(
        log_every=2, evaluate_every=6, checkpoint_every=3, best_metric="loss", greater_is_better=False
    ),
)


def with_optimizer(name, config=CONFIG):
    return replace(config, optimizer=replace(config.optimizer, name=name))


def run(folder, config=CONFIG, model=None, **options):
    """Train the tiny model in that folder."""
    model = gpt() if model is None else model
    evaluate = training.evaluator(Letters(), training.language_model(), limit=2)
    return training.train(
        model, Letters(), options.pop("objective", objective), config, folder, evaluate=evaluate, **options
    )


class Notes(training.TrainCallback):
    """Records all events."""

    def __init__(self):
        self.notes, self.steps, self.saves, self.began, self.ended = [], [], [], [], []

    def on_start(self, step, steps):
        self.began.append(step)

    def on_log(self, progress):
        self.steps.append(progress)

    def on_checkpoint(self, step, path):
        self.saves.append(step)

    def on_note(self, text):
        self.notes.append(text)

    def on_end(self, result):
        self.ended.append(result)


def lines(folder):
    """The lines of metrics.jsonl without timing."""
    found = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "timing"} for line in found]


def last_checkpoint(folder):
    return sorted((Path(folder) / "checkpoints").glob("step-*"))[-1]


def assert_same_run(folder, other):
    """The two runs ended with the same bits: weights, optimizer, EMA, metrics, position in the data."""
    mine, theirs = last_checkpoint(folder), last_checkpoint(other)
    assert mine.name == theirs.name
    for name in ("model.safetensors", "optimizer.safetensors", "ema.safetensors"):
        a, b = load_file(mine / name), load_file(theirs / name)
        assert list(a) == list(b)
        assert all(torch.equal(a[key], b[key]) for key in a), name
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    states = [json.loads((position / "state.json").read_text()) for position in (mine, theirs)]
    for state in states:
        for aside in ("seconds", "metrics_end", "config", "environment"):
            state.pop(aside)
    assert states[0] == states[1]
    assert lines(folder) == lines(other)


def in_process(target, *arguments):
    """Start a function in its own forked process."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def kill_at(kind, number):
    """Make this process send itself SIGKILL at the n-th call of that kind."""
    calls = [0]

    def counted(function):
        def call(*arguments, **options):
            calls[0] += 1
            if calls[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    if kind in ("fsync", "rename"):
        setattr(os, kind, counted(getattr(os, kind)))
    elif kind == "piece":  # between two pieces of a file: the file is torn
        whole = files.safetensors_pieces

        def torn(tensors):
            step = counted(lambda: None)
            for piece in whole(tensors):
                step()
                yield piece

        files.safetensors_pieces = torn
    else:
        raise ValueError(kind)
