"""A model's folder: config.json says what it is, model.safetensors holds its parameters. Never a pickle.

config.json holds the SHA-256 of the parameters, so that damaged ones are refused. Files that came with a model (its
tokenizer) travel with it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qkv import __version__
from qkv._config import from_plain, to_plain
from qkv._folders import whole_folder

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# what may travel with a model: how text becomes tokens, and what is kept for the way back to where it came from
COMPANIONS = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
COMPANIONS += ("preprocessor_config.json", "huggingface.json", "left_out.safetensors", "purpose.json")
NEEDED = f"a model is a folder with {CONFIG} and {WEIGHTS}"


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
