"""Claims about attention and convolution: heads as a kernel, patches as a strided convolution, receptive fields.

β is the inverse temperature of the softmax: `scale` in the code.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Heatmap, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near
from qkv.claims.experiment import Lab, max_diff
from qkv.nn import PatchEmbedding
from qkv.nn.block import Block, BlockConfig


def tokens_at(lab: Lab, values: Tensor, keys: Tensor, target: Tensor, **options) -> Tensor:
    """For each query the value at its target position; keys are one-hot, a position outside (-1) matches no key."""
    queries = torch.where((target >= 0)[:, None], keys[target.clamp(min=0)], torch.zeros_like(keys[:1]))
    return lab.attention(queries, keys, values, **options)


def heads_1d(lab: Lab, x: Tensor, kernel: Tensor, *, padded: bool = False, **options) -> Tensor:
    """Σ over offsets of W_offset · (the token at that offset): one head for each kernel position."""
    size, n = kernel.shape[-1], len(x)
    margin = size // 2
    values = F.pad(x, (0, 0, margin, margin)) if padded else x
    keys = torch.eye(len(values), dtype=torch.float64)
    out = torch.zeros(n, kernel.shape[0], dtype=torch.float64)
    for offset in range(size):
        target = torch.arange(n) + offset - margin + (margin if padded else 0)
        target = torch.where((target >= 0) & (target < len(values)), target, -1)
        out = out + tokens_at(lab, values, keys, target, **options) @ kernel[..., offset].mT
    return out


def heads_2d(lab: Lab, image: Tensor, kernel: Tensor, **options) -> Tensor:
    """The same in two dimensions: a head for each of the K² offsets, on the inner pixels."""
    _, rows, columns = image.shape
    size = kernel.shape[-1]
    values = image.flatten(1).mT
    keys = torch.eye(rows * columns, dtype=torch.float64)
    inner = [(r, c) for r in range(rows - size + 1) for c in range(columns - size + 1)]
    out = torch.zeros(len(inner), kernel.shape[0], dtype=torch.float64)
    for down in range(size):
        for right in range(size):
            target = torch.tensor([(r + down) * columns + c + right for r, c in inner])
            out = out + tokens_at(lab, values, keys, target, **options) @ kernel[..., down, right].mT
    return out.mT.unflatten(1, (rows - size + 1, columns - size + 1))


def convolution(lab: Lab, n: int, channels: int, kernel: int, beta: float) -> ExperimentResult:
    if kernel > n:
        raise ValueError(f"kernel must be at most n={n}, got {kernel}")
    x, filters = lab.draw(n, channels), lab.draw(3, channels, kernel)
    target = F.conv1d(x.mT[None], filters, padding=kernel // 2)[0].mT
    inner = slice(kernel // 2, n - kernel // 2)
    hard = heads_1d(lab, x, filters, hard=True, scale=1.0)
    soft = heads_1d(lab, x, filters, scale=beta)
    padded = heads_1d(lab, x, filters, padded=True, hard=True, scale=1.0)
    border = float((hard - target)[: kernel // 2].abs().max())
    betas = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0]
    curve = [max_diff(heads_1d(lab, x, filters, scale=b)[inner], target[inner]) for b in betas]
    image, filters2 = lab.draw(2, 6, 6), lab.draw(3, 2, 3, 3)
    expected_2d = F.conv2d(image[None], filters2)[0]
    error_2d = max_diff(heads_2d(lab, image, filters2, hard=True, scale=1.0), expected_2d)
    # one head: weights are not negative and share one value map, so half of x_i − x_{i−1} cannot be represented
    shares = torch.linspace(0, 1, 201, dtype=torch.float64)
    one_head = float((1 - (2 * shares - 1) ** 2 / (2 * (shares**2 + (1 - shares) ** 2))).min())
    return ExperimentResult(
        {
            "conv1d − heads, hard, valid positions": max_diff(hard[inner], target[inner]),
            f"conv1d − heads, soft, β = {beta:g}": max_diff(soft[inner], target[inner]),
            "conv2d − K² heads, hard": error_2d,
            "conv1d − heads at the border": border,
            "conv1d − heads, zero-valued padding tokens": max_diff(padded, target),
            "least relative squared error of one head for (1, −1)": one_head,
        },
        (
            equal("K heads equal conv1d where the kernel fits", max_diff(hard[inner], target[inner])),
            equal("K² heads equal conv2d", error_2d),
            at_most("soft heads come near", max_diff(soft[inner], target[inner]), 1e-6),
            at_most("the error falls with β", max(b - a for a, b in pairwise(curve)), 1e-12),
            at_least("at a small β soft heads are far from it", curve[0], 0.1, "control"),
            equal("K heads equal conv1d at the border too", border, "beyond"),
            equal("zero-valued padding tokens repair the border", max_diff(padded, target)),
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
                        float((heads_1d(lab, x, filters, scale=b) - target)[: kernel // 2].abs().max()) for b in betas
                    ],
                },
                logy=True,
                roles={"where the kernel fits": "output", "at the border": "wrong"},
            ),
        ),
    )


def patches_are_convolution(lab: Lab, image_size: int, patch_size: int, dim: int) -> ExperimentResult:
    if image_size % patch_size:
        fits = ", ".join(str(p) for p in range(1, image_size + 1) if image_size % p == 0)
        raise ValueError(
            f"images of {image_size} pixels do not divide into patches of {patch_size}; patch sizes that fit: {fits}"
        )
    kind = PatchEmbedding if lab.component is None else lab.component
    layer = lab.build(lambda: kind(3, patch_size, dim))
    images = lab.draw(2, 3, image_size, image_size)
    embedded = layer(images).detach()
    weight, bias = layer.convolution.weight.detach(), layer.convolution.bias.detach()
    cut_by_hand, swapped = (cut_and_multiply(images, weight, bias, patch_size, order) for order in ("crc", "rcc"))
    permuted = cut_and_multiply(images, weight.permute(0, 2, 3, 1), bias, patch_size, "rcc")
    convolved = F.conv2d(images, weight, bias, stride=patch_size).flatten(2).mT
    return ExperimentResult(
        {
            "patch embedding − patches cut by hand": max_diff(embedded, cut_by_hand),
            "patch embedding − convolution with stride p": max_diff(embedded, convolved),
            "(row, column, channel) order, weights not permuted": max_diff(convolved, swapped),
            "the same, weights permuted": max_diff(convolved, permuted),
        },
        (
            equal("a patch embedding is patches times a matrix", max_diff(embedded, cut_by_hand)),
            equal("a patch embedding is a convolution with stride p", max_diff(embedded, convolved)),
            equal(
                "a patch embedding is a convolution whatever the flattening order",
                max_diff(convolved, swapped),
                "beyond",
            ),
            equal("permuted weights repair the flattening order", max_diff(convolved, permuted), "control"),
        ),
        (Heatmap("embedding of the first image", "feature", "patch", (embedded[0] - embedded[0].min()).tolist()),),
    )


def cut_and_multiply(images: Tensor, weight: Tensor, bias: Tensor, patch: int, order: str) -> Tensor:
    """Patches cut out one by one and flattened (channel, row, column) or (row, column, channel), times the weights."""
    side = images.shape[-1] // patch
    cut = []
    for row in range(side):
        for column in range(side):
            piece = images[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
            cut.append((piece if order == "crc" else piece.permute(0, 2, 3, 1)).flatten(1))
    return torch.stack(cut, 1) @ weight.flatten(1).mT + bias


def shift_image(x: Tensor) -> Tensor:
    """An image (or patches) moved by one row and two columns, around the border."""
    return x.roll((1, 2), dims=(2, 3))


def strided_shift_error(convolution: nn.Conv2d, image: Tensor, shift: int) -> float:
    """The least difference between the output at stride 2 of an image moved down by `shift` pixels, and a shift of its
    output by 0 or more rows; rows that the border or the roll can reach are left out."""
    before, after = (F.conv2d(x, convolution.weight, stride=2) for x in (image, image.roll(shift, dims=2)))
    margin = shift + 1
    return min(max_diff(after[:, :, margin:], before.roll(rows, dims=2)[:, :, margin:]) for rows in range(shift + 1))


def receptive_field(lab: Lab, side: int, kernel: int, layers: int) -> ExperimentResult:
    dim, num_patches = 8, side * side
    blocks = lab.build(lambda: nn.ModuleList(Block(BlockConfig(dim=dim, heads=2, mlp_dim=16)) for _ in range(layers)))
    convolutions = lab.build(
        lambda: nn.ModuleList(nn.Conv2d(dim, dim, kernel, padding=kernel // 2) for _ in range(layers))
    )
    x = lab.draw(1, dim, side, side)
    center = side // 2  # of rows and columns

    def through_blocks(y: Tensor, depth: int) -> Tensor:
        tokens = y.flatten(2).mT
        for block in list(blocks)[:depth]:
            tokens = block(tokens)
        return tokens.mT.unflatten(2, (side, side))

    def through_convolutions(y: Tensor, depth: int) -> Tensor:
        for convolution in list(convolutions)[:depth]:
            y = torch.tanh(convolution(y))
        return y

    reached: dict[str, list[float]] = {"ViT": [], "CNN": []}
    maps = {}
    with lab.inside_layers():
        for depth in range(1, layers + 1):
            for name, run in (("ViT", through_blocks), ("CNN", through_convolutions)):
                y = x.clone().requires_grad_()
                out = run(y, depth)[0, :, center, center]
                (found,) = torch.autograd.grad(out @ lab.draw(dim), y)
                influence = found.norm(dim=1)[0]
                reached[name].append(float((influence > 0).double().mean()))
                maps.setdefault(name, (influence / influence.max()).sqrt())
    with lab.inside_layers(), torch.no_grad():
        framed = F.pad(x, (kernel,) * 4)
        moved, expected = through_convolutions(shift_image(framed), 1), shift_image(through_convolutions(framed, 1))
        inside = slice(2 + kernel // 2, framed.shape[-1] - kernel // 2)  # affected by neither the border nor the roll
        cnn_error = max_diff(moved[..., inside, inside], expected[..., inside, inside])
        strided = {shift: strided_shift_error(convolutions[0], framed, shift) for shift in (1, 2)}
        vit_error = max_diff(through_blocks(shift_image(x), layers), shift_image(through_blocks(x, layers)))
        table = lab.draw(1, dim, side, side)
        with_positions = through_blocks(shift_image(x) + table, layers)
        vit_error_with_positions = max_diff(with_positions, shift_image(through_blocks(x + table, layers)))
    reaches = [depth * (kernel // 2) for depth in range(1, layers + 1)]
    squares = [(min(reach, center) + 1 + min(reach, side - 1 - center)) ** 2 / num_patches for reach in reaches]
    error = max(abs(a - b) for a, b in zip(reached["CNN"], squares, strict=True))
    return ExperimentResult(
        {
            "ViT: share of patches reached in one layer": reached["ViT"][0],
            **{f"CNN: share reached in {i + 1} layers": share for i, share in enumerate(reached["CNN"])},
            "CNN: shift and convolve − convolve and shift (inside)": cnn_error,
            "CNN with stride 2: the same at best, shifted by 1 pixel": strided[1],
            "CNN with stride 2: the same, shifted by 2 pixels": strided[2],
            "ViT without positions: the same, by whole patches": vit_error,
            "ViT with learned positions: the same": vit_error_with_positions,
        },
        (
            near("a ViT layer reaches every patch", reached["ViT"][0], 1.0, 0.0),
            at_most("a CNN's field grows by k − 1 a layer: off by", error, 1e-12),
            at_most("a CNN of one layer does not see all", reached["CNN"][0], 0.5),
            equal("a CNN of stride 1 is translation-equivariant", cnn_error),
            equal("a CNN of stride 2 is equivariant to shifts by two pixels", strided[2]),
            at_least("a CNN of stride 2 is not equivariant to shifts by one pixel", strided[1], 1e-3),
            equal("a ViT without positions is equivariant to shifts by whole patches", vit_error),
            at_least("a ViT with positions is not", vit_error_with_positions, 1e-3, "control"),
        ),
        (
            Lines(
                "share of the image that the center sees",
                "layers",
                "share",
                list(range(1, layers + 1)),
                reached,
                roles={"ViT": "query", "CNN": "key"},
            ),
            Heatmap("one ViT layer", "column", "row", maps["ViT"].tolist()),
            Heatmap("one CNN layer", "column", "row", maps["CNN"].tolist()),
        ),
    )


CLAIMS = (
    Claim(
        "convolution",
        "self-attention",
        "A head for each offset makes attention a convolution: K heads for conv1d, K² for conv2d (K odd, value maps of "
        "full rank).",
        "holds-if",
        "the kernel fits (or padding tokens have the value 0): at the border weights still sum to 1",
        convolution,
        (
            Knob("n", 10, "tokens, at least the kernel size", (3, 128)),
            Knob("channels", 4, "channels", (1, 64)),
            Knob("kernel", 3, "kernel size", (3, 31), step=2),
            Knob("beta", 40.0, "inverse temperature of the soft heads", (-100, 1000)),
        ),
        ("uniform", "beta-ignored", "wrong-axis", "never-hard", "v-for-k", "k-for-v", "not-normalized"),
        "Inside, the error falls exponentially with β; at the border it stays.",
    ),
    Claim(
        "patches-are-convolution",
        "vision",
        "Cutting an image into p×p patches and multiplying each by one matrix is a convolution with stride p.",
        "holds-if",
        "patches are flattened in the order of the convolution's weights (channel, row, column)",
        patches_are_convolution,
        (
            Knob("image_size", 12, "image size, a multiple of patch_size", (1, 64)),
            Knob("patch_size", 4, "patch size", (1, 64)),
            Knob("dim", 10, "dim of the embedding", (1, 256)),
        ),
        ("rows-first-patches",),
        "The embedded patches of one image.",
    ),
    Claim(
        "receptive-field",
        "vision",
        "One layer of a ViT reaches every patch; a CNN's field grows by k − 1 pixels with every layer of kernel k.",
        "holds",
        "",
        receptive_field,
        (
            Knob("side", 9, "patches a side", (5, 24)),
            Knob("kernel", 3, "kernel of the CNN", (1, 15), step=2),
            Knob("layers", 3, "layers", (1, 16)),
        ),
        ("itself", "argmax"),
        "What the center sees, by gradients, after each layer; and in the first layer of each.",
    ),
)
