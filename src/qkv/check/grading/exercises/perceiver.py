"""Grade the blocks of CS224N's Perceiver: down to the bottleneck by attention of learned vectors, and up again.

What the assignment does not say is not assumed: the attention comes from the starter code, and layers have any names.
With all other weights zero a block with residual connections returns what it adds to; a normalized input has no scale.

Axes: b batch · t tokens · m bottleneck · c model dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.grading.client import Sandbox, SubmissionError, derive_seed
from qkv.check.grading.exercises.common import Exercise, GradedCheck, compare, identity_mlp, no_grad, relative_error
from qkv.check.grading.exercises.names import SYNONYMS
from qkv.check.grading.probes.stand_ins import STUBS
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.grading.reading import Submission
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

LIMIT = 1e-3
LARGE = 1e4


@dataclass
class Block:
    """One of the blocks: its name, file and weights; error says why it cannot be called."""

    sandbox: Sandbox
    name: str
    file: str | None
    build: dict[str, object]
    parameters: nn.Module | None = None
    error: SubmissionError | None = None

    def select(self) -> None:
        quiet = self.sandbox.quiet, self.sandbox.same_seed
        self.sandbox.select(self.name, self.build, self.file, (), SYNONYMS)
        self.sandbox.quiet, self.sandbox.same_seed = quiet

    def load(self) -> None:
        self.select()
        try:
            self.parameters = load_parameters(self.sandbox, derive_seed(self.sandbox.seed, self.name))
        except SubmissionError as error:
            self.error = error

    @property
    def weights(self) -> dict[str, Tensor]:
        if self.parameters is None:
            raise self.error or SubmissionError("it cannot be built")
        return {name: value.detach() for name, value in self.parameters.named_parameters()}

    def run(self, *inputs: Tensor, **changed: Tensor) -> Tensor:
        self.select()
        return call_remote(self.sandbox, list(inputs), {}, self.weights | changed).double()


@dataclass
class Perceiver:
    """Both blocks, and the sizes of the rubric."""

    down: Block
    up: Block
    dim: int
    bottleneck: int
    length: int

    def draw(self, seed: int, length: int, batch: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, length, self.dim, generator=generator, dtype=torch.float64)

    @property
    def basis(self) -> str:
        """The name of the learned vectors: a parameter of bottleneck × dim numbers."""
        weights = self.down.weights
        found = [n for n, w in weights.items() if w.numel() == self.bottleneck * self.dim and w.ndim > 1]
        of_other_size = [n for n, w in weights.items() if n.split(".")[-1] == "C" and w.shape[-1:] == (self.dim,)]
        found = found or of_other_size  # judged by its own check
        if not found:
            names = ", ".join(f"{n} {tuple(w.shape)}" for n, w in list(self.down.weights.items())[:6])
            raise SubmissionError(
                f"DownProjectBlock has no parameter of {self.bottleneck} × {self.dim} numbers; it has {names}"
            )
        return next((name for name in found if name.split(".")[-1] == "C"), found[0])

    @cached_property
    def rows(self) -> int:
        """How many learned vectors there are: bottleneck_dim, or another number, which is judged by their own check."""
        return self.down.weights[self.basis].numel() // self.dim if self.has_basis else self.bottleneck

    @cached_property
    def has_basis(self) -> bool:
        """Whether the learned vectors are a parameter. If not, that is one mistake, judged by its own check."""
        try:
            return bool(self.basis)
        except SubmissionError:
            return False

    @cached_property
    def uses_basis(self) -> bool:
        """Whether the learned vectors change the output. If not, that is one mistake, judged by its own check."""
        if not self.has_basis:
            return True
        name, x = self.basis, self.draw(103, self.length)
        change = self.down.run(x, **{name: self.down.weights[name].flip(-1)}) - self.down.run(x)
        return float(change.abs().max()) > 1e-9

    @cached_property
    def reads_input(self) -> bool:
        """Whether the output of DownProjectBlock depends on its input."""
        x, other = self.draw(104, self.length), self.draw(105, self.length)
        return float((self.down.run(x) - self.down.run(other)).abs().max()) > 1e-9

    @cached_property
    def post_norm(self) -> set[str]:
        """The blocks that normalize after their residual connections.

        With all weights 0 but those of the norms, such a block returns its normalized input.
        """
        x, y = self.draw(106, self.length), self.draw(117, self.bottleneck)
        found = set[str]()
        for block, inputs in ((self.down, (x,)), (self.up, (y, x))):
            if block.error or (block is self.down and not self.has_basis):
                continue
            kept = self.basis if block is self.down else None
            start = block.weights[kept].double().reshape(1, -1, self.dim).expand(2, -1, -1) if kept else x
            changed = {name: torch.zeros_like(weight) for name, weight in block.weights.items() if name != kept}
            changed |= {n: torch.ones_like(w) for n, w in changed.items() if is_gain(n, w, self.dim)}
            try:
                out = block.run(*inputs, **changed)
            except SubmissionError:
                continue
            if out.shape == start.shape and relative_error(out, F.layer_norm(start, (self.dim,))) <= LIMIT:
                found.add(block.name)
        return found

    def mlp(self, block: Block) -> dict[str, Tensor]:
        """The weights of one layer of the block's MLP as zeros, so that the MLP adds a constant.

        An MLP has a matrix to its hidden layer and one back; fused keys and values have no matrix back.
        """
        matrices = {name: value for name, value in block.weights.items() if value.ndim == 2}
        shapes = {value.shape for value in matrices.values()}
        found = {
            name: torch.zeros_like(value)
            for name, value in matrices.items()
            if value.shape[0] == self.dim and value.shape[1] not in (self.dim, 1) and value.shape[::-1] in shapes
        }
        if not found:
            raise SubmissionError("it has no MLP: no parameter has the size of a hidden layer")
        return found


def is_gain(name: str, weight: Tensor, dim: int) -> bool:
    return name.endswith("weight") and weight.shape == (dim,)


DOWN = "keys and values come from x_input, queries from C, and the result is added to C"
UP = "keys and values come from y, queries from x_input, and the result is added to x_input, not to y"


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Perceiver:
    settings, build = rubric.interface.settings, dict(rubric.interface.build or {})
    down = Block(sandbox, sandbox.name, sandbox.file, build)
    found = sandbox.source.find_definition([settings["up"]]) if isinstance(sandbox.source, Submission) else None
    up = Block(sandbox, settings["up"], found[0].path if found else sandbox.file, build)
    for block in (down, up):
        block.load()
    if down.error and up.error:
        raise down.error
    config = build["config"]
    assert isinstance(config, dict)
    perceiver = Perceiver(down, up, config["n_embd"], config["bottleneck_dim"], settings["length"])
    if down.error is None and not perceiver.has_basis:
        sandbox.same_seed = True  # every process would draw other vectors
    return perceiver


def require_response_of_perceiver(perceiver: Perceiver) -> None:
    """Blocks that ignore their inputs fail the checks of what they read."""


def check_down_shape(perceiver: Perceiver) -> list[Finding]:
    for seed, (batch, length) in enumerate(((2, perceiver.length), (3, 5), (1, 1))):
        if length < perceiver.rows and not perceiver.uses_basis:
            continue  # tokens in place of the learned vectors: fewer of them
        x = perceiver.draw(100 + seed, length, batch)
        check_shape(perceiver.down.run(x), (batch, perceiver.rows, perceiver.dim))
    return [Finding("down: shape", "pass", 0.0, f"{perceiver.rows} vectors for every sequence")]


def check_basis(perceiver: Perceiver) -> list[Finding]:
    """C is a parameter that is trained, of shape (1, m, c), and changes the output."""
    name = perceiver.basis
    value = perceiver.down.weights[name]
    expected = (1, perceiver.bottleneck, perceiver.dim)
    if tuple(value.shape) not in (expected, expected[1:]):
        evidence = f"{name} has shape {tuple(value.shape)}, expected {expected}"
        return [Finding("down: basis", "fail", None, evidence, "nn.Parameter of 1 × bottleneck_dim × n_embd")]
    assert perceiver.down.parameters is not None
    trained = dict(perceiver.down.parameters.named_parameters())[name].requires_grad
    if not trained:
        return [Finding("down: basis", "fail", None, f"{name} is not trained", "make it an nn.Parameter")]
    if not perceiver.uses_basis:
        return [Finding("down: basis", "fail", None, f"{name} does not change the output", "make the queries from it")]
    return [Finding("down: basis", "pass", 0.0, f"{name} is a trained parameter of shape {tuple(value.shape)}")]


def check_down_reads(perceiver: Perceiver) -> list[Finding]:
    if perceiver.reads_input:
        return [Finding("down: reads the input", "pass", 0.0, "another input gives another output")]
    hint = "attend to x_input: it gives the keys and values"
    return [Finding("down: reads the input", "fail", None, "its output is the same for every input", hint)]


def _has_only_mlp(perceiver: Perceiver, block: Block, inputs: tuple[Tensor, ...], zeros: dict[str, Tensor]) -> bool:
    """Whether the residual connection around the MLP is missing: an MLP that passes on its input then changes all."""
    passing = identity_mlp(block.weights, perceiver.dim)
    if passing is None:
        return False
    gains = {n: torch.ones_like(w) for n, w in zeros.items() if is_gain(n, w, perceiver.dim)}
    without = block.run(*inputs, **zeros)
    return not bool(without.abs().max() > 1e-9) and bool(
        block.run(*inputs, **{**zeros, **gains, **passing}).abs().max() > 1e-3
    )


def _residual(check: str, found: Tensor, expected: Tensor, what: str, *, has_only_mlp: bool = False) -> list[Finding]:
    error = relative_error(found, expected)
    evidence = f"with every other weight 0 the block returns something other than {what}: it differs"
    hint = f"add what attention and the MLP give: x = {what} + attn(…), then x = x + mlp(…)"
    if not float(found.abs().max()) > 1e-12:
        hint = f"a residual connection is missing: x = {what} + attn(…), then x = x + mlp(ln(x))"
    if error > 1e-6 and has_only_mlp:
        evidence = "what the block returns is what its MLP returns: it differs from what it is added to"
        hint = "the residual connection around the MLP is missing: x = x + mlp(ln(x))"
    finding = compare(check, error, 1e-6, evidence, hint)[0]
    return [replace(finding, family="mlp" if has_only_mlp else None)]


def _residual_of_post_norm(check: str) -> list[Finding]:
    evidence = "the residual connections are there; that the norms come after them is judged by the norms"
    return [Finding(check, "pass", None, evidence)]


def _norms_of_post_norm(check: str, what: str, attention: str) -> list[Finding]:
    evidence = "the layer norms come after the residual connections (post-norm)"
    hint = f"normalize before: x = {what} + {attention}, then x = x + self.mlp(self.ln2(x))"
    return [Finding(check, "fail", None, evidence, hint)]


def check_down_residual(perceiver: Perceiver) -> list[Finding]:
    if perceiver.down.name in perceiver.post_norm:
        return _residual_of_post_norm("down: residual")
    if not perceiver.has_basis:
        return [_residual_of_constant(perceiver)]
    name = perceiver.basis
    value = perceiver.down.weights[name]
    zeros = {other: torch.zeros_like(w) for other, w in perceiver.down.weights.items() if other != name}
    x = perceiver.draw(106, perceiver.length)
    found = perceiver.down.run(x, **zeros)
    expected = value.double().reshape(1, perceiver.rows, perceiver.dim).expand(2, -1, -1)
    if not perceiver.uses_basis and found.shape == expected.shape and float(found.abs().max()) > 1e-9:
        return [Finding("down: residual", "pass", None, "something other than C is added, which is judged above")]
    found = check_shape(found, tuple(expected.shape))
    only_mlp = _has_only_mlp(perceiver, perceiver.down, (x,), zeros)
    return _residual("down: residual", found, expected, "C", has_only_mlp=only_mlp)


def _residual_of_constant(perceiver: Perceiver) -> Finding:
    """The check for a C that is no parameter: with every weight 0 the output is C, whatever the input is."""
    zeros = {name: torch.zeros_like(weight) for name, weight in perceiver.down.weights.items()}
    found = perceiver.down.run(perceiver.draw(106, perceiver.length), **zeros)
    if float(found.abs().max()) > 1e-9 and torch.equal(found[0], found[1]):
        return Finding("down: residual", "pass", None, "with every weight 0 the block returns the same vectors, as C")
    hint = "a residual connection is missing: x = C + attn(…), then x = x + mlp(ln(x))"
    return Finding("down: residual", "fail", None, "with every weight 0 the block does not return C", hint)


def check_down_norm(perceiver: Perceiver) -> list[Finding]:
    """With the MLP off, the block adds the same to C, however long the vectors of C are."""
    if perceiver.down.name in perceiver.post_norm:
        return _norms_of_post_norm("down: norms", "C", "self.attn(x_input, self.ln1(C))")
    if not perceiver.has_basis:  # C cannot be changed from here: only the MLP's norm is measured
        x = perceiver.draw(107, perceiver.length)
        return [_mlp_norm("down: norms", perceiver, perceiver.down, lambda factor: ((factor * x,), {}))]
    name, x = perceiver.basis, perceiver.draw(107, perceiver.length)
    value, off = perceiver.down.weights[name], perceiver.mlp(perceiver.down)
    outs = [perceiver.down.run(x, **off, **{name: factor * value}) for factor in (10.0, 30.0)]
    added = [
        out - factor * value.double().reshape(1, -1, perceiver.dim) for out, factor in zip(outs, (10, 30), strict=True)
    ]
    error = min(
        relative_error(added[1], added[0]), relative_error(outs[1], outs[0])
    )  # a missing residual is judged above
    hint = "normalize the queries: attn(x_input, self.ln1(self.C))"
    error = error if perceiver.reads_input else 0.0  # attention to C grows with C, which is judged above
    first = compare("down: norms", error, LIMIT, "with C three times as large attention differs", hint)
    if first[0].verdict != "pass":
        return first
    return [_mlp_norm("down: norms", perceiver, perceiver.down, lambda factor: ((x,), {name: factor * value}))]


def _mlp_norm(check: str, perceiver: Perceiver, block: Block, inputs: object) -> Finding:
    """What the MLP adds does not grow with its input: the input is normalized."""
    off = perceiver.mlp(block)
    added = []
    for factor in (LARGE, 3 * LARGE):
        args, changed = inputs(factor)  # type: ignore[operator]
        added.append(block.run(*args, **changed) - block.run(*args, **changed, **off))
    if not float(added[0].abs().max()) > 1e-9:
        return Finding(check, "fail", None, "the MLP changes nothing", "x = x + self.mlp(self.ln2(x))")
    error = relative_error(added[1], added[0])
    hint = "normalize the input of the MLP: x = x + self.mlp(self.ln2(x))"
    found = compare(check, error, 0.05, "for an input three times as large the MLP adds something else", hint)[0]
    return replace(found, family="mlp")


def check_up_shape(perceiver: Perceiver) -> list[Finding]:
    for seed, (batch, length) in enumerate(((2, perceiver.length), (1, perceiver.bottleneck))):
        y, x = perceiver.draw(110 + seed, perceiver.bottleneck, batch), perceiver.draw(112 + seed, length, batch)
        check_shape(perceiver.up.run(y, x), (batch, length, perceiver.dim))
    return [Finding("up: shape", "pass", 0.0, "one vector for each token of x_input")]


def check_up_reads(perceiver: Perceiver) -> list[Finding]:
    y, x = perceiver.draw(114, perceiver.bottleneck), perceiver.draw(115, perceiver.length)
    before = perceiver.up.run(y, x)
    for what, inputs in (("y", (perceiver.draw(116, perceiver.bottleneck), x)), ("x_input", (y, x.flip(1)))):
        if not float((perceiver.up.run(*inputs) - before).abs().max()) > 1e-9:
            hint = "attention reads keys and values from y and queries from x_input"
            return [Finding("up: reads both", "fail", None, f"another {what} gives the same output", hint)]
    return [Finding("up: reads both", "pass", 0.0, "the output depends on y and on x_input")]


def check_up_residual(perceiver: Perceiver) -> list[Finding]:
    if perceiver.up.name in perceiver.post_norm:
        return _residual_of_post_norm("up: residual")
    y, x = perceiver.draw(117, perceiver.bottleneck), perceiver.draw(118, perceiver.length)
    zeros = {name: torch.zeros_like(value) for name, value in perceiver.up.weights.items()}
    found = check_shape(perceiver.up.run(y, x, **zeros), tuple(x.shape))
    only_mlp = _has_only_mlp(perceiver, perceiver.up, (y, x), zeros)
    return _residual("up: residual", found, x, "x_input", has_only_mlp=only_mlp)


def check_up_norm(perceiver: Perceiver) -> list[Finding]:
    """y is normalized: its scale does not matter; so is the input of the MLP."""
    if perceiver.up.name in perceiver.post_norm:
        return _norms_of_post_norm("up: norms", "x_input", "self.attn(self.ln1(y), x_input)")
    y, x = perceiver.draw(119, perceiver.bottleneck), perceiver.draw(120, perceiver.length)
    error = relative_error(perceiver.up.run(3.0 * y, x), perceiver.up.run(y, x))
    first = compare("up: norms", error, LIMIT, "with y three times as large the output differs", "use self.ln1(y)")
    if first[0].verdict != "pass":
        return first
    return [_mlp_norm("up: norms", perceiver, perceiver.up, lambda factor: ((y, factor * x), {}))]


def check_batch(perceiver: Perceiver) -> list[Finding]:
    """Each sequence on its own gives the same as in a batch, and twice the same."""
    x, y = perceiver.draw(121, perceiver.length), perceiver.draw(122, perceiver.bottleneck)
    for block, inputs in ((perceiver.down, (x,)), (perceiver.up, (y, x))):
        whole = block.run(*inputs)
        alone = torch.cat([block.run(*(each[i : i + 1] for each in inputs)) for i in range(2)])
        error = relative_error(alone, whole)
        if error > 1e-6:
            evidence = f"{block.name}: sequences alone differ from those in a batch by {error:.2g}"
            return [Finding("independent rows", "fail", error, evidence, "nothing may run over the batch axis")]
    return [Finding("independent rows", "pass", 0.0, "sequences in a batch do not influence each other")]


def validate(rubric: GradedExercise, where: str) -> None:
    config = (rubric.interface.build or {}).get("config", {})
    if set(rubric.interface.settings) != {"up", "length"} or not {"n_embd", "bottleneck_dim", "block_size"} <= set(
        config
    ):
        raise ValueError(
            f"{where}: this exercise is a class with up and length, built with a config of n_embd, bottleneck_dim "
            "and block_size"
        )


CHECKS = {
    "down: shape": check_down_shape,
    "down: basis": check_basis,
    "down: reads the input": check_down_reads,
    "down: residual": check_down_residual,
    "down: norms": check_down_norm,
    "up: shape": check_up_shape,
    "up: reads both": check_up_reads,
    "up: residual": check_up_residual,
    "up: norms": check_up_norm,
    "independent rows": check_batch,
}
PERCEIVER = Exercise(
    prepare,
    tuple(GradedCheck((name,), no_grad(check)) for name, check in CHECKS.items()),
    validate,
    require_response_of_perceiver,
    also=("UpProjectBlock",),
    stubs=STUBS,
    fixes={
        **dict.fromkeys([n for n in CHECKS if n.startswith("down")], DOWN),
        **dict.fromkeys([n for n in CHECKS if n.startswith("up")], UP),
        "down: basis": "self.C = nn.Parameter(…) of shape (1, bottleneck_dim, n_embd)",
    },
    lines={
        "down: shape": (r"att\w*\(|cross", r"def forward"),
        "down: basis": (r"self\.C\b|Parameter",),
        "down: reads the input": (r"attn\(|cross",),
        "down: residual": (r"att\w*\(", r"mlp\("),
        "down: norms": (r"att\w*\(", r"mlp\(", r"LayerNorm|ln"),
        **dict.fromkeys(("up: shape", "up: reads both", "up: residual"), (r"att\w*\(|cross", r"mlp\w*\(")),
        "mlp": (r"(mlp|ff|feed)\w*\(",),
        "up: norms": (r"(norm|ln)\w*\(", r"att\w*\(|cross", r"mlp\w*\("),
    },
    owners={name: ("UpProjectBlock",) for name in CHECKS if name.startswith("up")},
)
