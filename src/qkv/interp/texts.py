"""From a text to tokens that a model reads, and back to what each token is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qkv import checkpoints as hub
from qkv.checkpoints.fetch import resolve
from qkv.interp.run import Inputs, observing
from qkv.models import Model
from qkv.models.folder import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Text = str | Sequence[int]
NUMBERS = re.compile(r"\s*\d+([\s,]+\d+)*\s*")


def tokenizer_of(model: nn.Module, where: str | Path | None) -> Tokenizer | None:
    """The tokenizer of a model, or the one that lies with its checkpoint; None if there is none."""
    if isinstance(model, Model) and TOKENIZER in model.files:
        return hub.tokenizer(model)
    if where is None:
        return None
    path = resolve(where)
    return hub.tokenizer(path) if path.is_dir() and (path / TOKENIZER).is_file() else None


def encode(reader: Tokenizer | None, text: Text, where: str) -> list[int]:
    """The tokens of a text; without a tokenizer, the text is the tokens' numbers."""
    if not isinstance(text, str):
        return [int(token) for token in text]
    if reader is not None:
        tokens = reader.encode(text).ids
        if not tokens:
            raise ValueError(f"the text {text!r} has no tokens; give one with at least one")
        return tokens
    if NUMBERS.fullmatch(text):
        return [int(token) for token in re.findall(r"\d+", text)]
    raise ValueError(
        f'{where} has no {TOKENIZER}, so a text means nothing to it; give its tokens as numbers: "12 7 99"'
    )


def names_of(reader: Tokenizer | None, tokens: Sequence[int]) -> tuple[str, ...]:
    """What tokens are called: their text as it stands, with a space shown as a space."""
    if reader is None:
        return tuple(str(token) for token in tokens)
    return tuple(_name(reader, token) for token in tokens)


def _name(reader: Tokenizer, token: int) -> str:
    piece = reader.id_to_token(token)
    if piece is None:
        return str(token)
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)]).decode("utf-8", errors="backslashreplace")
    if "▁" in piece:
        return piece.replace("▁", " ")
    if any(letter in piece for letter in "ĠĊĉ") or not piece.isascii():
        return _byte_level(piece)
    return piece


def _byte_level(piece: str) -> str:
    """A piece written in the alphabet of byte-level tokenizers, as its text; as it is if it is not in that alphabet."""
    try:
        return bytes(BYTES[letter] for letter in piece).decode("utf-8")
    except KeyError:
        return piece
    except UnicodeDecodeError:
        return bytes(BYTES[letter] for letter in piece).decode("utf-8", errors="backslashreplace")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_alphabet()


def text_inputs(
    model: nn.Module, reader: Tokenizer | None, text: Text, where: str
) -> tuple[Inputs, tuple[str, ...], tuple[str, ...]]:
    """What a model of text is called with, what its tokens are called, and notes."""
    tokens = encode(reader, text, where)
    notes = _check(model, tokens, "text")
    tensor = torch.tensor([tokens])
    inputs: Inputs = tensor if isinstance(model, Model) else {"input_ids": tensor}
    return inputs, names_of(reader, tokens), notes


def pair_inputs(
    model: nn.Module, reader: Tokenizer | None, text: Text, target: Text | None, count: int, where: str
) -> tuple[Inputs, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What an encoder–decoder is called with, what source's and target's tokens are called, and notes."""
    source = encode(reader, text, where)
    notes = _check(model, source, "source")
    start, stop = ends_of(model, reader)
    if target is None:
        written = _written(model, source, count, start, stop)
        notes += (f"the target is what the model wrote itself, {len(written) - 1} tokens",)
    else:
        written = [start, *(token for token in encode(reader, target, where) if token != start)]
    notes += _check(model, written, "target")
    both = torch.tensor([source]), torch.tensor([written])
    inputs: Inputs = both if isinstance(model, Model) else {"input_ids": both[0], "decoder_input_ids": both[1]}
    return inputs, names_of(reader, source), names_of(reader, written), notes


def ends_of(model: nn.Module, reader: Tokenizer | None) -> tuple[int, int]:
    """The tokens that begin and end a target."""
    import json

    config: Any = getattr(model, "config", None)
    found = {name: getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "eos_token_id")}
    if isinstance(model, Model) and "huggingface.json" in model.files:
        found = {name: json.loads(model.files["huggingface.json"]).get(name) for name in found}
    start = found["bos_token_id"] if found["decoder_start_token_id"] is None else found["decoder_start_token_id"]
    stop = found["eos_token_id"]
    for name in ("<s>", "<bos>", "<start>", "[BOS]", "[CLS]") if start is None and reader is not None else ():
        start = reader.token_to_id(name) if start is None and reader is not None else start
    for name in ("</s>", "<eos>", "<stop>", "[EOS]", "[SEP]") if stop is None and reader is not None else ():
        stop = reader.token_to_id(name) if stop is None and reader is not None else stop
    stop = stop[0] if isinstance(stop, list) and stop else stop
    if not isinstance(start, int):
        raise ValueError(
            "the checkpoint does not say which token begins a target; in Python it can be looked at with "
            "qkv.interp.at(model, (source, target))"
        )
    return start, start if not isinstance(stop, int) else stop


def _written(model: Any, source: list[int], count: int, start: int, stop: int) -> list[int]:
    """What an encoder–decoder writes, the likeliest token each time, after its start token."""
    limit = limit_of(model)
    count = count if limit is None else min(count, limit - 1)
    tokens = torch.tensor([source])
    with observing(model):
        if isinstance(model, Model):
            return [start, *model.generate(tokens, count, start=start, stop=stop)[0].tolist()]  # pyright: ignore
        written = [start]
        while len(written) <= count:
            output = model(input_ids=tokens, decoder_input_ids=torch.tensor([written]))
            if not isinstance(output.get("logits"), torch.Tensor):
                raise ValueError(f"this {type(model).__name__} has no head to write a target with; give the target")
            written.append(int(output.logits[0, -1].argmax()))
            if written[-1] == stop:
                break
        return written


def limit_of(model: nn.Module) -> int | None:
    """How many tokens a model can read at most; None if nothing in it sets a limit."""
    if isinstance(model, Model):
        config: Any = model.config
        learned = getattr(config, "position", None) == "learned"
        return getattr(model, "limit", None) or (config.max_length if learned else None)
    config = getattr(model, "config", None)
    length = getattr(config, "max_position_embeddings", None)
    tables = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and ("pos" in name.split(".")[-1] or name.endswith("wpe"))
    ]
    return min([length, *tables]) if tables and isinstance(length, int) else min(tables, default=None)


def _check(model: nn.Module, tokens: list[int], what: str) -> tuple[str, ...]:
    """A ValueError for a text that the model cannot read; notes on one that it was not made for."""
    config: Any = getattr(model, "config", None)
    vocab = getattr(config, "vocab", None) or getattr(config, "vocab_size", None)
    if isinstance(vocab, int) and not all(0 <= token < vocab for token in tokens):
        raise ValueError(f"tokens are from 0 to {vocab - 1}, the model's vocabulary; got {max(tokens)} in the {what}")
    limit = limit_of(model)
    if limit is not None and len(tokens) > limit:
        raise ValueError(
            f"the {what} is {len(tokens)} tokens long and this model knows {limit} positions; give at most {limit}"
        )
    made_for = getattr(config, "length", None) or getattr(config, "max_position_embeddings", None)
    if isinstance(made_for, int) and len(tokens) > made_for:
        return (f"the {what} is {len(tokens)} tokens long, longer than the {made_for} that the model was made for",)
    return ()
