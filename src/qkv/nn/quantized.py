"""Weight-only int8 quantization of linear layers: a quarter of the memory, and of what a decoding step reads."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

CHUNK = 2**19  # weights that are turned into floats at a time
GROUP = 64  # inputs that share a scale; decode_step.c counts on it


def quantize_groups(weight: Float[Tensor, "out in"]) -> tuple[Int8[Tensor, "out in"], Float[Tensor, "out groups"]]:
    """Round each GROUP of a row's weights to whole numbers from −127 to 127 times a scale of its own.

    >>> values, scale = quantize_groups(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))
    >>> values.tolist(), (scale * 127).tolist()
    ([[64, -127], [0, 0]], [[2.0], [0.0]])
    """
    groups = _to_groups(weight)
    scale = groups.abs().amax(dim=-1) / 127
    values = (groups / torch.where(scale == 0, 1.0, scale)[..., None]).round().to(torch.int8)
    return values.flatten(1)[:, : weight.shape[1]].contiguous(), scale


def dequantize_groups(values: Int8[Tensor, "out in"], scale: Float[Tensor, "out groups"]) -> Float[Tensor, "out in"]:
    """The floats that `quantize_groups` rounded to."""
    groups = _to_groups(values.to(scale.dtype)) * scale[..., None]
    return groups.flatten(1)[:, : values.shape[1]]


def _to_groups(weight: Tensor) -> Tensor:
    """(out, groups, GROUP), with zeros after the last input."""
    padded = F.pad(weight, (0, -weight.shape[1] % GROUP)) if weight.shape[1] % GROUP else weight
    return padded.unflatten(1, (-1, GROUP))


class Int8Linear(nn.Module):
    """A linear layer whose weight is kept in int8, with a float scale for 64 inputs of an output; inputs stay floating.

    >>> layer = Int8Linear(nn.Linear(4, 3))
    >>> layer(torch.randn(2, 4)).shape, layer.values.dtype
    (torch.Size([2, 3]), torch.int8)
    """

    values: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        values, scale = quantize_groups(linear.weight.detach())
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The weight as floats, computed at each use."""
        return dequantize_groups(self.values, self.scale)

    def forward(self, x: Float[Tensor, "*b in"]) -> Float[Tensor, "*b out"]:
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        out = x.new_empty(*x.shape[:-1], self.out_features)
        rows = max(1, CHUNK // self.in_features)
        for start in range(0, self.out_features, rows):  # the floats of a few rows at a time stay in the cache
            part = slice(start, start + rows)
            out[..., part] = F.linear(x, dequantize_groups(self.values[part], self.scale[part]))
        return out if self.bias is None else out.add_(self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantize_linears(module: nn.Module) -> None:
    """Replace every linear layer inside a module by its int8 twin, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Int8Linear(child))
        else:
            quantize_linears(child)
