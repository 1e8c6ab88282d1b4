"""Text to numbers and back: characters, or byte-level BPE trained in place, by the tokenizers library.

What a model is trained with travels with it: `model.files["tokenizer.json"] = as_file(tokenizer)`, and
`qkv.checkpoints.tokens.tokenizer(model)` gives it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, START, STOP = 0, 1, 2
SPECIAL = ("<pad>", "<start>", "<stop>")  # at PAD, START, STOP


def character_tokenizer(texts: Iterable[str], special: Sequence[str] = ()) -> Tokenizer:
    """One number for each character that occurs, in the order of their code points, after the `special` ones.

    >>> tokenizer = character_tokenizer(["cab"], special=("□",))
    >>> to_ids(tokenizer, "abc").tolist(), to_text(tokenizer, torch.tensor([3, 1, 2]))
    ([1, 2, 3], 'cab')
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    found: set[str] = set()
    for text in texts:
        found.update(text)
    characters = [*special, *sorted(found - set(special))]
    if not found:
        raise ValueError("a character tokenizer is made from text; got none")
    vocabulary = {character: number for number, character in enumerate(characters)}
    # the unknown token is in no vocabulary, so that a character nobody has seen is refused and not lost
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def bpe_tokenizer(
    texts: Iterable[str], vocab: int, special: Sequence[str] = SPECIAL, *, spaced: bool = False
) -> Tokenizer:
    """Byte-level BPE: `vocab` numbers for the `special` ones, the 256 bytes and the most frequent pairs; any text fits.

    spaced: read every text as if a space stood before it, so that a word has the same numbers wherever it stands.

    >>> tokenizer = bpe_tokenizer(["low lower lowest"] * 9, vocab=270)
    >>> to_text(tokenizer, to_ids(tokenizer, "naïve ⁇ 雪"))
    'naïve ⁇ 雪'
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(alphabet) + len(special)
    if vocab < least:
        raise ValueError(f"BPE begins with {least} tokens (bytes and {len(special)} special ones); got vocab={vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)  # pyright: ignore[reportAttributeAccessIssue]
    plain = decoders.ByteLevel()
    tokenizer.decoder = decoders.Sequence([plain, decoders.Strip(" ", 1, 0)]) if spaced else plain  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(special),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def to_ids(tokenizer: Tokenizer, text: str, where: str = "the text") -> Tensor:
    """The numbers of a text (n,), int64; what the tokenizer does not know is a ValueError that names it."""
    return torch.tensor(_encoded(tokenizer, text, where), dtype=torch.int64)


def all_ids(tokenizer: Tokenizer, texts: Sequence[str], where: str = "the text") -> list[Tensor]:
    """The numbers of each text; `where` names the file, so that a line can be named."""
    try:
        return [
            torch.tensor(e.ids, dtype=torch.int64) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
    except Exception:  # one of them cannot be: find out which
        return [to_ids(tokenizer, text, f"{where}, line {line}") for line, text in enumerate(texts, start=1)]


def to_text(tokenizer: Tokenizer, ids: Tensor) -> str:
    """The text that numbers stand for."""
    return tokenizer.decode(ids.tolist())


def as_file(tokenizer: Tokenizer) -> bytes:
    """The tokenizer.json."""
    return tokenizer.to_str().encode("utf-8")


def _encoded(tokenizer: Tokenizer, text: str, where: str) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except Exception as error:  # the library raises a bare Exception
        known = tokenizer.get_vocab()
        unknown = [character for character in text if character not in known]
        if not unknown:
            raise ValueError(f"{where} cannot be made tokens: {error}") from None
        place = text.index(unknown[0])
        raise ValueError(
            f"{where}: the character {unknown[0]!r} (place {place + 1}) did not occur when the tokenizer was made; "
            f"it knows {len(known)} characters"
        ) from None
