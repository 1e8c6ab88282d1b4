"""Patch embedding of a vision transformer: a picture cut into squares, each projected to a vector.

Axes: b batch · n patches, row by row from the top left · p patch side · c width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.checks.always import batch_independence, determinism
from qkv.check.checks.gradient import directional
from qkv.check.finding import Finding
from qkv.check.grading.exercises.common import BATCH, Opened, parameter_gradients, without_gradients
from qkv.check.grading.exercises.exercise import Exercise, Producer, equality
from qkv.check.grading.exercises.layer import rubric_seed
from qkv.check.grading.proxy import crossed, of_shape, opened
from qkv.check.grading.remote import Remote, UnansweredError
from qkv.check.subject import Subject

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric


@dataclass(frozen=True)
class Pictures(Subject):
    """A subject that reads pictures; their size is fixed, whatever length is asked for."""

    side: int = 16

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(batch, 3, self.side, self.side, generator=generator, dtype=self.dtype)


class Patches(Opened):
    """A patch embedding under grading."""

    def __init__(self, remote: Remote, rubric: Rubric, shell: nn.Module) -> None:
        settings = rubric.interface.settings
        self.remote, self.projection = remote, settings["projection"]
        self.side, self.patch, self.width = (settings[name] for name in ("image", "patch", "width"))
        self.across = self.side // self.patch
        subject = Pictures(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            width=self.width,
            dtype=getattr(torch, remote.dtype),
            module=shell,
            side=self.side,
        )
        super().__init__(subject, rubric.contract, shell)

    def run(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        out = crossed(self.remote, (x,), {}, self.weights)
        return of_shape(out, (x.shape[0], self.across**2, self.width))

    def draw(self, seed: int, batch: int = 2) -> Tensor:
        return self.subject.draw(batch, 0, torch.Generator().manual_seed(seed))


def prepare(remote: Remote, rubric: Rubric) -> Patches:
    return Patches(remote, rubric, opened(remote, rubric_seed(remote)))


def shape(patches: Patches) -> list[Finding]:
    for batch in (1, 3):
        patches.run(patches.draw(40, batch))
    return [Finding("shape", "pass", 0.0, f"{patches.across**2} vectors of width {patches.width} for each picture")]


def order(patches: Patches) -> list[Finding]:
    """Changing one patch moves one vector: that of its place, counted row by row."""
    x, count, p = patches.draw(41, 1), patches.across**2, patches.patch
    before = patches.run(x)
    moves = []
    for place in range(count):
        row, column = (p * part for part in divmod(place, patches.across))
        other = x.clone()
        other[:, :, row : row + p, column : column + p] += 1.0
        moves.append((patches.run(other) - before)[0].abs().amax(-1))
    felt = torch.stack(moves, dim=1)  # outputs × patches
    return [_own(felt), _placed(felt, patches.across)]


def _own(felt: Tensor) -> Finding:
    """Each patch reaches exactly one vector, and each vector one patch."""
    moved = felt > 1e-6 * float(felt.max())
    if not bool(moved.any()):
        return Finding("patches apart", "fail", 1.0, "no change of any patch moved any vector")
    most = int(torch.cat((moved.sum(0), moved.sum(1))).max())
    if most == 1 and int(moved.sum()) == len(felt):
        return Finding("patches apart", "pass", 0.0, "each patch moves one vector, each vector is moved by one patch")
    place = int(moved.sum(0).argmax())
    evidence = f"changing patch {place} moved {int(moved[:, place].sum())} vectors"
    hint = "patches mix: a view or reshape that cuts rows of pixels instead of squares, or a stride that is not p"
    return Finding("patches apart", "fail", float(moved.float().mean()), evidence, hint)


def _placed(felt: Tensor, across: int) -> Finding:
    """Patch i, counted row by row, is vector i."""
    found = felt.argmax(0)
    expected = torch.arange(len(felt))
    if torch.equal(found, expected) and float(felt.max()) > 0:
        return Finding("patch order", "pass", 0.0, "patch i, counted row by row, is vector i")
    wrong = int((found != expected).nonzero()[0]) if not torch.equal(found, expected) else 0
    evidence = f"patch {wrong} (row {wrong // across}, column {wrong % across}) moved vector {int(found[wrong])} most"
    by_columns = expected.view(across, across).mT.flatten()
    hint = (
        "patches are counted column by column: transpose rows and columns" if torch.equal(found, by_columns) else None
    )
    return Finding("patch order", "fail", float((found != expected).float().mean()), evidence, hint)


def pixels(patches: Patches) -> list[Finding]:
    """Every pixel of every channel moves the vector of its patch."""
    x = patches.draw(42, 1)
    unread = []
    for channel in range(3):
        for row, column in ((0, 0), (patches.patch - 1, patches.patch - 1), (patches.side - 1, 0)):
            other = x.clone()
            other[:, channel, row, column] += 1.0
            if not float((patches.run(other) - patches.run(x)).abs().max()) > 1e-9:
                unread.append((channel, row, column))
    if not unread:
        return [Finding("every pixel", "pass", 0.0, "pixels of every channel, corners too, move their vector")]
    channel, row, column = unread[0]
    evidence = f"changing pixel ({row}, {column}) of channel {channel} moved nothing ({len(unread)} of 9 tried)"
    return [Finding("every pixel", "fail", len(unread) / 9, evidence, "part of the picture is cut off")]


def formula(patches: Patches) -> list[Finding]:
    """Unfolding and one matrix give the same."""
    x, p = patches.draw(43), patches.patch
    weight, bias = (patches.weights.get(f"{patches.projection}.{name}") for name in ("weight", "bias"))
    if weight is None or weight.numel() != patches.width * 3 * p * p or weight.shape[0] != patches.width:
        there = ", ".join(sorted(patches.weights)[:6]) or "none"
        raise UnansweredError(
            f"it has no {patches.projection}.weight of {patches.width} × {3 * p * p} numbers; it has {there}"
        )
    expected = F.unfold(x, p, stride=p).mT @ weight.flatten(1).mT.to(x)
    expected = expected if bias is None else expected + bias
    found = patches.run(x)
    off = float((found - expected).abs().max() / expected.abs().max())
    hint = _how_flattened(x, found, weight, bias, p)
    words = "with the same weights its output differs from unfold + linear"
    return equality("formula", off if off == off else float("inf"), 1e-6, words, hint)


def _how_flattened(x: Tensor, found: Tensor, weight: Tensor, bias: Tensor | None, p: int) -> str:
    """Whether another order of a patch's numbers explains it."""
    b, channels, side, _ = x.shape
    across = side // p
    cut = x.view(b, channels, across, p, across, p).permute(0, 2, 4, 1, 3, 5)  # b, row, column, channel, y, x
    orders = {
        "rows, columns, channels": (0, 1, 2, 4, 5, 3),
        "columns, rows, channels": (0, 1, 2, 5, 4, 3),
        "channels, columns, rows": (0, 1, 2, 3, 5, 4),
    }
    for name, axes in orders.items():
        guess = cut.permute(axes).reshape(b, across**2, -1) @ weight.flatten(1).mT + (0 if bias is None else bias)
        if float((guess - found).abs().max()) < 1e-9 * float(guess.abs().max()):
            return f"explained exactly: a patch is flattened as {name}; agreed is channels, rows, columns"
    return "a patch's numbers, flattened as channels, rows, columns, times the projection, plus its bias"


def validate(rubric: Rubric, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is None or set(settings) != {"projection", "image", "patch", "width"}:
        raise ValueError(f"{where}: this exercise is a class, and interface has projection, image, patch and width")
    if not isinstance(settings["projection"], str) or settings["image"] % settings["patch"]:
        raise ValueError(f"{where}: projection is a layer's name, and image a multiple of patch")


PATCHES = Exercise(
    prepare,
    (
        Producer(("shape",), without_gradients(shape)),
        Producer(("patches apart", "patch order"), without_gradients(order)),
        Producer(("every pixel",), without_gradients(pixels)),
        Producer(("formula",), without_gradients(formula)),
        Producer(("steady in eval",), without_gradients(lambda opened: [determinism(opened.subject)])),
        Producer(BATCH, without_gradients(lambda opened: batch_independence(opened.subject))),
        Producer(("gradient",), lambda opened: [directional(opened.subject)]),
        Producer(("gradients of parameters",), parameter_gradients),
    ),
    validate,
)
