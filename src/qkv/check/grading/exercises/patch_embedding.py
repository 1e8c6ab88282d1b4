"""Grade the patch embedding of a vision transformer: an image cut into squares, each projected to a vector.

Axes: b batch · n patches, row by row from the top left · p patch size · c dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.attention import parameter_seed
from qkv.check.grading.exercises.common import (
    BATCH_INDEPENDENCE,
    DETERMINISM,
    INPUT_GRADIENT,
    PARAMETER_GRADIENTS,
    Exercise,
    GradedCheck,
    GradedLayer,
    compare,
    no_grad,
    relative_error,
)
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.implementation import Implementation
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise


@dataclass(frozen=True)
class ImageImplementation(Implementation):
    """A implementation that reads images; their size is fixed, whatever length is asked for."""

    image_size: int = 16

    def random_input(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(batch, 3, self.image_size, self.image_size, generator=generator, dtype=self.dtype)


class GradedPatches(GradedLayer):
    """A patch embedding under grading."""

    def __init__(self, sandbox: Sandbox, rubric: GradedExercise, parameters: nn.Module) -> None:
        settings = rubric.interface.settings
        self.sandbox, self.projection = sandbox, settings.get("projection")
        self.image_size, self.patch_size, self.dim = (settings[name] for name in ("image_size", "patch_size", "dim"))
        self.per_side = self.image_size // self.patch_size
        self.found_shape: tuple[int, ...] = ()
        self.mixes = False  # whether a vector depends on several patches
        implementation = ImageImplementation(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            dim=self.dim,
            dtype=getattr(torch, sandbox.dtype),
            module=parameters,
            image_size=self.image_size,
        )
        super().__init__(implementation, rubric.contract, parameters)

    def run(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        out, count = call_remote(self.sandbox, (x,), {}, self.weights), self.per_side**2
        self.found_shape = tuple(out.shape)
        if out.shape == (x.shape[0], self.dim, count):
            out = out.mT  # features and patches swapped: the shape is judged, and then the rest
        if out.shape == (x.shape[0], self.dim, self.per_side, self.per_side):
            out = out.flatten(2).mT
        if self.projection is None and out.ndim == 3 and out.shape[1] == count + 1:
            out = out[:, 1:]  # a class token before the patches
        if out.ndim == 3 and out.shape[0] == x.shape[0] and out.numel():
            return out  # a wrong number or size of vectors is judged by its shape, and then the rest
        return check_shape(out, (x.shape[0], count, self.dim))

    @property
    def has_all_vectors(self) -> bool:
        """Whether there is one vector for each patch, so that vector i belongs to patch i."""
        count = self.per_side**2
        return self.found_shape[1:] in ((count, self.dim), (count + 1, self.dim), (self.dim, count)) or (
            len(self.found_shape) == 4
        )

    def draw(self, seed: int, batch: int = 2) -> Tensor:
        return self.implementation.random_input(batch, 0, torch.Generator().manual_seed(seed))


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedPatches:
    return GradedPatches(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)))


def check_output_shape(patches: GradedPatches) -> list[Finding]:
    count = patches.per_side**2
    for batch in (1, 3):
        patches.run(patches.draw(40, batch))
        if patches.found_shape[1:] == (patches.dim, count) or len(patches.found_shape) == 4:
            evidence = f"its output has shape {patches.found_shape}, expected {(batch, count, patches.dim)}"
            hint = "flatten the grid of patches and put the features last: flatten(2).transpose(1, 2)"
            return [Finding("shape", "fail", None, evidence, hint)]
        if not patches.has_all_vectors:
            evidence = f"its output has shape {patches.found_shape}, expected {(batch, count, patches.dim)}"
            return [Finding("shape", "fail", None, evidence, _explain_shape(patches.found_shape, patches))]
    return [Finding("shape", "pass", 0.0, f"{count} vectors of dim {patches.dim} for each image")]


def _explain_shape(shape: tuple[int, ...], patches: GradedPatches) -> str | None:
    """What a wrong number of vectors, or their size, suggests."""
    count, p = patches.per_side**2, patches.patch_size
    if shape[2] != patches.dim:
        return f"project each patch to dim = {patches.dim} features"
    overlapping = {((patches.image_size - p) // step + 1) ** 2: step for step in range(1, p)}
    for extra in (0, 1):
        if shape[1] - extra in overlapping:
            step = overlapping[shape[1] - extra]
            return f"patches overlap: they begin every {step} pixels; the stride must be the patch size, {p}"
    return f"there are {shape[1]} vectors for {count} patches: " + (
        "patches are missing, so check where loops or slices end" if shape[1] < count else "use each patch once"
    )


def check_patch_effects(patches: GradedPatches) -> list[Finding]:
    """Changing one patch of the first image changes one of its vectors: the one at its position, counted row by row.

    There are three images: what mixes the images of a batch is judged elsewhere.
    """
    x, count, p = patches.draw(41, 3), patches.per_side**2, patches.patch_size
    before = patches.run(x)
    columns = []
    for index in range(count):
        row, column = (p * part for part in divmod(index, patches.per_side))
        other = x.clone()
        other[0, :, row : row + p, column : column + p] += 1.0
        columns.append((patches.run(other) - before)[0].abs().amax(-1))
    effects = torch.stack(columns, dim=1)  # outputs × patches
    independent = _check_independence(effects)
    patches.mixes = independent.verdict != "pass"
    if not patches.has_all_vectors:
        return [independent, _check_increasing(effects)]
    if patches.mixes and len(set(effects.argmax(0).tolist())) < len(effects):
        return [independent, Finding("patch order", "pass", None, "patches mix, so they have no order: judged above")]
    return [independent, _check_order(effects, patches.per_side)]


def _check_independence(effects: Tensor) -> Finding:
    """Each patch changes exactly one vector, and each vector depends on one patch."""
    changed = effects > 1e-6 * float(effects.max())
    if not bool(changed.any()):
        hint = "each vector is the projection of its own patch, and of nothing from other images of the batch"
        return Finding("patches independent", "fail", 1.0, "no change of any patch changed any vector", hint)
    most = int(torch.cat((changed.sum(0), changed.sum(1))).max())
    one_each = len(effects) != effects.shape[1] or int(changed.sum()) == len(effects)  # another number is judged before
    if most == 1 and one_each:
        evidence = "each patch changes one vector, each vector depends on one patch"
        return Finding("patches independent", "pass", 0.0, evidence)
    index = int(changed.sum(0).argmax())
    evidence = f"changing patch {index} changed {int(changed[:, index].sum())} vectors"
    hint = "patches mix: a view or reshape that cuts rows of pixels instead of squares, or a stride that is not p"
    if bool(changed.all()):
        hint = "every patch changes every vector: a mean or a norm over the image or the batch, or a reshape that "
        hint += "should be a transpose"
    return Finding("patches independent", "fail", float(changed.float().mean()), evidence, hint)


def _check_increasing(effects: Tensor) -> Finding:
    """Where there is another number of vectors than patches: a later patch changes later vectors."""
    numbers = torch.arange(len(effects), dtype=effects.dtype)[:, None]
    total = effects.sum(0)
    centers = ((effects * numbers).sum(0) / total.clamp(min=1e-12))[total > 1e-6 * float(total.max())]
    if bool((centers.diff() > 0).all()):
        return Finding("patch order", "pass", None, "later patches change later vectors")
    hint = "count patches row by row from the top left"
    return Finding("patch order", "fail", None, "later patches change earlier vectors", hint)


def _check_order(effects: Tensor, per_side: int) -> Finding:
    """Patch i, counted row by row, is vector i."""
    found = effects.argmax(0)
    expected = torch.arange(len(effects))
    if torch.equal(found, expected) and float(effects.max()) > 0:
        return Finding("patch order", "pass", 0.0, "patch i, counted row by row, is vector i")
    wrong = int((found != expected).nonzero()[0]) if not torch.equal(found, expected) else 0
    row, column = divmod(wrong, per_side)
    evidence = f"patch {wrong} (row {row}, column {column}) changed vector {int(found[wrong])} most"
    by_columns = expected.view(per_side, per_side).mT.flatten()
    transposed = "patches are counted column by column: transpose rows and columns"
    hint = transposed if torch.equal(found, by_columns) else "count patches row by row from the top left"
    return Finding("patch order", "fail", float((found != expected).float().mean()), evidence, hint)


def check_every_pixel(patches: GradedPatches) -> list[Finding]:
    """Pixels of every channel, corners too, change the vector of their patch."""
    x = patches.draw(42, 3)
    unread = []
    for channel in range(3):
        for row, column in ((0, 0), (patches.patch_size - 1, patches.patch_size - 1), (patches.image_size - 1, 0)):
            other = x.clone()
            other[0, channel, row, column] += 1.0
            if not float((patches.run(other) - patches.run(x)).abs().max()) > 1e-9:
                unread.append((channel, row, column))
    if not unread:
        return [Finding("every pixel", "pass", 0.0, "pixels of every channel, corners too, change their vector")]
    channel, row, column = unread[0]
    evidence = f"changing pixel ({row}, {column}) of channel {channel} changed nothing ({len(unread)} of 9 tried)"
    channels = {number for number in range(3) if sum(each[0] == number for each in unread) == 3}
    hint = "part of the image is cut off: rows or columns of pixels are in no patch"
    if channels and len(unread) == 3 * len(channels):
        evidence = f"channel {' and '.join(map(str, sorted(channels)))} of the image is not read"
        hint = "a patch has the pixels of all channels"
    return [Finding("every pixel", "fail", len(unread) / 9, evidence, hint)]


def check_shared(patches: GradedPatches) -> list[Finding]:
    """Each patch goes through the same affine map, whatever order its pixels are flattened in."""
    p, count = patches.patch_size, patches.per_side**2
    generator = torch.Generator().manual_seed(44)
    first, second = torch.randn(2, 3, p, p, generator=generator, dtype=torch.float64).to(patches.implementation.dtype)
    images = torch.zeros(4, 3, patches.image_size, patches.image_size, dtype=patches.implementation.dtype)
    for index in range(count):
        row, column = (p * part for part in divmod(index, patches.per_side))
        for number, content in enumerate((torch.zeros_like(first), first, second, first + second)):
            images[number, :, row : row + p, column : column + p] = content
    zero, one, two, both = patches.run(images).double()
    size = (one - zero).abs().max().clamp(min=1e-12)
    spread = float(((one - zero) - (one - zero)[:1]).abs().max() / size)
    hint = "use one linear layer or one convolution for all patches"
    if spread > 1e-4 and patches.has_all_vectors and not patches.mixes:
        return [
            Finding(
                "one projection", "fail", spread, "the same content gives different vectors at different places", hint
            )
        ]
    error = float(((both - zero) - (one - zero) - (two - zero)).abs().max() / size)
    hint = "the projection is linear: no activation and no norm over the pixels"
    return compare("one projection", error, 1e-4, "the vectors are not linear in the pixels: they differ", hint)


def check_formula(patches: GradedPatches) -> list[Finding]:
    """The output equals unfold and one matrix product."""
    x, p = patches.draw(43), patches.patch_size
    assert patches.projection is not None
    weight, bias = (patches.weights.get(f"{patches.projection}.{name}") for name in ("weight", "bias"))
    if weight is None or weight.numel() != patches.dim * 3 * p * p or weight.shape[0] != patches.dim:
        names = ", ".join(sorted(patches.weights)[:6]) or "none"
        raise SubmissionError(
            f"it has no {patches.projection}.weight of {patches.dim} × {3 * p * p} numbers; it has {names}"
        )
    expected = F.unfold(x, p, stride=p).mT @ weight.flatten(1).mT.to(x)
    expected = expected if bias is None else expected + bias
    found = patches.run(x)
    hint = _explain_order(x, found, weight, bias, p)
    evidence = "with the same weights its output differs from unfold + linear"
    return compare("formula", relative_error(found, expected), 1e-6, evidence, hint)


def _explain_order(x: Tensor, found: Tensor, weight: Tensor, bias: Tensor | None, p: int) -> str:
    """Whether another flattening order of a patch explains the output."""
    b, channels, side, _ = x.shape
    per_side = side // p
    cut = x.view(b, channels, per_side, p, per_side, p).permute(0, 2, 4, 1, 3, 5)  # b, row, column, channel, y, x
    orders = {
        "rows, columns, channels": (0, 1, 2, 4, 5, 3),
        "columns, rows, channels": (0, 1, 2, 5, 4, 3),
        "channels, columns, rows": (0, 1, 2, 3, 5, 4),
    }
    for name, axes in orders.items():
        guess = cut.permute(axes).reshape(b, per_side**2, -1) @ weight.flatten(1).mT + (0 if bias is None else bias)
        if float((guess - found).abs().max()) < 1e-9 * float(guess.abs().max()):
            return f"explained exactly: a patch is flattened as {name}; expected channels, rows, columns"
    return "flatten a patch as channels, rows, columns, multiply by the projection and add its bias"


def validate(rubric: GradedExercise, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is None or set(settings) - {"projection"} != {"image_size", "patch_size", "dim"}:
        raise ValueError(
            f"{where}: this exercise is a class; interface must have image_size, patch_size and dim (and projection)"
        )
    if settings["image_size"] % settings["patch_size"]:
        raise ValueError(f"{where}: image_size must be a multiple of patch_size")
    if "formula" in rubric.checks and not isinstance(settings.get("projection"), str):
        raise ValueError(f'{where}: the check "formula" needs the name of the layer: projection = "proj"')


PATCH_EMBEDDING = Exercise(
    prepare,
    (
        GradedCheck(("shape",), no_grad(check_output_shape)),
        GradedCheck(("patches independent", "patch order"), no_grad(check_patch_effects)),
        GradedCheck(("every pixel",), no_grad(check_every_pixel)),
        GradedCheck(("one projection",), no_grad(check_shared)),
        GradedCheck(("formula",), no_grad(check_formula)),
        DETERMINISM,
        BATCH_INDEPENDENCE,
        INPUT_GRADIENT,
        PARAMETER_GRADIENTS,
    ),
    validate,
    lines={
        "one projection": (r"norm|relu|gelu|GELU|ReLU|Norm|tanh", r"Conv2d|Linear"),
        "patches independent": (r"\.mean\(|\.std\(|[nN]orm", r"stride.*//", r"(?#last)(view|reshape|rearrange)\("),
        "shape": (r"stride|step", r"range\(|unfold", r"return "),
        "every pixel": (r"\[:,\s*(0|:1)", r"range\(|unfold|stride", r"(view|reshape|rearrange)\("),
    },
    fixes={"shape": "flatten the grid of patches and put the features last: (batch, patches, dim)"},
)
