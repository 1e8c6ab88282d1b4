"""Translation: the encoder–decoder, or an RNN with attention in its place, learns from pairs of sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from qkv.data.pairs import Pair, PairBatches, read_pairs
from qkv.data.tokens import START, STOP, all_ids, as_file, bpe_tokenizer, to_text
from qkv.models import RNNSeq2SeqConfig, Seq2SeqConfig
from qkv.training import Optimiser, Saving, Schedule, Settings
from qkv.training.objectives import sequence_to_sequence
from qkv.training.recipes.building import drawn
from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.measure import judging, measured

SHOWN = 12


@dataclass(frozen=True)
class PairData:
    """Where pairs of sentences come from.

    path: a folder with train.SOURCE, train.TARGET, val.… and test….…, line by line; "numbers" are pairs that qkv makes:
        numbers in English words and in German ones.
    source, target: the endings of the files. vocab: tokens of the BPE that both languages share.
    tokens: places on the wider side of a batch. length: pairs with a longer side are left out of training.
    beams: of the search that translates the test; length_penalty: how much it likes long sentences (see `beam_search`).
    judged: sentences that are translated on the way, for BLEU.
    """

    path: str = "numbers"
    source: str = "en"
    target: str = "de"
    vocab: int = 4000
    tokens: int = 2048
    length: int = 128
    smoothing: float = 0.1
    beams: int = 4
    length_penalty: float = 1.4
    judged: int = 200


def build(recipe: Recipe) -> Task:
    """Read the pairs, make the shared tokenizer, build the model for its vocabulary."""
    data: PairData = recipe.data
    parts = opened(data, recipe.seed)
    tokenizer = bpe_tokenizer((sentence for pair in parts["train"] for sentence in pair), data.vocab)
    sides = {
        name: [all_ids(tokenizer, side, name) for side in zip(*pairs, strict=True)] for name, pairs in parts.items()
    }
    train = PairBatches(*sides["train"], tokens=data.tokens, length=data.length, seed=recipe.seed)
    validation = PairBatches(*sides["val"], tokens=data.tokens, length=10**6, shuffled=False)
    config = replace(recipe.model, vocab_size=tokenizer.get_vocab_size())
    plain = sequence_to_sequence()
    watched = parts["val"][: data.judged]
    notes = (f"{train.left_out:,} training pairs are longer than {data.length} tokens and left out",) * (
        train.left_out > 0
    )

    search: dict[str, Any] = {"beams": data.beams, "length_penalty": data.length_penalty}

    def searched(model: nn.Module, pairs: list[Pair]) -> list[str]:
        return translated(model, tokenizer, pairs, **search)

    def validate(model: nn.Module) -> dict[str, float]:
        return {**measured(model, validation, plain), "bleu": bleu(translated(model, tokenizer, watched, 1), watched)}

    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=(Stage("train", train, sequence_to_sequence(smoothing=data.smoothing), validate),),
        test=lambda model: {"bleu": bleu(searched(model, parts["test"]), parts["test"])},
        samples=lambda model: [
            {"source": pair.source, "translation": said, "reference": pair.target}
            for pair, said in zip(watched[:SHOWN], searched(model, watched[:SHOWN]), strict=True)
        ],
        purpose=lambda _: {"task": "translate", "start": START, "stop": STOP, **search},
        files={"tokenizer.json": as_file(tokenizer)},
        notes=notes,
    )


def opened(data: PairData, seed: int) -> dict[str, list[Pair]]:
    """The pairs for training, validation and test."""
    if data.path == "numbers":
        from qkv.data.number_words import drawn_numbers, in_english, in_german

        pairs = [Pair(in_english(number), in_german(number)) for number in drawn_numbers(11_400, seed)]
        return {"train": pairs[:11_000], "val": pairs[11_000:11_200], "test": pairs[11_200:]}
    folder = Path(data.path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one with train.{data.source} and train.{data.target}, …")
    parts = {}
    for name in ("train", "val", "test"):
        found = sorted(folder.glob(f"{name}*.{data.source}"))
        if not found:
            raise ValueError(f"{folder} has no {name}….{data.source}; expected train, val and test in both languages")
        parts[name] = read_pairs(found[0], found[0].with_suffix(f".{data.target}"))
    return parts


def translated(
    model: nn.Module, tokenizer: Tokenizer, pairs: list[Pair], beams: int, length_penalty: float = 0.6, size: int = 50
) -> list[str]:
    """The sources of these pairs in the model's words; sentences of like length are translated together."""
    search: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty}
    ids = all_ids(tokenizer, [pair.source for pair in pairs], "the sources")
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    said = [""] * len(ids)
    with judging(model) as device:
        for begin in range(0, len(order), size):
            rows = order[begin : begin + size]
            sources = [torch.cat((ids[i], torch.tensor([STOP]))) for i in rows]
            source = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True).to(device)
            lengths = torch.tensor([len(row) for row in sources], device=device)
            present = torch.arange(source.shape[1], device=device) < lengths[:, None]
            count = 2 * source.shape[1] + 10
            count = count if model.limit is None else min(count, model.limit)  # type: ignore[type-var]
            found: Any = model.generate(source, count, start=START, stop=STOP, token_mask=present, **search)  # type: ignore[operator]
            for row, target in zip(rows, found.cpu(), strict=True):
                ended = (target == STOP).nonzero()
                said[row] = to_text(tokenizer, target[: int(ended[0])] if len(ended) else target)
    return said


def bleu(said: list[str], pairs: list[Pair]) -> float:
    """BLEU of the whole set, cased, as sacrebleu computes it."""
    try:
        import sacrebleu
    except ImportError:
        raise ValueError("BLEU is computed by sacrebleu: pip install 'qkv[text]'") from None
    return sacrebleu.corpus_bleu(said, [[pair.target for pair in pairs]]).score


_PUBLISHED: dict[str, Any] = {  # the order and the optimiser of 2017, in a smaller size
    "model.norm_order": "post",
    "model.dim": 256,
    "model.mlp_dim": 1024,
    "model.heads": 8,
    "model.encoder_layers": 3,
    "model.decoder_layers": 3,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "data.tokens": 4096,
    "train.optimiser": {"name": "adamw", "lr": 7e-4, "weight_decay": 0.01},
    "train.schedule": {"warmup": 1000},
}
TRANSLATE = System(
    name="translate",
    summary="An encoder–decoder on line-aligned pairs (--data FOLDER); without them on numbers in two languages.",
    data=PairData(),
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
        "train": Settings(
            steps=6_000,
            average=0.995,
            optimiser=Optimiser(name="muon", lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98)),
            schedule=Schedule(warmup=300),
            saving=Saving(evaluate_every=500, checkpoint_every=500, best="loss", larger=False),
        )
    },
    presets={
        "2017": _PUBLISHED,
        "long": {"model.dropout": 0.3, "train.steps": 16_000, "train.schedule": {"warmup": 800}},
    },
    habits={"rnn-attention": {"train.optimiser": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01}}},
    build=build,
    fills=("vocab",),
)
