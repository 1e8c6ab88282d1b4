"""A model's folder: config.json says what it is, model.safetensors holds its parameters. Never a pickle.

config.json holds the SHA-256 of the parameters, so that damaged ones are refused. Files that came with a model (its
tokenizer) travel with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qkv import __version__
from qkv.layers import Additive, DenseSynthesizer, Dot, LocationAware, RandomSynthesizer, Shaw, T5Bias
from qkv.models.whole_folder import whole_folder
from qkv.ops.positions import Alibi
from qkv.ops.rope import Linear, Llama3, Ntk, Rope, Yarn

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# what may travel with a model: how text becomes tokens, and what is kept for the way back to where it came from
COMPANIONS = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
COMPANIONS += ("preprocessor_config.json", "huggingface.json", "left_out.safetensors", "purpose.json")
NEEDED = f"a model is a folder with {CONFIG} and {WEIGHTS}"
PARTS = (Dot, Additive, LocationAware, DenseSynthesizer, RandomSynthesizer)
PARTS += (Rope, Alibi, T5Bias, Shaw, Linear, Ntk, Llama3, Yarn)
KINDS = {part.__name__: part for part in PARTS}  # what may stand inside a config


def save(model: Model, target: str | Path) -> None:
    """Write a model's folder; an older model's folder of the same name is replaced, but for its tokenizer."""
    files = dict(model.files)
    if TOKENIZER not in files and (older := Path(target) / TOKENIZER).is_file():
        files[TOKENIZER] = older.read_bytes()
    with whole_folder(target, (CONFIG, WEIGHTS, *COMPANIONS)) as scratch:
        save_file(untied(model), scratch / WEIGHTS)
        write_files(files, scratch)
        write_json(describe(model, _digest(scratch / WEIGHTS)), scratch / CONFIG)


def describe(model: Model, sha256: str) -> dict[str, Any]:
    """What config.json says of a model whose weights' file has that SHA-256."""
    return {
        "qkv": __version__,
        "model": type(model).__name__,
        "config": to_plain(model.config),
        "sha256": sha256,
    }


def load(source: str | Path, known: dict[str, type[Model]]) -> Model:
    """The model that a folder holds, in eval mode."""
    source = Path(source)
    described = read_config(source)
    name = described.get("model")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{source / CONFIG} names the model {name!r}; known are {', '.join(sorted(known))}")
    kind = known[name]
    model = kind(from_plain(kind.config_class, described.get("config"), str(source / CONFIG)))
    tensors = read_tensors(source / WEIGHTS)
    _fill(model, tensors, source / WEIGHTS)  # which says more of what is wrong than a checksum can
    if described.get("sha256") not in (None, _digest(source / WEIGHTS)):
        raise ValueError(f"{source / WEIGHTS} is not what was saved: its SHA-256 differs from the one in {CONFIG}")
    model.files = read_files(source)
    return model.eval()


def write_files(files: dict[str, bytes], target: Path) -> None:
    """Write what travels with a model."""
    for name, content in files.items():
        if name not in COMPANIONS:
            raise ValueError(f"{name!r} cannot travel with a model; what can: {', '.join(COMPANIONS)}")
        (target / name).write_bytes(content)


def read_files(source: Path) -> dict[str, bytes]:
    """What travels with a model."""
    return {name: (source / name).read_bytes() for name in COMPANIONS if (source / name).is_file()}


def write_json(value: object, path: Path) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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


def read_config(source: Path) -> dict[str, Any]:
    """The config.json of a folder."""
    return read_json(source / CONFIG)


def read_json(path: Path, needed: str = NEEDED) -> dict[str, Any]:
    """A file that holds one JSON object; `needed` says what its folder should be."""
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder; {needed}")
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {needed}")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{path} should hold a JSON object; got {type(described).__name__}")
    return described


def read_tensors(path: Path, needed: str = NEEDED) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file; `needed` says what its folder should be."""
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {needed}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fill(model: Model, tensors: dict[str, torch.Tensor], where: Path) -> None:
    expected = untied(model)
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


def untied(model: Model) -> dict[str, torch.Tensor]:
    """The state, with a tensor that has two names under the first of them only."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kept[name] = tensor.detach().contiguous()
    return kept
