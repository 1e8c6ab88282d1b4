"""Read llama2.c files: a header of seven integers, then float32 tensors in a fixed order; and its tokenizer.

The file holds no tensor names, so its length must be exactly what its header implies.
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

HEADER = struct.Struct("<7i")  # dim, mlp_dim, layers, heads, kv_heads, vocab_size (negative: not tied), max_length
MAX_SIZE = 2**31
VERSIONED = 0x616B3432  # the first bytes of files of version 1 and 2

# In the file's order: our name and the shape; a star stands for the layers, which the file stacks.
TABLE = (
    ("tokens.weight", ("vocab_size", "dim")),
    ("blocks.*.attention_norm.weight", ("dim",)),
    ("blocks.*.attention.to_q.weight", ("dim", "dim")),
    ("blocks.*.attention.to_k.weight", ("kv_dim", "dim")),
    ("blocks.*.attention.to_v.weight", ("kv_dim", "dim")),
    ("blocks.*.attention.to_out.weight", ("dim", "dim")),
    ("blocks.*.feed_forward_norm.weight", ("dim",)),
    ("blocks.*.feed_forward.to_gate.weight", ("mlp_dim", "dim")),
    ("blocks.*.feed_forward.to_out.weight", ("dim", "mlp_dim")),
    ("blocks.*.feed_forward.to_hidden.weight", ("mlp_dim", "dim")),
    ("norm.weight", ("dim",)),
    (None, ("max_length", "head_dim")),  # RoPE's cosines and sines, which we compute when needed
    ("head.weight", ("vocab_size", "dim")),  # absent with tied embeddings
)


def load_llama2c(path: str | Path) -> GPT:
    """Load a llama2.c model file, with the tokenizer of its vocabulary from the same folder (tok*.bin), if any."""
    path = Path(path)
    content = path.read_bytes()
    config, sizes = _read_header(path, content)
    parts = _list_parts(config, sizes)
    counts = [math.prod(shape) for _, shape in parts]
    expected = HEADER.size + 4 * sum(counts)
    if len(content) != expected:
        raise ValueError(f"{path} should be {expected} bytes long by its header, got {len(content)}")
    numbers = torch.from_numpy(np.frombuffer(content, dtype="<f4", offset=HEADER.size).astype(np.float32))
    model, state = GPT(config), {}
    for (name, shape), part in zip(parts, numbers.split(counts), strict=True):
        state.update(_unstack(name, part.view(shape)))
    model.load_state_dict({**state, "head.weight": state.get("head.weight", state["tokens.weight"])})
    for other in sorted(path.parent.glob("tok*.bin")):
        tokenizer = "" if other == path else read_llama2c_tokenizer(other)
        if tokenizer and len(json.loads(tokenizer)["model"]["vocab"]) == config.vocab_size:
            model.extra_files[TOKENIZER] = tokenizer.encode()
            break
    return model.eval()


def _read_header(path: Path, content: bytes) -> tuple[GPTConfig, dict[str, int]]:
    if len(content) < HEADER.size:
        raise ValueError(
            f"{path} is {len(content)} bytes long; a llama2.c file begins with a header of {HEADER.size} bytes"
        )
    if content[:2] in (b"PK", b"\x80\x02", b"\x80\x04"):
        raise ValueError(f"{path} is a pickle, which could run any code when read; only safetensors is read")
    if struct.unpack("<I", content[:4])[0] == VERSIONED:
        version = struct.unpack("<i", content[4:8])[0]
        raise ValueError(f"{path} is a llama2.c file of version {version}; only version 0 is supported")
    dim, mlp_dim, layers, heads, kv_heads, vocab_size, max_length = HEADER.unpack_from(content)
    sizes = (dim, mlp_dim, layers, heads, kv_heads, abs(vocab_size), max_length)
    if min(sizes) < 1 or max(sizes) >= MAX_SIZE or dim % heads or heads % kv_heads or (dim // heads) % 2:
        raise ValueError(
            f"{path} is not a model: the only model that is one file is a llama2.c file, and its header does not fit"
        )
    config = GPTConfig(
        vocab_size=abs(vocab_size),
        max_length=max_length,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp_dim=mlp_dim,
        activation="swiglu",
        norm="rms",
        position="rope",
        bias=False,
        tie_embeddings=vocab_size > 0,
    )
    head_dim = dim // heads
    named = {"vocab_size": abs(vocab_size), "dim": dim, "mlp_dim": mlp_dim, "max_length": max_length}
    return config, {**named, "kv_dim": kv_heads * head_dim, "head_dim": head_dim}


def _list_parts(config: GPTConfig, sizes: dict[str, int]) -> list[tuple[str | None, tuple[int, ...]]]:
    """The name and shape of each part of the file."""
    parts = []
    for name, axes in TABLE:
        shape = tuple(sizes[axis] for axis in axes)
        if name is not None and "*" in name:
            shape = (config.layers, *shape)
        if name != "head.weight" or not config.tie_embeddings:
            parts.append((name, shape))
    return parts


def _unstack(name: str | None, part: Tensor) -> dict[str, Tensor]:
    """The tensors of one part by our names: one for each layer, if it stacks layers."""
    if name is None:
        return {}
    if "*" not in name:
        return {name: part}
    return {name.replace("*", str(i)): layer for i, layer in enumerate(part)}


def read_llama2c_tokenizer(path: str | Path) -> str:
    """Convert a llama2.c tokenizer to the text of a tokenizer.json; merges are ordered by score."""
    path = Path(path)
    pieces, scores = _read_pieces(path, path.read_bytes())
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [
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
        "merges": [[left, right] for _, _, left, right in sorted(merges)],
    }
    converted: dict[str, Any] = {
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
    return json.dumps(converted, ensure_ascii=False)


def _read_pieces(path: Path, content: bytes) -> tuple[list[str], list[float]]:
    """The pieces of text and their scores. In the file: the longest length, then score, length and bytes of each."""
    pieces, scores, at = [], [], 4
    while at < len(content):
        if at + 8 > len(content):
            raise ValueError(f"{path} is cut off or not a llama2.c tokenizer")
        score, length = struct.unpack_from("<fi", content, at)
        piece = content[at + 8 : at + 8 + length]
        if length < 0 or len(piece) != length or not math.isfinite(score):
            raise ValueError(f"{path} is cut off or not a llama2.c tokenizer")
        pieces.append(piece.decode("utf-8", errors="replace").strip("\n") if len(pieces) < 3 else _decode(piece, path))
        scores.append(score)
        at += 8 + length
    if len(pieces) < 259 or len(set(pieces)) != len(pieces):
        raise ValueError(f"{path} is cut off or not a llama2.c tokenizer: it holds {len(set(pieces))} different pieces")
    return pieces, scores


def _decode(piece: bytes, path: Path) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a llama2.c tokenizer: one piece is not UTF-8") from None
