"""Save and load a model folder: config.json and model.safetensors. Never a pickle.

Matrices may be stored as int8 (`qkv.models.int8_files`). The weights are memory-mapped. config.json holds two checksums
of the weights file: its SHA-256, and one that is as fast as reading the file. Every load verifies the latter, so that
damaged files are refused. Files that belong to a model (its tokenizer) are kept in the same folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from qkv import __version__
from qkv._config import from_dict, to_dict
from qkv._files import atomic_folder, read_json, read_limited, write_json
from qkv.models.int8_files import from_int8, to_int8

if TYPE_CHECKING:
    from qkv.models.base import Model

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL_FOLDER = "model"  # the trained model in a run folder
# files that may accompany a model: its tokenizer, and what is needed to write the format it came from
EXTRA_FILES = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
EXTRA_FILES += ("preprocessor_config.json", "huggingface.json", "left_out.safetensors", "purpose.json")
MAX_HEADER_BYTES = 10_000_000  # of a safetensors file, which is about 100,000 tensors; a million would fill the memory
PAGE, ALIGNMENT = 4096, 64  # bytes
DTYPES = {  # of safetensors
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
MAX_EXTRA_BYTES = 256 * 2**20  # of tokenizer.json and the like
EXPECTED = f"a model is a folder with {CONFIG} and {WEIGHTS}"


def save(model: Model, target: str | Path, *, int8: bool = False) -> None:
    """Write a model folder. It replaces an older model of the same name, but keeps that model's tokenizer.

    Args:
        int8: store matrices as int8 and vectors as float16 ; `load` gives float32.
    """
    files = dict(model.extra_files)
    if TOKENIZER not in files and (older := Path(target) / TOKENIZER).is_file():
        files[TOKENIZER] = read_limited(older, MAX_EXTRA_BYTES)
    with atomic_folder(target, (CONFIG, WEIGHTS, *EXTRA_FILES)) as scratch:
        tensors = get_untied_state(model)
        with (scratch / WEIGHTS).open("wb") as file:
            for piece in safetensors_pieces(to_int8(tensors) if int8 else tensors):
                file.write(piece)
        write_extra_files(files, scratch)
        checksums = {"sha256": _sha256(scratch / WEIGHTS), "checksum": _checksum(scratch / WEIGHTS)}
        write_json(scratch / CONFIG, {**describe(model), **checksums})


def describe(model: Model, sha256: str | None = None) -> dict[str, Any]:
    """The content of config.json for a model, and for its weights file if that SHA-256 is given."""
    described = {"qkv": __version__, "model": type(model).__name__, "config": to_dict(model.config)}
    return described if sha256 is None else {**described, "sha256": sha256}


def load(source: str | Path, registry: dict[str, type[Model]]) -> Model:
    """Load a model folder; the model is in eval mode, and its weights are memory-mapped.

    A page of the file is read when it is used, and copied when it is written to: the file never changes. `save`
    replaces a file by a new one, so that models that are in use keep theirs.

    Args:
        registry: the model classes by name.
    """
    source = Path(source)
    described = read_config(source)
    name = described.get("model")
    if not isinstance(name, str) or name not in registry:
        raise ValueError(f"{source / CONFIG} names the unknown model {name!r}; known: {', '.join(sorted(registry))}")
    cls = registry[name]
    config = from_dict(cls.config_class, described.get("config"), str(source / CONFIG))
    tensors = from_int8(read_tensors(source / WEIGHTS), source / WEIGHTS)
    check_layers(config, len(tensors), str(source / CONFIG))
    _check_tensors(build_empty(cls, config, str(source / CONFIG)), tensors, source / WEIGHTS)
    with SkipInit():
        model = cls(config)  # not larger than its file
    _fill(model, tensors)
    _verify(source / WEIGHTS, described)  # last: the errors above say more
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
    return {name: read_limited(source / name, MAX_EXTRA_BYTES) for name in EXTRA_FILES if (source / name).is_file()}


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
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if MAX_HEADER_BYTES < header < path.stat().st_size:
        raise ValueError(f"{path} has a header of {header:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; a full disk or another failure is an OSError."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while serializing: ")
        raise OSError(f"could not write {path.name}: {reason}") from None


def safetensors_pieces(tensors: dict[str, torch.Tensor]) -> Iterable[Any]:
    """Yield the bytes of a safetensors file: the header, then each tensor.

    Tensors start at multiples of ALIGNMENT bytes, except for small ones of odd sizes, which come last.
    """

    def order(name: str) -> tuple[bool, int]:
        return tensors[name].nbytes % ALIGNMENT != 0, -tensors[name].element_size()

    header: dict[str, Any] = {}
    end = 0
    for name in sorted(tensors, key=order):
        start, end = end, end + tensors[name].nbytes
        described = {"dtype": DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape)}
        header[name] = {**described, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in header:
        if tensors[name].numel():
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data


def _verify(path: Path, described: dict[str, Any]) -> None:
    """Raise a ValueError if a weights file does not have the checksum in config.json; without one, its SHA-256."""
    kind, name = (_checksum, "checksum") if "checksum" in described else (_sha256, "sha256")
    if described.get(name) not in (None, kind(path)):
        label = {"checksum": "checksum", "sha256": "SHA-256"}[name]
        raise ValueError(f"{path} was changed after saving: its {label} differs from the one in {CONFIG}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(path: Path) -> str:
    """The SHA-256 of the sums of each page's 8-byte words, modulo 2⁶⁴, and of the rest of the file.

    It is as fast as reading memory. Every change of one word is found, and so are pages that are lost, moved or zeroed;
    it does not withstand an attacker, who could as well change config.json.
    """
    content = np.memmap(path, dtype=np.uint8, mode="r")
    whole = len(content) // PAGE * PAGE
    digest = hashlib.sha256(len(content).to_bytes(8, "little"))
    digest.update(content[:whole].view("<u8").reshape(-1, PAGE // 8).sum(axis=1, dtype="<u8").tobytes())
    digest.update(content[whole:].tobytes())
    return digest.hexdigest()


class SkipInit(TorchFunctionMode):
    """Build modules without initializing their parameters, which are about to be replaced.

    It also spares the import of torch._dynamo, which random numbers on the meta device need.
    """

    RANDOM = (torch.Tensor.normal_, torch.Tensor.uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.RANDOM or getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def check_layers(config: Any, num_tensors: int, where: str) -> None:
    """Raise a ValueError if a config asks for more layers than its file has tensors: they would take hours to build."""
    for name, value in vars(config).items():
        if name.endswith("layers") and isinstance(value, int) and value > num_tensors:
            raise ValueError(f"{where} asks for {value} layers, but the folder has {num_tensors} tensors in all")


def build_empty(cls: type[Model], config: Any, where: str) -> Model:
    """Build a model whose tensors have names and shapes only and take no memory; `where` is for error messages."""
    try:
        with torch.device("meta"), SkipInit():
            return cls(config)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # torch's own errors for absurd sizes
        message = (str(error).splitlines() or [type(error).__name__])[0]
        if "overflow" in message.lower():
            message = "a size is too large for any tensor"
        raise ValueError(f"{where} describes no model: {message}") from None


def _check_tensors(model: Model, tensors: dict[str, torch.Tensor], where: Path) -> None:
    """Raise a ValueError unless the tensors have the names and shapes of the model's."""
    name, expected = type(model).__name__, get_untied_state(model)
    if missing := sorted(set(expected) - set(tensors)):
        raise ValueError(f"{where} lacks {len(missing)} tensors of {name}, first {missing[0]}")
    if extra := sorted(set(tensors) - set(expected)):
        raise ValueError(f"{where} has {len(extra)} tensors that {name} does not have, first {extra[0]}")
    for key, tensor in tensors.items():
        if tensor.shape != expected[key].shape:
            raise ValueError(f"{where}: {key} must be {tuple(expected[key].shape)}, got {tuple(tensor.shape)}")


def _fill(model: Model, tensors: dict[str, torch.Tensor]) -> None:
    """Replace a model's tensors by those of its file, in the file's dtype if it has one; tied tensors stay tied."""
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    state = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    filled: dict[str, torch.Tensor] = {}
    for name, old in state.items():
        new = tensors[first[id(old)]]
        if new.data_ptr() % ALIGNMENT:  # kernels round differently where memory is not aligned
            new = new.clone()
        if first[id(old)] != name:
            filled[name] = filled[first[id(old)]]
        elif isinstance(old, torch.nn.Parameter):
            filled[name] = torch.nn.Parameter(new if len(dtypes) == 1 else new.to(old.dtype))
        else:
            filled[name] = new if len(dtypes) == 1 and new.is_floating_point() else new.to(old.dtype)
    model.load_state_dict(filled, assign=True)
    if len(dtypes) == 1:
        model.to(dtypes.pop())  # buffers that are not in the file


def get_untied_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict, with a tensor that has two names (tied embeddings) under the first name only."""
    state: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            state[name] = tensor.detach()
    return state
