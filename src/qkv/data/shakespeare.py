"""The excerpts of Shakespeare that ship with qkv (public domain; `shakespeare_text/README.md`)."""

import lzma
from importlib.resources import files


def shakespeare() -> tuple[str, str]:
    """The first nine tenths, for training, and the last, which is never trained on.

    >>> train, apart = shakespeare()
    >>> len(train) + len(apart), train[:14]
    (1115394, 'First Citizen:')
    """
    text = lzma.decompress(files("qkv.data.shakespeare_text").joinpath("shakespeare.txt.xz").read_bytes()).decode(
        "utf-8"
    )
    cut = text.index("\n\n", len(text) * 9 // 10) + 2
    return text[:cut], text[cut:]
