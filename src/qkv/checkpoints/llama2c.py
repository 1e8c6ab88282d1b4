"""llama2.c's files: seven whole numbers, then float32 tensors one after another; and its tokenizer.

The file holds no names: its length must be exactly what its header asks for.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.models import GPT, GPTConfig
from qkv.models.folder import TOKENIZER

HEADER = struct.Struct("<7i")  # width, hidden, layers, heads, kv_heads, vocab (negative: not tied), length
LIMIT = 2**31
NEWER = 0x616B3432  # what files of version 1 and 2 begin with

# In the file's order: ours, and its shape; a star stands for the layers, which the file keeps together.
TABLE = (
    ("tokens.weight", ("vocab", "width")),
    ("blocks.*.attention_norm.weight", ("width",)),
    ("blocks.*.attention.to_q.weight", ("width", "width")),
    ("blocks.*.attention.to_k.weight", ("keys", "width")),
    ("blocks.*.attention.to_v.weight", ("keys", "width")),
    ("blocks.*.attention.to_out.weight", ("width", "width")),
    ("blocks.*.feed_forward_norm.weight", ("width",)),
    ("blocks.*.feed_forward.to_gate.weight", ("hidden", "width")),
    ("blocks.*.feed_forward.to_out.weight", ("width", "hidden")),
    ("blocks.*.feed_forward.to_hidden.weight", ("hidden", "width")),
    ("norm.weight", ("width",)),
    (None, ("length", "head")),  # cosines and sines, half a head's width each: computed when needed
    ("head.weight", ("vocab", "width")),  # absent where tied
)


def load_llama2c(path: str | Path) -> GPT:
    """The model in a llama2.c file; a tokenizer of its vocabulary that lies beside it (tok*.bin) comes with it."""
    path = Path(path)
    content = path.read_bytes()
    config, sizes = _header(path, content)
    expected = HEADER.size + 4 * sum(math.prod(shape) for _, shape in _places(config, sizes))
    if len(content) != expected:
        raise ValueError(f"{path} should be {expected} bytes long by its header; got {len(content)}")
    numbers = torch.from_numpy(np.frombuffer(content, dtype="<f4", offset=HEADER.size).astype(np.float32))
    model, state = GPT(config), {}
    for (name, shape), part in zip(
        _places(config, sizes), numbers.split([math.prod(shape) for _, shape in _places(config, sizes)]), strict=True
    ):
        state.update(_named(name, part.view(shape)))
    model.load_state_dict({**state, "head.weight": state.get("head.weight", state["tokens.weight"])})
    beside = [other for other in sorted(path.parent.glob("tok*.bin")) if other != path]
    for other in beside:
        written = read_tokenizer(other)
        if len(json.loads(written)["model"]["vocab"]) == config.vocab_size:
            model.files[TOKENIZER] = written.encode()
            break
    return model.eval()


def _header(path: Path, content: bytes) -> tuple[GPTConfig, dict[str, int]]:
    if len(content) < HEADER.size:
        raise ValueError(f"{path} is {len(content)} bytes long; a llama2.c file begins with a header of {HEADER.size}")
    if content[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise ValueError(f"{path} is a pickle, which could run any code when read; only safetensors is read")
    if struct.unpack("<I", content[:4])[0] == NEWER:
        version = struct.unpack("<i", content[4:8])[0]
        raise ValueError(f"{path} is a llama2.c file of version {version}; only those of version 0 are read")
    width, hidden, layers, heads, kv_heads, vocab, length = HEADER.unpack_from(content)
    sizes = (width, hidden, layers, heads, kv_heads, abs(vocab), length)
    if min(sizes) < 1 or max(sizes) >= LIMIT or width % heads or heads % kv_heads or (width // heads) % 2:
        raise ValueError(f"{path} is not a llama2.c file: its header would be the sizes {sizes}")
    config = GPTConfig(
        vocab_size=abs(vocab),
        max_length=length,
        dim=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp_dim=hidden,
        activation="swiglu",
        norm="rms",
        position="rope",
        bias=False,
        tie_embeddings=vocab > 0,
    )
    head = width // heads
    named = {"vocab": abs(vocab), "width": width, "hidden": hidden, "length": length}
    return config, {**named, "keys": kv_heads * head, "head": head}


def _places(config: GPTConfig, sizes: dict[str, int]) -> list[tuple[str | None, tuple[int, ...]]]:
    """The table made out: each part of the file, and its shape."""
    places = []
    for name, axes in TABLE:
        shape = tuple(sizes[axis] for axis in axes)
        if name is not None and "*" in name:
            shape = (config.layers, *shape)
        if name != "head.weight" or not config.tie_embeddings:
            places.append((name, shape))
    return places


def _named(name: str | None, part: Tensor) -> dict[str, Tensor]:
    if name is None:
        return {}
    return {name.replace("*", str(i)): layer for i, layer in enumerate(part)} if "*" in name else {name: part}


def read_tokenizer(path: str | Path) -> str:
    """A llama2.c tokenizer as the text of a tokenizer.json: pairs merge in the order of their scores."""
    path = Path(path)
    pieces, scores = _pieces(path, path.read_bytes())
    vocab = {piece: index for index, piece in enumerate(pieces)}
    ways = [
        (-scores[index], index, piece[:cut], piece[cut:])
        for piece, index in vocab.items()
        if index > 258  # 0–2 are special, 3–258 single bytes
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    special = [{"id": i, "content": pieces[i], "special": True} for i in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    start = {"SpecialToken": {"id": pieces[1], "type_id": 0}}
    model = {
        "type": "BPE",
        "unk_token": pieces[0],
        "fuse_unk": False,
        "byte_fallback": True,
        "vocab": vocab,
        "merges": [[left, right] for _, _, left, right in sorted(ways)],
    }
    written: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{**one, **flags} for one in special],
        "normalizer": {"type": "Prepend", "prepend": " "},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {pieces[1]: {"id": pieces[1], "ids": [1], "tokens": [pieces[1]]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": model,
    }
    return json.dumps(written, ensure_ascii=False)


def _pieces(path: Path, content: bytes) -> tuple[list[str], list[float]]:
    """Pieces of text and their scores: the longest one's length, then for each a score, a length and its bytes."""
    pieces, scores, at = [], [], 4
    while at < len(content):
        if at + 8 > len(content):
            raise ValueError(f"{path} is cut off or not a llama2.c tokenizer")
        score, length = struct.unpack_from("<fi", content, at)
        piece = content[at + 8 : at + 8 + length]
        if length < 0 or len(piece) != length or not math.isfinite(score):
            raise ValueError(f"{path} is cut off or not a llama2.c tokenizer")
        pieces.append(piece.decode("utf-8", errors="replace").strip("\n") if len(pieces) < 3 else _text(piece, path))
        scores.append(score)
        at += 8 + length
    if len(pieces) < 259 or len(set(pieces)) != len(pieces):
        raise ValueError(f"{path} is cut off or not a llama2.c tokenizer: it holds {len(set(pieces))} different pieces")
    return pieces, scores


def _text(piece: bytes, path: Path) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a llama2.c tokenizer: a piece of it is not UTF-8") from None
