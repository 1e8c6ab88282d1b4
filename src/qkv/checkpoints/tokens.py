"""Text to tokens and back: the tokenizer.json that came with a model, used as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkv.checkpoints.fetch import resolve
from qkv.checkpoints.llama2c import read_tokenizer
from qkv.models import Model
from qkv.models.folder import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizer(source: Model | str | Path) -> Tokenizer:
    """The tokenizer of a model, of a folder with a tokenizer.json, or of a llama2.c tokenizer file (.bin).

    Its `encode(text).ids` and `decode(ids)` are the tokenizers library's.
    """
    from tokenizers import Tokenizer

    if isinstance(source, Model):
        where, content = f"this {type(source).__name__}", source.files.get(TOKENIZER)
    else:
        path = resolve(source)
        if path.suffix == ".bin":
            return Tokenizer.from_str(read_tokenizer(path))
        path = path / TOKENIZER if path.is_dir() else path
        where, content = str(path.parent), path.read_bytes() if path.is_file() else None
    if content is None:
        raise ValueError(f"{where} has no {TOKENIZER}; its tokens are numbers only")
    try:
        return Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"the {TOKENIZER} of {where} cannot be read: {error}") from None
