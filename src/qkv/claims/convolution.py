"""Attention as convolution: a head for each offset."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv._figures import Lines
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap
from qkv.claims.predicates import at_least, at_most, equal, near

FAMILY = "self-attention"


def shifted(lab: Lab, values: Tensor, keys: Tensor, wanted: Tensor, **options) -> Tensor:
    """For each query the value at the place it wants; places are one-hot keys, a place that is not there is no key."""
    queries = torch.where((wanted >= 0)[:, None], keys[wanted.clamp(min=0)], torch.zeros_like(keys[:1]))
    return lab.attention(queries, keys, values, **options)


def heads_1d(lab: Lab, x: Tensor, kernel: Tensor, *, padded: bool = False, **options) -> Tensor:
    """Σ over offsets of W_offset · (the token at that offset): as many heads as the kernel is long."""
    size, n = kernel.shape[-1], len(x)
    margin = size // 2
    values = F.pad(x, (0, 0, margin, margin)) if padded else x
    keys = torch.eye(len(values), dtype=torch.float64)
    out = torch.zeros(n, kernel.shape[0], dtype=torch.float64)
    for offset in range(size):
        wanted = torch.arange(n) + offset - margin + (margin if padded else 0)
        wanted = torch.where((wanted >= 0) & (wanted < len(values)), wanted, -1)
        out = out + shifted(lab, values, keys, wanted, **options) @ kernel[..., offset].mT
    return out


def heads_2d(lab: Lab, image: Tensor, kernel: Tensor, **options) -> Tensor:
    """The same in the plane: a head for each of the K² offsets, on the inner pixels."""
    _, rows, columns = image.shape
    size = kernel.shape[-1]
    values = image.flatten(1).mT
    keys = torch.eye(rows * columns, dtype=torch.float64)
    inner = [(r, c) for r in range(rows - size + 1) for c in range(columns - size + 1)]
    out = torch.zeros(len(inner), kernel.shape[0], dtype=torch.float64)
    for down in range(size):
        for right in range(size):
            wanted = torch.tensor([(r + down) * columns + c + right for r, c in inner])
            out = out + shifted(lab, values, keys, wanted, **options) @ kernel[..., down, right].mT
    return out.mT.unflatten(1, (rows - size + 1, columns - size + 1))


def convolution(lab: Lab, n: int, width: int, kernel: int, beta: float) -> Measured:
    if kernel > n:
        raise ValueError(f"kernel is at most n, {n}, so that it fits somewhere; got {kernel}")
    x, filters = lab.draw(n, width), lab.draw(3, width, kernel)
    wanted = F.conv1d(x.mT[None], filters, padding=kernel // 2)[0].mT
    inner = slice(kernel // 2, n - kernel // 2)
    hard = heads_1d(lab, x, filters, hard=True, beta=1.0)
    soft = heads_1d(lab, x, filters, beta=beta)
    padded = heads_1d(lab, x, filters, padded=True, hard=True, beta=1.0)
    border = float((hard - wanted)[: kernel // 2].abs().max())
    betas = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0]
    curve = [gap(heads_1d(lab, x, filters, beta=b)[inner], wanted[inner]) for b in betas]
    image, filters2 = lab.draw(2, 6, 6), lab.draw(3, 2, 3, 3)
    flat = F.conv2d(image[None], filters2)[0]
    plane = gap(heads_2d(lab, image, filters2, hard=True, beta=1.0), flat)
    # one head: weights are not negative and share one value map; of the difference x_i − x_{i−1} half is out of reach
    shares = torch.linspace(0, 1, 201, dtype=torch.float64)
    one_head = float((1 - (2 * shares - 1) ** 2 / (2 * (shares**2 + (1 - shares) ** 2))).min())
    return Measured(
        {
            "conv1d − heads, hard, valid positions": gap(hard[inner], wanted[inner]),
            f"conv1d − heads, soft, β = {beta:g}": gap(soft[inner], wanted[inner]),
            "conv2d − K² heads, hard": plane,
            "conv1d − heads at the border": border,
            "conv1d − heads, zero-valued padding tokens": gap(padded, wanted),
            "least relative error of one head for the kernel (1, −1)": one_head,
        },
        (
            equal("K heads equal conv1d where the kernel fits", gap(hard[inner], wanted[inner])),
            equal("K² heads equal conv2d", plane),
            at_most("soft heads come near", gap(soft[inner], wanted[inner]), 1e-6),
            at_most("the error falls with β", max(b - a for a, b in pairwise(curve)), 1e-12),
            at_least("it starts far away", curve[0], 0.1, "control"),
            equal("at the border too", border, "beyond"),
            equal("zero-valued padding tokens mend the border", gap(padded, wanted)),
            near("one head cannot have a kernel with two signs", one_head, 0.5, 1e-9),
        ),
        (
            Lines(
                "how far heads are from the convolution",
                "β",
                "largest difference",
                betas,
                {
                    "where the kernel fits": [max(c, 1e-17) for c in curve],
                    "at the border": [
                        float((heads_1d(lab, x, filters, beta=b) - wanted)[: kernel // 2].abs().max()) for b in betas
                    ],
                },
                logy=True,
                roles={"where the kernel fits": "output", "at the border": "wrong"},
            ),
        ),
    )


CLAIMS = (
    Claim(
        "convolution",
        FAMILY,
        "A head for each offset makes attention a convolution: K heads for conv1d, K² for conv2d.",
        "holds-if",
        "the kernel fits (or padding tokens have the value 0): at the border weights still sum to 1",
        convolution,
        (
            Knob("n", 10, "tokens, as many as the kernel is long or more", (3, 128)),
            Knob("width", 4, "channels", (1, 64)),
            Knob("kernel", 3, "length of the kernel", (3, 31), step=2),
            Knob("beta", 40.0, "inverse temperature of the soft heads", (-100, 1000)),
        ),
        ("uniform", "beta-ignored", "wrong-axis", "never-hard", "v-for-k", "k-for-v", "not-normalised"),
        "Inside, the error falls exponentially with β; at the border it stays.",
    ),
)
