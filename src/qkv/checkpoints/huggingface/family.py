"""What defines a Hugging Face family: how its config maps to ours, and a table that maps its tensors to ours.

To add a family, see CONTRIBUTING.md. A rule of the table names a module or a
tensor on each side; `*` stands for the number of a layer, and a rule for a module covers its weight and its bias. The
rules are used in both directions.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields
from qkv.models import Model
from qkv.nn.feed_forward import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
}
HF_ACTIVATIONS = {"gelu-tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
ENCODER_FIELDS: Fields = {  # BERT and ViT
    "dim": ("hidden_size", 768),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "mlp_dim": ("intermediate_size", 3072),
    "norm_eps": ("layer_norm_eps", 1e-12),
}


@dataclass(frozen=True)
class TensorTransform:
    """Turns their tensor into ours (one, or several that they fuse), and ours into theirs."""

    read: Callable[[Tensor], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor]], Tensor]


def _transpose(x: Tensor) -> Tensor:
    return x.mT.contiguous() if x.ndim > 1 else x


SAME = TensorTransform(lambda theirs: [theirs], lambda ours: ours[0])
TRANSPOSED = TensorTransform(lambda theirs: [_transpose(theirs)], lambda ours: _transpose(ours[0]))
UNBATCHED = TensorTransform(lambda theirs: [theirs[0]], lambda ours: ours[0][None])  # theirs has a first axis of size 1
# query, key and value projections side by side in one matrix that is stored transposed
FUSED_TRANSPOSED = TensorTransform(
    lambda theirs: [_transpose(part) for part in theirs.chunk(3, dim=-1)],
    lambda ours: torch.cat([_transpose(part) for part in ours], dim=-1),
)


def skip_rows(rows: int) -> TensorTransform:
    """Their table begins with rows that are never read; they are written as 0."""
    return TensorTransform(
        lambda theirs: [theirs[rows:]], lambda ours: torch.cat((torch.zeros_like(ours[0][:rows]), ours[0]))
    )


def regroup_rope_rows(head_dim: int) -> TensorTransform:
    """Reorder the rows of each head: our RoPE rotates (0, 1), (2, 3), …, theirs the first half with the second."""

    def read(theirs: Tensor) -> list[Tensor]:
        return [theirs.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)]

    def write(ours: Sequence[Tensor]) -> Tensor:
        return ours[0].unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    return TensorTransform(read, write)


@dataclass(frozen=True)
class TensorRule:
    """One row of a table: our name (or names, where they fuse several of ours), theirs, and what differs."""

    ours: str | tuple[str, ...]
    theirs: str
    transform: TensorTransform = SAME


@dataclass(frozen=True)
class TensorPair:
    """A rule applied to one tensor."""

    ours: tuple[str, ...]
    theirs: str
    transform: TensorTransform


def match_tensors(rules: Iterable[TensorRule], names: Iterable[str]) -> list[TensorPair]:
    """Apply the rules to our tensor names; a name that no rule covers raises a ValueError.

    >>> names = ["blocks.0.norm.weight", "blocks.0.norm.bias"]
    >>> match_tensors([TensorRule("blocks.*.norm", "h.*.ln")], names)[1].theirs
    'h.0.ln.bias'
    """
    patterns = {_pattern(rule): rule for rule in rules}
    found: dict[str, TensorPair] = {}
    covered: set[str] = set()
    for name in names:
        for pattern, rule in patterns.items():
            if match := pattern.fullmatch(name):
                layer, part = match["layer"] if "layer" in pattern.groupindex else "", match["part"] or ""
                ours = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
                pair = TensorPair(
                    tuple(one.replace("*", layer) + part for one in ours),
                    rule.theirs.replace("*", layer) + part,
                    rule.transform,
                )
                found[pair.theirs] = pair
                covered.update(pair.ours)
        if name not in covered:
            raise ValueError(f"{name} has no counterpart in that architecture")
    return list(found.values())


def _pattern(rule: TensorRule) -> re.Pattern[str]:
    first = rule.ours if isinstance(rule.ours, str) else rule.ours[0]
    return re.compile(re.escape(first).replace(r"\*", r"(?P<layer>\d+)") + r"(?P<part>\.weight|\.bias)?")


@dataclass(frozen=True)
class Family:
    """One `model_type` of Hugging Face.

    architectures: the classes that are read; the first is written.
    model: our class.
    read_config: their config.json to our config.
    table: the tensor rules for one of our configs.
    write_config: our config to their config.json; it refuses a config that they cannot express. None if an earlier
        family expresses all of these models: `save_hf` writes a model as the first family that can express it.
    prefix: of all their tensor names except the head's; files of a model without a head leave it out.
    headless: the architectures without a head, written without the prefix.
    left_out: tensors (patterns) that are not part of our model; they are kept for writing back.
    ignored: tensors (patterns) that hold nothing learned.
    tied: with tied embeddings, the tensor that counts, and other names that it may have.
    optional: tensors that may be absent; they are then 0.
    old_suffixes: suffixes of tensor names in older files, and what they are called now.
    add_missing: adds the tensors that they expect and we do not have.
    """

    name: str
    architectures: tuple[str, ...]
    model: type[Model]
    read_config: Callable[[ConfigReader], Any]
    table: Callable[[Any], list[TensorRule]]
    write_config: Callable[[Any], dict[str, Any]] | None = None
    prefix: str = ""
    headless: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    old_suffixes: dict[str, str] = field(default_factory=dict)
    add_missing: Callable[[dict[str, Tensor]], None] = lambda tensors: None
