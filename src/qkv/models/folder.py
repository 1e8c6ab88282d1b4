"""A model's folder: config.json says what it is, model.safetensors holds its parameters. Never a pickle.

The folder appears whole or not at all: it is written beside its place and moved there by one rename.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qkv import __version__
from qkv.layers import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Shaw, T5Bias
from qkv.ops.positions import Alibi
from qkv.ops.rope import Linear, Llama3, Ntk, Rope, Yarn

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PARTS = (Dot, Additive, LocationAware, DenseSynthesizer, RandomSynthesizer)
PARTS += (Rope, Alibi, T5Bias, Shaw, Linear, Ntk, Llama3, Yarn)
KINDS = {part.__name__: part for part in PARTS}  # what may stand inside a config


def save(model: Model, target: str | Path) -> None:
    """Write a model's folder; an older model's folder of the same name is replaced."""
    target = Path(target).resolve()  # behind a link the folder is replaced, not the link
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    described = {"qkv": __version__, "model": type(model).__name__, "config": to_plain(model.config)}
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        if (target / TOKENIZER).exists():
            shutil.copy(target / TOKENIZER, scratch)
        save_file(_untied(model), scratch / WEIGHTS)
        (scratch / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        scratch.chmod(0o755)
        for path in (*scratch.iterdir(), scratch):
            _to_disk(path)
        _swap(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _to_disk(target.parent)


def load(source: str | Path, known: dict[str, type[Model]]) -> Model:
    """The model that a folder holds, in eval mode."""
    source = Path(source)
    described = _read_config(source / CONFIG)
    name = described.get("model")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{source / CONFIG} names the model {name!r}; known are {', '.join(sorted(known))}")
    kind = known[name]
    model = kind(from_plain(kind.config_class, described.get("config"), str(source / CONFIG)))
    tensors = _read_weights(source / WEIGHTS)
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
    hints = get_type_hints(kind)
    for name, value in values.items():
        if isinstance(value, dict):
            part = value.get("kind")
            if not isinstance(part, str) or part not in KINDS:
                raise ValueError(f"{where}: {name} is of kind {part!r}; known are {', '.join(KINDS)}")
            value = from_plain(KINDS[part], value, where)
        elif isinstance(value, list):
            value = tuple(value)
        if not _fits(value, hints[name]):
            raise ValueError(f"{where}: {name} of {kind.__name__} cannot be {plain[name]!r}")
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {kind.__name__} {str(error).split('__init__() ')[-1]}") from None


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is of the type that a field asks for."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if options := get_args(hint):
        return any(_fits(value, option) for option in options)
    return isinstance(value, int | float if hint is float else hint) and (hint is bool) == isinstance(value, bool)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder; a model is a folder with {CONFIG} and {WEIGHTS}")
    if not path.exists():
        raise ValueError(f"{path.parent} has no {CONFIG}; a model is a folder with {CONFIG} and {WEIGHTS}")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{path} should hold a JSON object; got {type(described).__name__}")
    return described


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    if not path.exists():
        raise ValueError(f"{path.parent} has no {WEIGHTS}; a model is a folder with {CONFIG} and {WEIGHTS}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None


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


def _refuse_foreign(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; a model is saved to a folder")
    foreign = sorted(path.name for path in target.iterdir()) if target.exists() else []
    foreign = [name for name in foreign if name not in (CONFIG, WEIGHTS, TOKENIZER)]
    if foreign:
        raise ValueError(f"{target} holds other files ({foreign[0]}, …); choose a new folder, so that nothing is lost")


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name(new.name + ".old")
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
