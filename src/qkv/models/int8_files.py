"""Weights in files as int8, with a float16 scale for each row of a matrix: a quarter of float32.

For computing with int8 weights, see `qkv.nn.quantized`.
"""

from pathlib import Path

import torch

SCALE = ".int8_scale"  # ends the name of the scales of a tensor that is stored as int8


def to_int8(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Round matrices to int8 with a scale for each row, the largest magnitude over 127, and the rest to float16.

    >>> stored = to_int8({"weight": torch.tensor([[1.0, -0.5], [0.0, 12.7]])})
    >>> stored["weight"].tolist(), [round(scale, 3) for scale in stored["weight.int8_scale"].tolist()]
    ([[127, -64], [0, 127]], [0.008, 0.1])
    """
    stored = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or not tensor.is_floating_point():
            stored[name] = tensor.half() if tensor.is_floating_point() else tensor
            continue
        rows = tensor.float().flatten(1)
        scale = (rows.abs().amax(1) / 127).clamp(min=2**-24).half()  # the smallest float16
        stored[name] = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8).view_as(tensor)
        stored[name + SCALE] = scale
    return stored


def from_int8(tensors: dict[str, torch.Tensor], where: Path) -> dict[str, torch.Tensor]:
    """The tensors that `to_int8` stored, as float32; others unchanged. `where` is for error messages."""
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith(SCALE)}
    if not scales:
        return tensors
    result = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    for name in scales:
        scale, rows = result.pop(name), result.get(name.removesuffix(SCALE))
        if rows is None or rows.dim() < 2 or scale.shape != rows.shape[:1]:
            raise ValueError(f"{where}: {name} must have one number for each row of {name.removesuffix(SCALE)}")
        result[name.removesuffix(SCALE)] = rows.float() * scale.view(-1, *(1,) * (rows.dim() - 1))
    return result
