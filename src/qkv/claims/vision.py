"""Pictures as sequences: patches, and how far a layer sees."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Lines, Map
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap
from qkv.claims.predicates import at_least, at_most, equal, near
from qkv.nn import PatchEmbedding
from qkv.nn.block import Block, BlockConfig

FAMILY = "vision"


def patches(lab: Lab, side: int, patch: int, width: int) -> Measured:
    if side % patch:
        fits = ", ".join(str(p) for p in range(1, side + 1) if side % p == 0)
        raise ValueError(f"pictures of {side} pixels do not cut into patches of {patch}; sides that fit: {fits}")
    kind = PatchEmbedding if lab.part is None else lab.part
    layer = lab.build(lambda: kind(3, patch, width))
    images = lab.draw(2, 3, side, side)
    embedded = layer(images).detach()
    weight, bias = layer.convolution.weight.detach(), layer.convolution.bias.detach()
    by_hand, swapped = (cut_and_multiply(images, weight, bias, patch, order) for order in ("crc", "rcc"))
    permuted = cut_and_multiply(images, weight.permute(0, 2, 3, 1), bias, patch, "rcc")
    convolved = F.conv2d(images, weight, bias, stride=patch).flatten(2).mT
    return Measured(
        {
            "patch embedding − patches cut by hand": gap(embedded, by_hand),
            "patch embedding − convolution with stride p": gap(embedded, convolved),
            "(row, column, channel) order, weights not permuted": gap(convolved, swapped),
            "the same, weights permuted": gap(convolved, permuted),
        },
        (
            equal("a patch embedding is patches times a matrix", gap(embedded, by_hand)),
            equal("and a convolution with stride p", gap(embedded, convolved)),
            equal("whatever the flattening order", gap(convolved, swapped), "beyond"),
            equal("permuted weights mend the order", gap(convolved, permuted), "control"),
        ),
        (Map("embedding of the first picture", "feature", "patch", (embedded[0] - embedded[0].min()).tolist()),),
    )


def cut_and_multiply(images: Tensor, weight: Tensor, bias: Tensor, patch: int, order: str) -> Tensor:
    """Patches cut out one by one, flattened (channel, row, column) or (row, column, channel), times the weights."""
    side = images.shape[-1] // patch
    cut = []
    for row in range(side):
        for column in range(side):
            piece = images[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            cut.append((piece if order == "crc" else piece.permute(0, 2, 3, 1)).flatten(1))
    return torch.stack(cut, 1) @ weight.flatten(1).mT + bias


def receptive_field(lab: Lab, side: int, kernel: int, layers: int) -> Measured:
    width, places = 8, side * side
    blocks = lab.build(lambda: nn.ModuleList(Block(BlockConfig(dim=width, heads=2, mlp_dim=16)) for _ in range(layers)))
    convolutions = lab.build(
        lambda: nn.ModuleList(nn.Conv2d(width, width, kernel, padding=kernel // 2) for _ in range(layers))
    )
    x = lab.draw(1, width, side, side)
    centre = side // 2  # of a row and of a column

    def through_blocks(y: Tensor, depth: int) -> Tensor:
        tokens = y.flatten(2).mT
        for block in list(blocks)[:depth]:
            tokens = block(tokens)
        return tokens.mT.unflatten(2, (side, side))

    def through_convolutions(y: Tensor, depth: int) -> Tensor:
        for convolution in list(convolutions)[:depth]:
            y = torch.tanh(convolution(y))
        return y

    def shifted(y: Tensor) -> Tensor:
        return y.roll((1, 2), dims=(2, 3))

    reached: dict[str, list[float]] = {"ViT": [], "CNN": []}
    maps = {}
    with lab.inside_layers():
        for depth in range(1, layers + 1):
            for name, run in (("ViT", through_blocks), ("CNN", through_convolutions)):
                y = x.clone().requires_grad_()
                out = run(y, depth)[0, :, centre, centre]
                (found,) = torch.autograd.grad(out @ lab.draw(width), y)
                seen = found.norm(dim=1)[0]
                reached[name].append(float((seen > 0).double().mean()))
                maps.setdefault(name, (seen / seen.max()).sqrt())
    with lab.inside_layers(), torch.no_grad():
        framed = F.pad(x, (kernel,) * 4)
        found, wanted = through_convolutions(shifted(framed), 1), shifted(through_convolutions(framed, 1))
        inside = slice(2 + kernel // 2, framed.shape[-1] - kernel // 2)  # what neither the border nor the roll touches
        cnn_gap = gap(found[..., inside, inside], wanted[..., inside, inside])
        vit_gap = gap(through_blocks(shifted(x), layers), shifted(through_blocks(x, layers)))
        table = lab.draw(1, width, side, side)
        placed = gap(through_blocks(shifted(x) + table, layers), shifted(through_blocks(x + table, layers)))
    reaches = [depth * (kernel // 2) for depth in range(1, layers + 1)]
    squares = [(min(reach, centre) + 1 + min(reach, side - 1 - centre)) ** 2 / places for reach in reaches]
    off = max(abs(a - b) for a, b in zip(reached["CNN"], squares, strict=True))
    return Measured(
        {
            "ViT: share of patches reached in one layer": reached["ViT"][0],
            **{f"CNN: share reached in {i + 1} layers": share for i, share in enumerate(reached["CNN"])},
            "CNN: shift and convolve − convolve and shift (inside)": cnn_gap,
            "ViT without positions: the same, by whole patches": vit_gap,
            "ViT with learned positions: the same": placed,
        },
        (
            near("a ViT layer reaches every patch", reached["ViT"][0], 1.0, 0.0),
            at_most("a CNN's field grows by its kernel: off by", off, 1e-12),
            at_most("a CNN of one layer does not see all", reached["CNN"][0], 0.5),
            equal("a CNN moves with its picture", cnn_gap),
            equal("a ViT without positions too, by whole patches", vit_gap),
            at_least("with positions it does not", placed, 1e-3, "control"),
        ),
        (
            Lines(
                "share of the picture that the centre sees",
                "layers",
                "share",
                list(range(1, layers + 1)),
                reached,
                roles={"ViT": "query", "CNN": "key"},
            ),
            Map("one ViT layer", "column", "row", maps["ViT"].tolist()),
            Map("one CNN layer", "column", "row", maps["CNN"].tolist()),
        ),
    )


CLAIMS = (
    Claim(
        "patches-are-convolution",
        FAMILY,
        "Cutting a picture into p×p patches and multiplying each by one matrix is a convolution with stride p.",
        "holds-if",
        "patches are flattened in the order of the convolution's weights (channel, row, column)",
        patches,
        (
            Knob("side", 12, "pixels, a multiple of patch", (1, 64)),
            Knob("patch", 4, "side of a patch", (1, 64)),
            Knob("width", 10, "width of the embedding", (1, 256)),
        ),
        ("rows-first-patches",),
        "One picture's patches, embedded.",
    ),
    Claim(
        "receptive-field",
        FAMILY,
        "One layer of a ViT reaches every patch; a CNN's field grows by its kernel, layer by layer.",
        "holds",
        "",
        receptive_field,
        (
            Knob("side", 9, "patches a side", (5, 24)),
            Knob("kernel", 3, "kernel of the CNN", (1, 15), step=2),
            Knob("layers", 3, "layers", (1, 16)),
        ),
        ("itself", "argmax"),
        "What the centre sees, by gradients, after each layer; and in the first layer of each.",
    ),
)
