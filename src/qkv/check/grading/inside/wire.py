"""Messages between grader and submission: tensors as safetensors, words as JSON in its header.

Both sides use it. The grader reads what a submission wrote: whatever the bytes are, `decode` gives a message or raises
ValueError.
"""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
LONGEST_HEADER = 1_000_000


def encode(tensors: dict[str, Tensor], words: dict[str, Any]) -> bytes:
    """One message."""
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(whole, {"words": json.dumps(words)})


def decode(message: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the words of a message; ValueError if it is none."""
    try:
        length = int.from_bytes(message[:8], "little")
        if len(message) < 8 or not 2 <= length <= min(LONGEST_HEADER, len(message) - 8):
            raise ValueError("its header has no sensible length")
        header = json.loads(message[8 : 8 + length].decode("utf-8"))
        words = json.loads(header["__metadata__"]["words"])
        tensors = safetensors.torch.load(message)
    except (Exception, RecursionError) as error:
        raise ValueError(f"what came is no message ({type(error).__name__})") from None
    if not isinstance(words, dict) or any(tensor.dtype not in KINDS for tensor in tensors.values()):
        raise ValueError("what came is no message (its words or its dtypes are none of ours)")
    return tensors, words


def text_tensor(text: str) -> Tensor:
    """A text as its code points.

    >>> tensor_text(text_tensor("naïve ⁇"))
    'naïve ⁇'
    """
    return torch.tensor([ord(letter) for letter in text], dtype=torch.int64)


def tensor_text(points: Tensor) -> str:
    """The text of these code points; ValueError if they are none."""
    if points.ndim != 1 or points.is_floating_point():
        raise ValueError("what came is no text")
    try:
        return "".join(chr(point) for point in points.tolist())
    except (ValueError, OverflowError):
        raise ValueError("what came is no text") from None
