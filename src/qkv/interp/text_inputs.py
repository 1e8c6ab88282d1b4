"""Prepare text for a model: encode it to tokens, label each token, and check that the model can read it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qkv import checkpoints
from qkv.checkpoints.loading import resolve
from qkv.data.text import tokenizers
from qkv.interp.forward import Inputs, eval_mode
from qkv.models import Model
from qkv.models.folder import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Text = str | Sequence[int]
NUMBERS = re.compile(r"\s*\d+([\s,]+\d+)*\s*")
START_TOKENS = ("<s>", "<bos>", "<start>", "[BOS]", "[CLS]")
STOP_TOKENS = ("</s>", "<eos>", "<stop>", "[EOS]", "[SEP]")


def find_tokenizer(model: nn.Module, checkpoint: str | Path | None) -> Tokenizer | None:
    """The tokenizer of a model, or the one in its checkpoint folder; None if there is none."""
    if isinstance(model, Model) and TOKENIZER in model.extra_files:
        return checkpoints.load_tokenizer(model)
    if checkpoint is None:
        return None
    path = resolve(checkpoint)
    return checkpoints.load_tokenizer(path) if path.is_dir() and (path / TOKENIZER).is_file() else None


def encode(tokenizer: Tokenizer | None, text: Text, checkpoint: str, what: str = "text") -> list[int]:
    """The tokens of a text, with special tokens; without a tokenizer the text must be token ids.

    what: the name of the text in error messages.
    """
    if not isinstance(text, str):
        return [int(token) for token in text]
    tokenizers.check_length(text, f"the {what}")
    if tokenizer is not None:
        tokens = tokenizers.encode(tokenizer, text, f"the {what}", add_special_tokens=True).tolist()
        if not tokens:
            raise ValueError(f"the {what} {text!r} has no tokens; it needs at least one")
        return tokens
    if NUMBERS.fullmatch(text):
        return [int(token) for token in re.findall(r"\d+", text)]
    raise ValueError(f'{checkpoint} has no {TOKENIZER} to encode a text with; pass token ids instead: "12 7 99"')


def token_labels(tokenizer: Tokenizer | None, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text of each token, with spaces shown as spaces; without a tokenizer its id."""
    if tokenizer is None:
        return tuple(str(token) for token in tokens)
    return tuple(_token_label(tokenizer, token) for token in tokens)


def _token_label(tokenizer: Tokenizer, token: int) -> str:
    piece = tokenizer.id_to_token(token)
    if piece is None:
        return str(token)
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)]).decode("utf-8", errors="backslashreplace")
    if "▁" in piece:
        return piece.replace("▁", " ")
    if any(letter in piece for letter in "ĠĊĉ") or not piece.isascii():
        return _decode_byte_level(piece)
    return piece


def _decode_byte_level(piece: str) -> str:
    """A piece of a byte-level tokenizer as text; unchanged if it is not in the byte-level alphabet."""
    try:
        return bytes(BYTES[letter] for letter in piece).decode("utf-8")
    except KeyError:
        return piece
    except UnicodeDecodeError:
        return bytes(BYTES[letter] for letter in piece).decode("utf-8", errors="backslashreplace")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable bytes stand for themselves, the others follow from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_alphabet()


def text_inputs(
    model: nn.Module, tokenizer: Tokenizer | None, text: Text, checkpoint: str
) -> tuple[Inputs, tuple[str, ...], tuple[str, ...]]:
    """A text model's inputs, the labels of its tokens, and notes."""
    tokens = encode(tokenizer, text, checkpoint)
    notes = _check_tokens(model, tokens, "text")
    tensor = torch.tensor([tokens])
    inputs: Inputs = tensor if isinstance(model, Model) else {"input_ids": tensor}
    return inputs, token_labels(tokenizer, tokens), notes


def pair_inputs(
    model: nn.Module, tokenizer: Tokenizer | None, text: Text, target: Text | None, max_new_tokens: int, checkpoint: str
) -> tuple[Inputs, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """An encoder–decoder's inputs, the labels of the source's and the target's tokens, and notes."""
    source = encode(tokenizer, text, checkpoint, "source")
    notes = _check_tokens(model, source, "source")
    start, stop = _start_and_stop_tokens(model, tokenizer)
    if target is None:
        tokens = _generate_target(model, source, max_new_tokens, start, stop)
        notes += (f"the model generated the target itself, {len(tokens) - 1} tokens",)
    else:
        tokens = [start, *(token for token in encode(tokenizer, target, checkpoint, "target") if token != start)]
    notes += _check_tokens(model, tokens, "target")
    both = torch.tensor([source]), torch.tensor([tokens])
    inputs: Inputs = both if isinstance(model, Model) else {"input_ids": both[0], "decoder_input_ids": both[1]}
    return inputs, token_labels(tokenizer, source), token_labels(tokenizer, tokens), notes


def _start_and_stop_tokens(model: nn.Module, tokenizer: Tokenizer | None) -> tuple[int, int]:
    """The tokens that start and end a target."""
    config: Any = getattr(model, "config", None)
    names = ("decoder_start_token_id", "bos_token_id", "eos_token_id")
    found = {name: getattr(config, name, None) for name in names}
    if isinstance(model, Model) and "huggingface.json" in model.extra_files:
        settings = json.loads(model.extra_files["huggingface.json"])
        found = {name: settings.get(name) for name in names}
    start, stop = found["decoder_start_token_id"], found["eos_token_id"]
    start = found["bos_token_id"] if start is None else start
    start = _first_known_token(tokenizer, START_TOKENS) if start is None else start
    stop = _first_known_token(tokenizer, STOP_TOKENS) if stop is None else stop
    stop = stop[0] if isinstance(stop, list) and stop else stop
    if not isinstance(start, int):
        raise ValueError(
            "the checkpoint does not say which token starts a target; in Python use "
            "qkv.interp.trace(model, (source, target))"
        )
    return start, stop if isinstance(stop, int) else start


def _first_known_token(tokenizer: Tokenizer | None, names: Sequence[str]) -> int | None:
    if tokenizer is None:
        return None
    return next((token for name in names if (token := tokenizer.token_to_id(name)) is not None), None)


def _generate_target(model: Any, source: list[int], max_new_tokens: int, start: int, stop: int) -> list[int]:
    """What an encoder–decoder generates greedily, after its start token."""
    limit = max_input_tokens(model)
    max_new_tokens = max_new_tokens if limit is None else min(max_new_tokens, limit - 1)
    tokens = torch.tensor([source])
    with eval_mode(model):
        if isinstance(model, Model):
            generated = model.generate(tokens, max_new_tokens, start_token=start, stop_token=stop)  # pyright: ignore
            return [start, *generated[0].tolist()]
        target = [start]
        while len(target) <= max_new_tokens:
            output = model(input_ids=tokens, decoder_input_ids=torch.tensor([target]))
            if not isinstance(output.get("logits"), torch.Tensor):
                raise ValueError(f"this {type(model).__name__} has no head to generate a target with; pass the target")
            target.append(int(output.logits[0, -1].argmax()))
            if target[-1] == stop:
                break
        return target


def max_input_tokens(model: nn.Module) -> int | None:
    """How many tokens a model can read at most; None if nothing in it sets a limit."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, Model):
        learned = getattr(config, "position", None) == "learned"
        return getattr(model, "max_positions", None) or (config.max_length if learned else None)
    length = getattr(config, "max_position_embeddings", None)
    tables = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and ("pos" in name.split(".")[-1] or name.endswith("wpe"))
    ]
    if tables and isinstance(length, int):
        tables.append(length)
    return min(tables, default=None)


def _check_tokens(model: nn.Module, tokens: list[int], what: str) -> tuple[str, ...]:
    """A ValueError for tokens that the model cannot read; a note on a text longer than the model was trained for."""
    config: Any = getattr(model, "config", None)
    vocab_size = getattr(config, "vocab_size", None)
    if isinstance(vocab_size, int) and not all(0 <= token < vocab_size for token in tokens):
        raise ValueError(
            f"tokens must be 0 to {vocab_size - 1}, the model's vocabulary; got {max(tokens)} in the {what}"
        )
    limit = max_input_tokens(model)
    if limit is not None and len(tokens) > limit:
        raise ValueError(
            f"the {what} has {len(tokens)} tokens and this model knows {limit} positions; give at most {limit}"
        )
    trained = getattr(config, "max_length", None) or getattr(config, "max_position_embeddings", None)
    if isinstance(trained, int) and len(tokens) > trained:
        return (f"the {what} has {len(tokens)} tokens, more than the {trained} that the model was made for",)
    return ()
