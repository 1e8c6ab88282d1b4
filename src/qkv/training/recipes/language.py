"""Language: a GPT, or an RNN in its place, learns to write on as a text does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import nn

from qkv.data.batches import generator_for
from qkv.data.text import TextWindows, read_texts
from qkv.data.tokens import as_file, bpe_tokenizer, character_tokenizer, to_ids, to_text
from qkv.models import GPTConfig, RNNConfig
from qkv.training import Optimiser, Saving, Schedule, Settings
from qkv.training.objectives import language_model
from qkv.training.recipes.building import drawn
from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.measure import measured

WRITTEN = 300  # tokens of a sample


@dataclass(frozen=True)
class TextData:
    """Where text comes from and how it becomes tokens.

    path: a text file in UTF-8, or a folder of .txt files; "shakespeare" is what ships.
    tokens: "characters", or "bpe" of `vocab` tokens trained on the text.
    length: tokens that the model sees at once. batch: windows in a batch.
    validation: the share at the end of the text that is not trained on. judged: how many of its tokens are looked at on
        the way; the test takes all.
    """

    path: str = "shakespeare"
    tokens: Literal["characters", "bpe"] = "characters"
    vocab: int = 1024
    length: int = 256
    batch: int = 32
    validation: float = 0.1
    judged: int = 32_768


def build(recipe: Recipe) -> Task:
    """Read the text, make the tokenizer, build the model for its vocabulary."""
    data: TextData = recipe.data
    train_text, validation_text = opened(data)
    if data.tokens == "bpe":
        tokenizer = bpe_tokenizer([train_text], data.vocab, special=())
    else:
        tokenizer = character_tokenizer([train_text, validation_text])
    train, validation = to_ids(tokenizer, train_text), to_ids(tokenizer, validation_text)
    changes: dict[str, Any] = {"vocab": tokenizer.get_vocab_size()}
    if isinstance(recipe.model, GPTConfig):
        changes["length"] = data.length
    config = replace(recipe.model, **changes)
    watched = TextWindows(validation[: data.judged], data.length, data.batch, shuffled=False)
    whole = TextWindows(validation, data.length, data.batch, shuffled=False)
    objective = language_model()
    letters = len(validation_text) / max(len(validation), 1)
    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=(
            Stage(
                "train",
                TextWindows(train, data.length, data.batch, seed=recipe.seed),
                objective,
                lambda model: _by_letter(measured(model, watched, objective), letters),
            ),
        ),
        test=lambda model: _by_letter(measured(model, whole, objective), letters),
        samples=lambda model: _samples(model, tokenizer, validation_text),
        purpose=lambda _: {"task": "generate", "prompt": validation_text[:40]},
        files={"tokenizer.json": as_file(tokenizer)},
    )


def opened(data: TextData) -> tuple[str, str]:
    """The text for training and the text for validation (and test: it is never trained on, and nothing is chosen by it
    but the checkpoint)."""
    if data.path == "shakespeare":
        from qkv.data.shakespeare import shakespeare

        return shakespeare()
    return read_texts(data.path, data.validation)


def _by_letter(numbers: dict[str, float], letters: float) -> dict[str, float]:
    """Also bits for each letter, which models with different tokens can be compared by."""
    return {**numbers, "bits_per_letter": numbers["loss"] / letters / torch.log(torch.tensor(2.0)).item()}


def _samples(model: nn.Module, tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    rows = []
    for temperature in (0.0, 0.7, 1.0):
        begin = text[:40]
        tokens = to_ids(tokenizer, begin)[None].to(next(model.parameters()).device)
        room = WRITTEN
        if (limit := model.limit) is not None:  # a short memory gets a short beginning
            tokens = tokens[:, : max(int(limit) // 2, 1)]  # type: ignore[arg-type]
            room = min(WRITTEN, int(limit) - tokens.shape[1])  # type: ignore[arg-type]
        written = model.generate(tokens, room, temperature=temperature, generator=generator_for(0))  # type: ignore[operator]
        rows.append(
            {
                "temperature": temperature,
                "begins": to_text(tokenizer, tokens[0]),
                "goes on": to_text(tokenizer, written[0, tokens.shape[1] :]),
            }
        )
    return rows


TEXT = System(
    name="gpt-text",
    summary="A GPT on any text file, by characters or BPE; without --data on Shakespeare, which ships.",
    data=TextData(),
    models={
        "gpt": GPTConfig(
            vocab_size=1, max_length=256, dim=192, layers=4, heads=6, position="rope", norm="rms", dropout=0.1
        ),
        "rnn": RNNConfig(vocab_size=1, dim=192, hidden_size=384, layers=2, dropout=0.1),
    },
    stages={
        "train": Settings(
            steps=2_000,
            optimiser=Optimiser(lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95)),
            schedule=Schedule(warmup=100, floor=0.1),
            saving=Saving(evaluate_every=200, checkpoint_every=200, best="loss", larger=False),
        )
    },
    presets={"bpe": {"data.tokens": "bpe"}},
    build=build,
    fills=("vocab", "length"),
)
