"""Recipe translate: translation with an encoder-decoder, or an RNN with attention, on pairs of sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from qkv._config import to_dict
from qkv.data.text.tokenizers import START, STOP, bpe_tokenizer, decode, encode_all, serialize_tokenizer
from qkv.data.text.translation import (
    PairBatches,
    SentencePair,
    draw_numbers,
    number_to_english,
    number_to_german,
    read_pairs,
)
from qkv.models import PRESETS, RNNSeq2SeqConfig, Seq2SeqConfig
from qkv.training.config import CheckpointConfig, TrainConfig
from qkv.training.evaluation import eval_mode, evaluate_all
from qkv.training.objectives import sequence_to_sequence
from qkv.training.optimizers import OptimizerConfig
from qkv.training.recipes.definition import RecipeConfig, RecipeDefinition, Stage, Task, build_model, sample_evenly
from qkv.training.schedules import ScheduleConfig, inverse_sqrt_lr

NUM_SAMPLES = 12


@dataclass(frozen=True)
class TranslationData:
    """Where pairs of sentences come from.

    path: a folder with the line-aligned files train.SOURCE, train.TARGET, val.… and test….…; "numbers" are generated
        pairs: numbers in English and in German words.
    source, target: extensions of the files. vocab_size: tokens of the BPE tokenizer that both languages share.
    batch_tokens: tokens per batch, on the longer side. max_length: pairs with a longer side are left out of training.
    num_beams: of the beam search that translates the test. length_penalty: its length-penalty exponent.
    validation_sentences: sentences that are translated during training, for BLEU.
    """

    path: str = "numbers"
    source: str = "en"
    target: str = "de"
    vocab_size: int = 4000
    batch_tokens: int = 2048
    max_length: int = 128
    label_smoothing: float = 0.1
    num_beams: int = 4
    length_penalty: float = 1.4
    validation_sentences: int = 200


def build(config: RecipeConfig, limit: int | None = None) -> Task:
    """Load the pairs, train the shared tokenizer, and build the model for its vocabulary."""
    data: TranslationData = config.data
    splits = load_pairs(data, config.seed)
    splits |= {name: sample_evenly(splits[name], limit) for name in ("val", "test")}
    tokenizer = bpe_tokenizer((sentence for pair in splits["train"] for sentence in pair), data.vocab_size)
    ids = {
        name: [encode_all(tokenizer, side, name) for side in zip(*pairs, strict=True)] for name, pairs in splits.items()
    }
    train = PairBatches(*ids["train"], max_tokens=data.batch_tokens, max_length=data.max_length, seed=config.seed)
    validation = PairBatches(*ids["val"], max_tokens=data.batch_tokens, max_length=10**6, shuffle=False)
    config = replace(config, model=replace(config.model, vocab_size=tokenizer.get_vocab_size()))
    cross_entropy = sequence_to_sequence()
    sentences = splits["val"][: data.validation_sentences]
    notes = ()
    if train.num_skipped:
        notes = (f"{train.num_skipped:,} training pairs are longer than {data.max_length} tokens and left out",)

    def translate(model: nn.Module, pairs: list[SentencePair]) -> list[str]:
        return translate_pairs(model, tokenizer, pairs, data.num_beams, data.length_penalty)

    def validate(model: nn.Module) -> dict[str, float]:
        translations = translate_pairs(model, tokenizer, sentences, num_beams=1)
        return {**evaluate_all(model, validation, cross_entropy), "bleu": bleu(translations, sentences)}

    def samples(model: nn.Module) -> list[dict[str, Any]]:
        shown = sentences[:NUM_SAMPLES]
        return [
            {"source": pair.source, "translation": text, "reference": pair.target}
            for pair, text in zip(shown, translate(model, shown), strict=True)
        ]

    objective = sequence_to_sequence(label_smoothing=data.label_smoothing)
    purpose = {
        "task": "translate",
        "start": START,
        "stop": STOP,
        "num_beams": data.num_beams,
        "length_penalty": data.length_penalty,
    }
    return Task(
        config=config,
        model=build_model(config.model, config.seed),
        stages=(Stage("train", train, objective, validate),),
        test=lambda model: {"bleu": bleu(translate(model, splits["test"]), splits["test"])},
        samples=samples,
        purpose=lambda _: purpose,
        files={"tokenizer.json": serialize_tokenizer(tokenizer)},
        notes=notes,
    )


def load_pairs(data: TranslationData, seed: int) -> dict[str, list[SentencePair]]:
    """Load the pairs of the train, val and test splits."""
    if data.path == "numbers":
        numbers = draw_numbers(11_400, seed)
        pairs = [SentencePair(number_to_english(number), number_to_german(number)) for number in numbers]
        return {"train": pairs[:11_000], "val": pairs[11_000:11_200], "test": pairs[11_200:]}
    folder = Path(data.path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one with train.{data.source}, train.{data.target}, …")
    splits = {}
    for name in ("train", "val", "test"):
        files = sorted(folder.glob(f"{name}*.{data.source}"))
        if not files:
            raise ValueError(f"{folder} has no {name}….{data.source}; expected train, val and test in both languages")
        splits[name] = read_pairs(files[0], files[0].with_suffix(f".{data.target}"))
    return splits


def translate_pairs(
    model: nn.Module,
    tokenizer: Tokenizer,
    pairs: list[SentencePair],
    num_beams: int,
    length_penalty: float = 0.6,
    batch_size: int = 50,
) -> list[str]:
    """Translate the sources of pairs; sentences of similar length are translated together."""
    ids = encode_all(tokenizer, [pair.source for pair in pairs], "the sources")
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    translations = [""] * len(ids)
    with eval_mode(model) as device:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            sources = [torch.cat((ids[i], torch.tensor([STOP]))) for i in rows]
            source = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True).to(device)
            lengths = torch.tensor([len(row) for row in sources], device=device)
            token_mask = torch.arange(source.shape[1], device=device) < lengths[:, None]
            limit: Any = model.max_positions
            count = 2 * source.shape[1] + 10
            if limit is not None:
                count = min(count, limit)
            found: Any = model.generate(  # type: ignore[operator]
                source,
                count,
                start_token=START,
                stop_token=STOP,
                token_mask=token_mask,
                num_beams=num_beams,
                length_penalty=length_penalty,
            )
            for row, target in zip(rows, found.cpu(), strict=True):
                stops = (target == STOP).nonzero()
                translations[row] = decode(tokenizer, target[: int(stops[0])] if len(stops) else target)
    return translations


def bleu(translations: list[str], pairs: list[SentencePair]) -> float:
    """Compute the corpus BLEU, cased, with sacrebleu."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("BLEU needs sacrebleu: pip install 'qkv[text]'") from None
    return sacrebleu.corpus_bleu(translations, [[pair.target for pair in pairs]]).score


_WARMUP = 4000
_BASE = PRESETS["transformer-base"]
_TRANSFORMER_BASE: dict[str, Any] = {  # the base model of Vaswani et al. (2017) and its training, English to German
    **{f"model.{name}": value for name, value in to_dict(_BASE).items() if name != "vocab_size"},
    "data.vocab_size": _BASE.vocab_size,
    "data.batch_tokens": 25_000,
    "data.label_smoothing": 0.1,
    "data.num_beams": 4,
    "data.length_penalty": 0.6,
    "train.steps": 100_000,
    "train.ema_decay": 0.0,
    "train.grad_clip": "none",
    "train.optimizer": {
        "name": "adam",
        "lr": inverse_sqrt_lr(_BASE.dim, _WARMUP),
        "betas": (0.9, 0.98),
        "eps": 1e-9,
        "weight_decay": 0.0,
    },
    "train.schedule": {"kind": "inverse-sqrt", "warmup_steps": _WARMUP},
    # the paper saves every 10 minutes, 1,500 steps of 0.4 s, and averages the last 5
    "train.checkpoint": {
        "evaluate_every": 1500,
        "checkpoint_every": 1500,
        "keep_last": 5,
        "average_last": 5,
        "best_metric": "",
    },
}
TRANSLATE = RecipeDefinition(
    name="translate",
    summary="An encoder-decoder on sentence pairs (--data FOLDER; without it, numbers in English and German).",
    data=TranslationData(),
    models={
        "seq2seq": Seq2SeqConfig(
            vocab_size=1,
            dim=128,
            encoder_layers=4,
            decoder_layers=4,
            heads=4,
            mlp_dim=512,
            norm_order="pre",
            dropout=0.15,
            attention_dropout=0.0,
        ),
        "rnn-attention": RNNSeq2SeqConfig(vocab_size=1, dim=256, hidden_size=512),
    },
    stages={
        "train": TrainConfig(
            steps=6_000,
            ema_decay=0.995,
            optimizer=OptimizerConfig(name="muon", lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98)),
            schedule=ScheduleConfig(warmup_steps=300),
            checkpoint=CheckpointConfig(
                evaluate_every=500, checkpoint_every=500, best_metric="loss", greater_is_better=False
            ),
        )
    },
    presets={
        "transformer-base": _TRANSFORMER_BASE,
        "long": {"model.dropout": 0.3, "train.steps": 16_000, "train.schedule": {"warmup_steps": 800}},
    },
    model_overrides={"rnn-attention": {"train.optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}}},
    build=build,
    data_fields=("vocab_size",),
)
