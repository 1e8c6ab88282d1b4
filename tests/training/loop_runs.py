"""Tiny runs for the tests of the loop: data, models, and processes that are killed."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from qkv import training as loop
from qkv.data.batches import generator_for
from qkv.models import GPT, GPTConfig
from qkv.training import manifest as files

VOCAB = 11


class Letters:
    """Rows that count upwards from a drawn letter; some tokens are not scored, and each batch says its place."""

    def __init__(self, size=4, length=6, epoch=5):
        self.size, self.length, self.epoch = size, length, epoch

    def count(self, epoch):
        return self.epoch + epoch % 2

    def batch(self, epoch, index):
        generator = generator_for(7, epoch, index)
        first = torch.randint(0, VOCAB, (self.size, 1), generator=generator)
        rows = (first + torch.arange(self.length + 1)) % VOCAB
        scored = torch.rand(self.size, self.length, generator=generator) < 0.7
        place = torch.full((self.size,), float(1000 * epoch + index))
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "scored": scored, "place": place}


def objective(model, batch):
    """The language model, and where in the data it is."""
    score = loop.language_model(accuracy=True)(model, batch)
    place = (batch["place"].double().sum(), len(batch["place"]))
    return loop.Score(score.total, score.count, {**score.metrics, "place": place})


def gpt(dropout=0.1, dtype=torch.float32, seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"width": 16, "layers": 2, "heads": 2, "hidden": 24, "length": 8, **fields}
    return GPT(GPTConfig(vocab_size=VOCAB, dropout=dropout, **sizes)).to(dtype)


SETTINGS = loop.Settings(
    steps=12,
    seed=3,
    accumulate=2,
    average=0.9,
    optimiser=loop.Optimiser(lr=1e-2, weight_decay=0.1),
    schedule=loop.Schedule(warmup=3),
    saving=loop.Saving(log_every=2, evaluate_every=6, checkpoint_every=3, best="loss", larger=False),
)


def with_optimiser(name, settings=SETTINGS):
    return replace(settings, optimiser=replace(settings.optimiser, name=name))


def run(folder, settings=SETTINGS, model=None, **options):
    """Train the tiny model in that folder."""
    model = gpt() if model is None else model
    evaluate = loop.over(Letters(), loop.language_model(), limit=2)
    return loop.train(
        model, Letters(), options.pop("objective", objective), settings, folder, evaluate=evaluate, **options
    )


class Notes(loop.Report):
    """Keeps everything it is told."""

    def __init__(self):
        self.notes, self.steps, self.saves, self.began, self.ended = [], [], [], [], []

    def begin(self, step, steps):
        self.began.append(step)

    def progress(self, progress):
        self.steps.append(progress)

    def saved(self, step, place):
        self.saves.append(step)

    def note(self, text):
        self.notes.append(text)

    def end(self, outcome):
        self.ended.append(outcome)


def lines(folder):
    """The metrics of a run without its times."""
    found = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "timing"} for line in found]


def last_checkpoint(folder):
    return sorted((Path(folder) / "checkpoints").glob("step-*"))[-1]


def assert_same_run(folder, other):
    """The two runs ended with the same bits: weights, optimiser, average, metrics, place in the data."""
    mine, theirs = last_checkpoint(folder), last_checkpoint(other)
    assert mine.name == theirs.name
    for name in ("model.safetensors", "optimiser.safetensors", "average.safetensors"):
        a, b = load_file(mine / name), load_file(theirs / name)
        assert list(a) == list(b)
        assert all(torch.equal(a[key], b[key]) for key in a), name
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    states = [json.loads((place / "state.json").read_text()) for place in (mine, theirs)]
    for state in states:
        for aside in ("seconds", "journal_end", "settings", "environment"):
            state.pop(aside)
    assert states[0] == states[1]
    assert lines(folder) == lines(other)


def in_process(target, *arguments):
    """Start a function in a process of its own, copied from this one."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def die_at(kind, number):
    """From here on: SIGKILL, by itself, at the n-th call of that kind."""
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
