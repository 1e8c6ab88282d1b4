"""Grade a whole vision transformer: images in, class logits out. What is inside may be written in any way."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.attention import parameter_seed
from qkv.check.grading.exercises.common import (
    BATCH_INDEPENDENCE,
    DETACHED,
    DETERMINISM,
    INPUT_GRADIENT,
    Exercise,
    GradedCheck,
    GradedLayer,
    no_grad,
)
from qkv.check.grading.exercises.patch_embedding import ImageImplementation
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

SMALL = 1e-9


class GradedViT(GradedLayer):
    """A vision transformer under grading."""

    def __init__(self, sandbox: Sandbox, rubric: GradedExercise, parameters: nn.Module) -> None:
        settings = rubric.interface.settings
        self.sandbox, self.build, self.depth = sandbox, dict(rubric.interface.build or {}), settings["depth"]
        self.image_size, self.patch_size, self.classes = (
            settings[name] for name in ("image_size", "patch_size", "num_classes")
        )
        self.per_side = self.image_size // self.patch_size
        self.found_shape: tuple[int, ...] = ()
        self.call_error: SubmissionError | None = None  # why it is called image by image: it gives rows for tokens
        implementation = ImageImplementation(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            dim=self.classes,
            dtype=getattr(torch, sandbox.dtype),
            module=parameters,
            image_size=self.image_size,
        )
        super().__init__(implementation, rubric.contract, parameters)

    def run(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Its logits. One that mixes up the axes of images and tokens is judged by its shape, and then by its rows."""
        return self.call(x, self.weights)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        if self.call_error is not None:
            return torch.cat([call_remote(self.sandbox, (image[None],), {}, weights)[:1] for image in x])
        out = call_remote(self.sandbox, (x,), {}, weights)
        self.found_shape = tuple(out.shape)
        if out.ndim == 2 and len(out) == len(x) and out.numel():
            return out  # a wrong number of classes is judged by its shape, and then the rest
        patches = self.per_side**2
        if out.ndim == 2 and len(out) in (patches, patches + 1):
            raise SubmissionError(
                f"its output has shape {tuple(out.shape)}, expected {(len(x), self.classes)}: a row for each token, "
                "not for each image. The first axis is the batch: the class token is x[:, 0], not x[0], and "
                "the mean over tokens is mean(dim=1), not mean(dim=0)"
            )
        return check_shape(out, (x.shape[0], self.classes))

    @cached_property
    def unused_blocks(self) -> list[str]:
        """Blocks, as numbered parts of the model, whose weights change nothing."""
        groups: dict[str, list[str]] = {}
        for name in self.weights:
            if (found := re.match(r"(?:\w+\.)*?\d+(?=\.)", name)) is not None:
                groups.setdefault(found[0], []).append(name)
        x, weights = self.draw(147), {name: weight.detach() for name, weight in self.weights.items()}
        unused = []
        with torch.no_grad():
            before = call_remote(self.sandbox, (x,), {}, weights)
            for group, names in groups.items():
                moved = {name: weights[name].flip(-1) + 0.5 for name in names}
                after = call_remote(self.sandbox, (x,), {}, weights | moved)
                unused += [] if float((after - before).abs().max()) > SMALL else [group]
        return unused

    def draw(self, seed: int, batch: int = 2) -> Tensor:
        return self.implementation.random_input(batch, 0, torch.Generator().manual_seed(seed))

    def patch(self, index: int) -> tuple[slice, slice]:
        row, column = (self.patch_size * part for part in divmod(index, self.per_side))
        return slice(row, row + self.patch_size), slice(column, column + self.patch_size)


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedViT:
    first_error = None
    for dtype in ("float64", "float32"):
        sandbox.dtype = dtype
        vit = GradedViT(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)))
        try:
            with torch.no_grad():
                call_remote(sandbox, (vit.draw(140),), {}, vit.weights)
                _find_row_error(vit)
            return vit
        except SubmissionError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _find_row_error(vit: GradedViT) -> None:
    """Call it image by image from here on if its rows are tokens."""
    try:
        vit.run(vit.draw(140))
    except SubmissionError as error:
        if "a row for each token" in str(error):
            vit.call_error = error


def check_output_shape(vit: GradedViT) -> list[Finding]:
    if vit.call_error is not None:
        words, _, hint = str(vit.call_error).partition(". ")
        return [Finding("shape", "fail", None, words, hint)]
    for batch in (1, 3):
        vit.run(vit.draw(141, batch))
        if vit.found_shape != (batch, vit.classes):
            evidence = f"its output has shape {vit.found_shape}, expected {(batch, vit.classes)}"
            hint = "the last linear layer gives num_classes numbers, an argument of the class"
            return [Finding("shape", "fail", None, evidence, hint)]
    return [Finding("shape", "pass", 0.0, f"{vit.classes} logits for each image")]


def check_logits(vit: GradedViT) -> list[Finding]:
    """Logits, not probabilities: cross-entropy applies the softmax."""
    out = vit.run(vit.draw(142, 4)).double()
    hint = "return the output of the last linear layer: nn.CrossEntropyLoss applies the softmax itself"
    if bool((out >= 0).all()) and float((out.sum(-1) - 1).abs().max()) < 1e-3:
        return [Finding("logits", "fail", None, "its outputs are probabilities: they sum to 1", hint)]
    if float(out.logsumexp(-1).abs().max()) < 1e-3:
        return [Finding("logits", "fail", None, "its outputs are log-probabilities", hint)]
    if bool((out >= 0).all()) and bool((out == 0).any()):
        return [Finding("logits", "fail", None, "no output is negative, and some are 0: a ReLU is applied", hint)]
    return [Finding("logits", "pass", 0.0, "its outputs are not normalized")]


def check_patches(vit: GradedViT) -> list[Finding]:
    """Every patch changes the logits, in every channel."""
    x = vit.draw(143, 1)
    before = vit.run(x)
    unread = []
    for index in range(vit.per_side**2):
        rows, columns = vit.patch(index)
        other = x.clone()
        other[:, index % 3, rows, columns] += 1.0
        if not float((vit.run(other) - before).abs().max()) > SMALL:
            unread.append(index)
    if not unread:
        return [Finding("every patch", "pass", 0.0, f"all {vit.per_side**2} patches change the logits")]
    evidence = f"changing patch {unread[0]} changes nothing ({len(unread)} of {vit.per_side**2} patches)"
    hint = "cut the whole image into patches, and let the token that is read attend to all of them"
    return [Finding("every patch", "fail", len(unread) / vit.per_side**2, evidence, hint)]


def check_positions(vit: GradedViT) -> list[Finding]:
    """Two patches swapped give other logits: the tokens have positions."""
    x = vit.draw(144, 1)
    other = x.clone()
    first, last = vit.patch(1), vit.patch(vit.per_side**2 - 2)
    other[:, :, first[0], first[1]], other[:, :, last[0], last[1]] = (
        x[:, :, last[0], last[1]],
        x[:, :, first[0], first[1]],
    )
    effect = float((vit.run(other) - vit.run(x)).abs().max())
    if effect > 1e-7:
        return [Finding("positions", "pass", effect, "with two patches swapped the logits differ")]
    hint = (
        "before the first block add a position embedding to the tokens, with a vector of its own for each: "
        "x = x + self.pos_embedding, of shape (1, tokens, dim)"
    )
    return [Finding("positions", "fail", effect, "with two patches swapped the logits stay the same", hint)]


def check_depth(vit: GradedViT) -> list[Finding]:
    """Each further block adds the same number of parameters: there are `depth` blocks, with weights of their own."""
    names = {name for name in vit.build if name == "depth"} or {"depth"}
    sizes = []
    original = vit.sandbox.build
    try:
        for depth in (1, 2, 3):
            vit.sandbox.build = {**vit.build, **dict.fromkeys(names, depth)}
            sizes.append(sum(value.numel() for value in vit.sandbox.describe()[0].values()))
    finally:
        vit.sandbox.build = original
    evidence = f"with 1, 2 and 3 blocks it has {sizes[0]}, {sizes[1]} and {sizes[2]} parameters"
    if vit.unused_blocks:
        evidence = f"{vit.unused_blocks[0]} changes nothing ({len(vit.unused_blocks)} of {vit.depth} blocks)"
        hint = "each block gets the output of the block before it: x = block(x)"
        return [Finding("depth", "fail", None, evidence, hint, "unused block")]
    if sizes[1] > sizes[0] and sizes[1] - sizes[0] == sizes[2] - sizes[1]:
        return [Finding("depth", "pass", 0.0, evidence)]
    hint = "make each block in a list: nn.ModuleList([Block(…) for _ in range(depth)]); a plain list registers nothing"
    return [Finding("depth", "fail", None, evidence, hint)]


def check_gradients(vit: GradedViT) -> list[Finding]:
    """Every weight matrix, the class token and the positions get a gradient, and all together the right one."""
    x = vit.draw(145)
    named = {name: weight for name, weight in vit.parameters.named_parameters() if weight.requires_grad}
    if not named:
        return [Finding("gradients of parameters", "fail", None, "it has no trainable parameters")]
    generator = torch.Generator().manual_seed(146)
    with torch.enable_grad():
        out = vit.run(x)
        grad_output = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
        gradients = torch.autograd.grad((out * grad_output).sum(), list(named.values()), allow_unused=True)
    found = dict(zip(named, gradients, strict=True))
    without = [n for n, g in found.items() if named[n].ndim > 1 and (g is None or not float(g.abs().max()) > 0)]
    without = [
        n
        for n in without
        if ("pos" not in n.lower() or _changes_output(vit, x, n))
        and not any(n.startswith(f"{block}.") for block in vit.unused_blocks)
    ]  # no positions, unused blocks: judged elsewhere
    if without:
        evidence = f"{without[0]} gets no gradient ({len(without)} of {len(named)} parameters)"
        hint = "every block and embedding must be used in forward, and nothing detached"
        if not _changes_output(vit, x, without[0]):
            evidence = f"{without[0]} is never used: changing it does not change the logits"
            hint = "use it in forward, or leave it out"
        return [Finding("gradients of parameters", "fail", None, evidence, hint)]
    steps = {n: torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype) for n, w in named.items()}
    slope = sum(float((g * steps[n]).sum()) for n, g in found.items() if g is not None)
    size = 1e-6 if vit.implementation.dtype == torch.float64 else 1e-2
    sides = []
    for sign in (1, -1):
        moved = {n: w.detach() + sign * size * steps[n] if n in steps else w.detach() for n, w in vit.weights.items()}
        with torch.no_grad():
            sides.append(float((vit.call(x, moved) * grad_output).sum()))
    quotient = (sides[0] - sides[1]) / (2 * size)
    error = abs(slope - quotient) / max(abs(quotient), abs(slope), 1e-12)
    evidence = f"the gradient along a direction is {slope:.4g}, the difference quotient {quotient:.4g}"
    if error <= (1e-2 if size == 1e-6 else 0.1):
        return [Finding("gradients of parameters", "pass", error, evidence)]
    return [Finding("gradients of parameters", "fail", error, evidence, DETACHED)]


def _changes_output(vit: GradedViT, x: Tensor, name: str) -> bool:
    weights = {n: w.detach() for n, w in vit.weights.items()}
    with torch.no_grad():
        before = call_remote(vit.sandbox, (x,), {}, weights)
        after = call_remote(vit.sandbox, (x,), {}, weights | {name: weights[name].flip(-1) + 0.5})
    return float((after - before).abs().max()) > SMALL


def validate(rubric: GradedExercise, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is None or set(settings) != {"image_size", "patch_size", "num_classes", "depth"}:
        raise ValueError(
            f"{where}: this exercise is a class, and interface must have image_size, patch_size, num_classes and depth"
        )


VIT_MODEL = Exercise(
    prepare,
    (
        GradedCheck(("shape",), no_grad(check_output_shape)),
        GradedCheck(("logits",), no_grad(check_logits)),
        GradedCheck(("every patch",), no_grad(check_patches)),
        GradedCheck(("positions",), no_grad(check_positions)),
        GradedCheck(("depth",), no_grad(check_depth)),
        DETERMINISM,
        BATCH_INDEPENDENCE,
        INPUT_GRADIENT,
        GradedCheck(("gradients of parameters",), check_gradients),
    ),
    validate,
    lines={
        "shape": (r"return ", r"head|classifier|fc"),
        "logits": (r"softmax", r"(?#last)relu\(|ReLU\(", r"return "),
        "every patch": (r"patch|unfold|rearrange|Conv2d", r"\[:, *0"),
        "positions": (r"\bpos|_pos|position", r"def forward"),
        "depth": (r"\brange\(|ModuleList|\]\s*\*", r"depth|layers"),
        "unused block": (r"\bfor\b.*(block|layer)", r"(block|layer)\w*\("),
        "gradients of parameters": (r"detach|no_grad|\.item\(|numpy\(|\.data\b", r"Parameter\(", r"def forward"),
    },
    fixes={"shape": "map the class token, or the mean of the tokens, to num_classes logits: (batch, num_classes)"},
)
