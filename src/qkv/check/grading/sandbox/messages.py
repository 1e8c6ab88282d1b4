"""Messages between grader and sandbox: tensors as safetensors, everything else as JSON in the header.

Both sides use it. The grader reads bytes that a submission may have written: `decode` returns a message or raises
ValueError, whatever the bytes are.
"""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
MAX_HEADER_BYTES = 1_000_000


def encode(tensors: dict[str, Tensor], fields: dict[str, Any]) -> bytes:
    """Pack tensors and JSON fields into one message; raises ValueError if `decode` would not accept it."""
    for tensor in tensors.values():
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
            kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout).removeprefix("torch.")
            raise ValueError(f"expected a dense tensor of floating-point numbers, integers or booleans, got {kind}")
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    message = safetensors.torch.save(copies, {"fields": json.dumps(fields)})
    if int.from_bytes(message[:8], "little") > MAX_HEADER_BYTES:
        raise ValueError(f"the names and sizes of its {len(tensors)} tensors take more than {MAX_HEADER_BYTES} bytes")
    return message


def decode(message: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Unpack the tensors and the JSON fields of a message; raises ValueError if it is not one."""
    try:
        length = int.from_bytes(message[:8], "little")
        if len(message) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, len(message) - 8):
            raise ValueError("the header length is out of range")
        header = json.loads(message[8 : 8 + length].decode("utf-8"))
        fields = json.loads(header["__metadata__"]["fields"])
        tensors = safetensors.torch.load(message)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust code is no Exception
        raise ValueError(f"the reply is not a valid message ({type(error).__name__})") from None
    if not isinstance(fields, dict) or any(tensor.dtype not in DTYPES for tensor in tensors.values()):
        raise ValueError("the reply is not a valid message (unexpected fields or dtypes)")
    return tensors, fields


def text_to_tensor(text: str) -> Tensor:
    """Encode a string as its code points.

    >>> tensor_to_text(text_to_tensor("naïve ⁇"))
    'naïve ⁇'
    """
    return torch.tensor([ord(letter) for letter in text], dtype=torch.int64)


def tensor_to_text(points: Tensor) -> str:
    """Decode code points to a string; raises ValueError if they are not valid."""
    if points.ndim != 1 or points.is_floating_point():
        raise ValueError("the reply is not a valid text")
    try:
        return "".join(chr(point) for point in points.tolist())
    except (ValueError, OverflowError):
        raise ValueError("the reply is not a valid text") from None
