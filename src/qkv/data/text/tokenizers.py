"""Tokenizers: one token per character, or byte-level BPE trained in place; encoding and decoding.

A tokenizer is saved with its model: `model.files["tokenizer.json"] = serialize_tokenizer(tokenizer)`, and
`qkv.checkpoints.load_tokenizer(model)` reads it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv._panics import panics_as_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, START, STOP = 0, 1, 2
SPECIAL_TOKENS = ("<pad>", "<start>", "<stop>")  # at PAD, START, STOP
MAX_CHARACTERS = 1_000_000  # of a text that a model reads at once: encoding cannot be interrupted
MAX_SHOWN = 10  # unknown characters in an error message


def character_tokenizer(texts: Iterable[str], special: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer with one token per character that occurs, sorted by code point, after the `special` ones.

    >>> tokenizer = character_tokenizer(["cab"], special=("□",))
    >>> encode(tokenizer, "abc").tolist(), decode(tokenizer, torch.tensor([3, 1, 2]))
    ([1, 2, 3], 'cab')
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    found: set[str] = set()
    for text in texts:
        found.update(text)
    if not found:
        raise ValueError("a character tokenizer is made from text, got none")
    characters = [*special, *sorted(found - set(special))]
    vocabulary = {character: number for number, character in enumerate(characters)}
    # the unknown token is in no vocabulary, so that an unseen character raises an error and is not lost
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def bpe_tokenizer(
    texts: Iterable[str], vocab_size: int, special: Sequence[str] = SPECIAL_TOKENS, *, add_prefix_space: bool = False
) -> Tokenizer:
    """Train byte-level BPE: `special` tokens, the 256 bytes and the most frequent pairs. It encodes any text.

    add_prefix_space: encode every text as if a space came first, so that a word has the same tokens everywhere.

    >>> tokenizer = bpe_tokenizer(["low lower lowest"] * 9, vocab_size=270)
    >>> decode(tokenizer, encode(tokenizer, "naïve ⁇ 雪"))
    'naïve ⁇ 雪'
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(special)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size must be at least {smallest} for BPE (256 bytes and {len(special)} special tokens), "
            f"got {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)  # pyright: ignore[reportAttributeAccessIssue]
    decoder = decoders.ByteLevel()
    if add_prefix_space:
        decoder = decoders.Sequence([decoder, decoders.Strip(" ", 1, 0)])
    tokenizer.decoder = decoder  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def check_length(text: str, where: str = "the text") -> None:
    """A ValueError for a text that is far longer than any model here reads, before it is encoded.

    The tokenizers library encodes a text in one call, during which neither Ctrl-C nor SIGTERM is handled.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"{where} has {len(text):,} characters, far more than the model can read; give at most {MAX_CHARACTERS:,}"
        )


def encode(tokenizer: Tokenizer, text: str, where: str = "the text", *, add_special_tokens: bool = False) -> Tensor:
    """The token ids of a text (n,), int64. Unknown characters raise a ValueError; `where` names the text in it.

    add_special_tokens: add the tokens that the tokenizer puts around a text, such as [CLS] and [SEP].
    """
    with panics_as_errors("tokenizer.json"):
        try:
            ids = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(_explain_failure(tokenizer, text, where, error)) from None
    return torch.tensor(ids, dtype=torch.int64)


def _explain_failure(tokenizer: Tokenizer, text: str, where: str, error: Exception) -> str:
    """Which characters the tokenizer does not know."""
    known = tokenizer.get_vocab()
    unknown = list(dict.fromkeys(character for character in text if character not in known))
    if not unknown:
        return f"{where} cannot be tokenized: {error}"
    position, vocabulary = text.index(unknown[0]) + 1, f"the tokenizer's vocabulary of {len(known)} characters"
    if len(unknown) == 1:
        return f"{where}: the character {unknown[0]!r} (position {position}) is not in {vocabulary}"
    shown = ", ".join(map(repr, unknown[:MAX_SHOWN])) + (", …" if len(unknown) > MAX_SHOWN else "")
    return f"{where}: the characters {shown} (the first at position {position}) are not in {vocabulary}"


def encode_all(tokenizer: Tokenizer, texts: Sequence[str], where: str = "the text") -> list[Tensor]:
    """The token ids of each text; an error names the line of the file `where`."""
    with panics_as_errors("tokenizer.json"):
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return [torch.tensor(encoding.ids, dtype=torch.int64) for encoding in encodings]
        except Exception:  # one text cannot be encoded: find out which
            return [encode(tokenizer, text, f"{where}, line {line}") for line, text in enumerate(texts, start=1)]


def decode(tokenizer: Tokenizer, ids: Tensor) -> str:
    """The text of token ids (n,)."""
    with panics_as_errors("tokenizer.json"):
        return tokenizer.decode(ids.tolist())


def serialize_tokenizer(tokenizer: Tokenizer) -> bytes:
    """The content of a tokenizer.json."""
    return tokenizer.to_str().encode("utf-8")
