"""Recipe gpt-text: language modeling on any text file with a GPT, or an RNN baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import nn

from qkv.data.batches import generator_for
from qkv.data.text.language_modeling import TextWindows, load_shakespeare, read_texts
from qkv.data.text.tokenizers import bpe_tokenizer, character_tokenizer, decode, encode, serialize_tokenizer
from qkv.models import GPTConfig, RNNConfig
from qkv.training.config import CheckpointConfig, TrainConfig
from qkv.training.evaluation import evaluate_all
from qkv.training.objectives import language_model
from qkv.training.optimizers import OptimizerConfig
from qkv.training.recipes.definition import RecipeConfig, RecipeDefinition, Stage, Task, build_model
from qkv.training.schedules import ScheduleConfig

SAMPLE_TOKENS = 300
PROMPT_CHARACTERS = 40
LN2 = torch.log(torch.tensor(2.0)).item()


@dataclass(frozen=True)
class TextData:
    """Where text comes from and how it becomes tokens.

    path: a UTF-8 text file, or a folder of .txt files; "shakespeare" is the bundled text.
    tokenizer: "characters", or "bpe" with `vocab_size` tokens trained on the text.
    max_length: tokens that the model sees at once. batch_size: windows per batch.
    validation_fraction: share at the end of the text that is held out. validation_tokens: how many of its tokens are
        used during training; the test uses all.
    """

    path: str = "shakespeare"
    tokenizer: Literal["characters", "bpe"] = "characters"
    vocab_size: int = 1024
    max_length: int = 256
    batch_size: int = 32
    validation_fraction: float = 0.1
    validation_tokens: int = 32_768


def build(config: RecipeConfig, limit: int | None = None) -> Task:
    """Load the text, train the tokenizer, and build the model for its vocabulary."""
    data: TextData = config.data
    train_text, validation_text = load_text(data)
    if data.tokenizer == "bpe":
        tokenizer = bpe_tokenizer([train_text], data.vocab_size, special=())
    else:
        tokenizer = character_tokenizer([train_text, validation_text])
    fields: dict[str, Any] = {"vocab_size": tokenizer.get_vocab_size()}
    if isinstance(config.model, GPTConfig):
        fields["max_length"] = data.max_length
    config = replace(config, model=replace(config.model, **fields))
    train, validation = encode(tokenizer, train_text), encode(tokenizer, validation_text)
    characters_per_token = len(validation_text) / max(len(validation), 1)
    if limit is not None:  # the first windows
        validation = validation[: limit * data.max_length]
    objective = language_model()

    def in_order(tokens: Any) -> TextWindows:
        return TextWindows(tokens, data.max_length, data.batch_size, shuffle=False)

    def evaluate(model: nn.Module, batches: TextWindows) -> dict[str, float]:
        metrics = evaluate_all(model, batches, objective)
        # bits per character compares models with different tokenizers
        return {**metrics, "bits_per_character": metrics["loss"] / characters_per_token / LN2}

    validation_part, whole = in_order(validation[: data.validation_tokens]), in_order(validation)
    windows = TextWindows(train, data.max_length, data.batch_size, seed=config.seed)
    return Task(
        config=config,
        model=build_model(config.model, config.seed),
        stages=(Stage("train", windows, objective, lambda model: evaluate(model, validation_part)),),
        test=lambda model: evaluate(model, whole),
        samples=lambda model: _samples(model, tokenizer, validation_text[:PROMPT_CHARACTERS]),
        purpose=lambda _: {"task": "generate", "prompt": validation_text[:PROMPT_CHARACTERS]},
        files={"tokenizer.json": serialize_tokenizer(tokenizer)},
    )


def load_text(data: TextData) -> tuple[str, str]:
    """Load the text for training, and that for validation and test, which selects the checkpoint and nothing else."""
    if data.path == "shakespeare":
        return load_shakespeare()
    return read_texts(data.path, data.validation_fraction)


def _samples(model: nn.Module, tokenizer: Tokenizer, prompt: str) -> list[dict[str, Any]]:
    rows = []
    for temperature in (0.0, 0.7, 1.0):
        tokens = encode(tokenizer, prompt)[None].to(next(model.parameters()).device)
        count = SAMPLE_TOKENS
        limit: Any = model.max_positions
        if limit is not None:  # a model with few positions gets a short prompt
            tokens = tokens[:, : max(limit // 2, 1)]
            count = min(SAMPLE_TOKENS, limit - tokens.shape[1])
        generated = model.generate(tokens, count, temperature=temperature, generator=generator_for(0))  # type: ignore[operator]
        rows.append(
            {
                "temperature": temperature,
                "prompt": decode(tokenizer, tokens[0]),
                "continuation": decode(tokenizer, generated[0, tokens.shape[1] :]),
            }
        )
    return rows


TEXT = RecipeDefinition(
    name="gpt-text",
    summary="A GPT on any text file, with characters or BPE; without --data on the bundled Shakespeare.",
    data=TextData(),
    models={
        "gpt": GPTConfig(
            vocab_size=1, max_length=256, dim=192, layers=4, heads=6, position="rope", norm="rms", dropout=0.1
        ),
        "rnn": RNNConfig(vocab_size=1, dim=192, hidden_size=384, layers=2, dropout=0.1),
    },
    stages={
        "train": TrainConfig(
            steps=2_000,
            optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95)),
            schedule=ScheduleConfig(warmup_steps=100, min_lr_ratio=0.1),
            checkpoint=CheckpointConfig(
                evaluate_every=200, checkpoint_every=200, best_metric="loss", greater_is_better=False
            ),
        )
    },
    presets={"bpe": {"data.tokenizer": "bpe"}},
    build=build,
    data_fields=("vocab_size", "max_length"),
)
