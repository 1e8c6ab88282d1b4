"""Save and load a model folder: config.json and model.safetensors. Never a pickle.

config.json holds the SHA-256 of the parameters, so that damaged files are refused. Files that belong to a model (its
tokenizer) are kept in the same folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from qkv import __version__
from qkv._config import from_dict, to_dict
from qkv._files import atomic_folder, read_json, write_json

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL_FOLDER, RECIPE_FILE = "model", "recipe.toml"  # the trained model and the recipe in a run folder
# files that may accompany a model: its tokenizer, and what is needed to write the format it came from
EXTRA_FILES = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
EXTRA_FILES += ("preprocessor_config.json", "huggingface.json", "left_out.safetensors", "purpose.json")
EXPECTED = f"a model is a folder with {CONFIG} and {WEIGHTS}"


def save(model: Model, target: str | Path) -> None:
    """Write a model folder. It replaces an older model of the same name, but keeps that model's tokenizer."""
    files = dict(model.extra_files)
    if TOKENIZER not in files and (older := Path(target) / TOKENIZER).is_file():
        files[TOKENIZER] = older.read_bytes()
    with atomic_folder(target, (CONFIG, WEIGHTS, *EXTRA_FILES)) as scratch:
        tensors = {name: tensor.contiguous() for name, tensor in get_untied_state(model).items()}
        save_file(tensors, scratch / WEIGHTS)
        write_extra_files(files, scratch)
        write_json(scratch / CONFIG, describe(model, _sha256(scratch / WEIGHTS)))


def describe(model: Model, sha256: str) -> dict[str, Any]:
    """The content of config.json for a model whose weights file has that SHA-256."""
    return {"qkv": __version__, "model": type(model).__name__, "config": to_dict(model.config), "sha256": sha256}


def load(source: str | Path, registry: dict[str, type[Model]]) -> Model:
    """Load a model folder; the model is in eval mode.

    Args:
        registry: the model classes by name.
    """
    source = Path(source)
    described = read_config(source)
    name = described.get("model")
    if not isinstance(name, str) or name not in registry:
        raise ValueError(f"{source / CONFIG} names the unknown model {name!r}; known: {', '.join(sorted(registry))}")
    cls = registry[name]
    model = cls(from_dict(cls.config_class, described.get("config"), str(source / CONFIG)))
    tensors = read_tensors(source / WEIGHTS)
    _fill(model, tensors, source / WEIGHTS)  # before the checksum: its errors say more
    if described.get("sha256") not in (None, _sha256(source / WEIGHTS)):
        raise ValueError(f"{source / WEIGHTS} was changed after saving: its SHA-256 differs from the one in {CONFIG}")
    model.extra_files = read_extra_files(source)
    return model.eval()


def write_extra_files(files: dict[str, bytes], target: Path) -> None:
    """Write the files that accompany a model."""
    for name, content in files.items():
        if name not in EXTRA_FILES:
            raise ValueError(f"{name!r} cannot be saved with a model; possible files: {', '.join(EXTRA_FILES)}")
        (target / name).write_bytes(content)


def read_extra_files(source: Path) -> dict[str, bytes]:
    """Read the files that accompany a model."""
    return {name: (source / name).read_bytes() for name in EXTRA_FILES if (source / name).is_file()}


def read_config(source: Path) -> dict[str, Any]:
    """Read the config.json of a model folder."""
    return read_json(source / CONFIG, EXPECTED)


def read_tensors(path: Path, expected: str = EXPECTED) -> dict[str, torch.Tensor]:
    """Read a safetensors file.

    Args:
        expected: what its folder should be, for error messages.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {expected}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fill(model: Model, tensors: dict[str, torch.Tensor], where: Path) -> None:
    name, expected = type(model).__name__, get_untied_state(model)
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"{where} lacks {len(missing)} tensors of {name}, first {missing[0]}")
    if extra := sorted(set(tensors) - set(expected)):
        raise ValueError(f"{where} has {len(extra)} tensors that {name} does not have, first {extra[0]}")
    for key, tensor in tensors.items():
        if tensor.shape != expected[key].shape:
            raise ValueError(f"{where}: {key} must be {tuple(expected[key].shape)}, got {tuple(tensor.shape)}")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors, strict=False)


def get_untied_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict, with a tensor that has two names (tied embeddings) under the first name only."""
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor.detach()
    return state
