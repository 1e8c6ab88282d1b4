"""What qkv must know of an architecture to read and write it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from qkv.checkpoints.switches import Switches
from qkv.checkpoints.tables import Row
from qkv.models import Model


@dataclass(frozen=True)
class Family:
    """One `model_type` of Hugging Face's.

    architectures: the classes that are read; the first is what is written.
    model: ours.
    read, write: from their config.json to our config, and back; `write` refuses a config that it cannot say.
    table: which tensor is which, for a config of ours.
    prefix: what every name begins with but the head's; files of a bare model leave it out.
    bare: the architectures without a head, written without the prefix.
    left_out: tensors (patterns) that are no part of our model; they are kept for the way back.
    ignored: tensors (patterns) that hold nothing learned.
    tied: where tables are shared (config.tie_embeddings), the name that counts, and other names that it may stand under.
    optional: tensors that may be absent; they are then 0.
    renamed: endings of names in older files, and what they are called now.
    complete: adds to what is written the tensors that theirs have and ours need not.
    """

    name: str
    architectures: tuple[str, ...]
    model: type[Model]
    read: Callable[[Switches], Any]
    write: Callable[[Any], dict[str, Any]]
    table: Callable[[Any], list[Row]]
    prefix: str = ""
    bare: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    complete: Callable[[dict[str, Tensor]], None] = lambda tensors: None
