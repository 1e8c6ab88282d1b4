"""A model's folder: config.json says what it is, model.safetensors holds its parameters. Never a pickle.

The folder appears whole or not at all: it is written beside its place and moved there by one rename.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from qkv import __version__
from qkv.layers import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Shaw, T5Bias
from qkv.models.whole import read_json, read_tensors, write_whole
from qkv.ops.positions import Alibi
from qkv.ops.rope import Linear, Llama3, Ntk, Rope, Yarn

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
NEEDED = f"a model is a folder with {CONFIG} and {WEIGHTS}"
PARTS = (Dot, Additive, LocationAware, DenseSynthesizer, RandomSynthesizer)
PARTS += (Rope, Alibi, T5Bias, Shaw, Linear, Ntk, Llama3, Yarn)
KINDS = {part.__name__: part for part in PARTS}  # what may stand inside a config


def save(model: Model, target: str | Path) -> None:
    """Write a model's folder; an older model's folder of the same name is replaced."""
    target = Path(target)
    described = {"qkv": __version__, "model": type(model).__name__, "config": to_plain(model.config)}

    def write(scratch: Path) -> None:
        if (target / TOKENIZER).exists():
            shutil.copy(target / TOKENIZER, scratch)
        save_file(_untied(model), scratch / WEIGHTS)
        (scratch / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")

    write_whole(target, (CONFIG, WEIGHTS, TOKENIZER), write, what="model")


def load(source: str | Path, known: dict[str, type[Model]]) -> Model:
    """The model that a folder holds, in eval mode."""
    source = Path(source)
    described = read_json(source / CONFIG, needed=NEEDED)
    name = described.get("model")
    if name not in known:
        raise ValueError(f"{source / CONFIG} names the model {name!r}; known are {', '.join(sorted(known))}")
    kind = known[name]
    model = kind(from_plain(kind.config_class, described.get("config"), str(source / CONFIG)))
    tensors = read_tensors(source / WEIGHTS, needed=NEEDED)
    _fill(model, tensors, source / WEIGHTS)
    return model.eval()


def to_plain(value: Any) -> Any:
    """A config as JSON holds it; the descriptions inside it carry their kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **plain} if type(value).__name__ in KINDS else plain
    return [to_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_plain(kind: type, plain: Any, where: str) -> Any:
    """The inverse of `to_plain`; an unknown or a missing field is a ValueError that names it."""
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: expected the fields of {kind.__name__}; got {plain!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {name: value for name, value in plain.items() if name != "kind"}
    if unknown := sorted(set(values) - set(fields)):
        raise ValueError(f"{where}: {kind.__name__} has no field {unknown[0]!r}; it has {', '.join(fields)}")
    for name, value in values.items():
        if isinstance(value, dict):
            if value.get("kind") not in KINDS:
                raise ValueError(f"{where}: {name} is of kind {value.get('kind')!r}; known are {', '.join(KINDS)}")
            values[name] = from_plain(KINDS[value["kind"]], value, where)
        elif isinstance(value, list):
            values[name] = tuple(value)
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {kind.__name__} {str(error).split('__init__() ')[-1]}") from None


def _fill(model: Model, tensors: dict[str, torch.Tensor], where: Path) -> None:
    expected = _untied(model)
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"{where} lacks {len(missing)} tensors of {type(model).__name__}, first {missing[0]}")
    if extra := sorted(set(tensors) - set(expected)):
        raise ValueError(f"{where} has {len(extra)} tensors that {type(model).__name__} has not, first {extra[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{where}: {name} should be {tuple(expected[name].shape)}; got {tuple(tensor.shape)}")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors, strict=False)


def _untied(model: Model) -> dict[str, torch.Tensor]:
    """The state, with a tensor that has two names under the first of them only."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach().contiguous()
    return kept
