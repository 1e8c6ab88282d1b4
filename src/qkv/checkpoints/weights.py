"""A folder's tensors: one safetensors file, or several with an index. Never a pickle."""

from pathlib import Path

from torch import Tensor

from qkv.models.folder import WEIGHTS, read_json, read_tensors

INDEX = "model.safetensors.index.json"


def read_weights(source: Path) -> dict[str, Tensor]:
    """All tensors of a folder, by name."""
    if (source / WEIGHTS).is_file():
        tensors = read_tensors(source / WEIGHTS)
    elif (source / INDEX).is_file():
        tensors = _read_shards(source)
    else:
        raise ValueError(nothing_to_read(source))
    return tensors


def _read_shards(source: Path) -> dict[str, Tensor]:
    where = source / INDEX
    homes = read_json(where).get("weight_map")
    if not isinstance(homes, dict) or not all(isinstance(home, str) for home in homes.values()):
        raise ValueError(f"{where} should hold a weight_map from tensors to files")
    tensors: dict[str, Tensor] = {}
    for home in sorted(set(homes.values())):
        if home != Path(home).name or "\\" in home or not home.endswith(".safetensors"):
            raise ValueError(f"{where} names the file {home!r}; only safetensors files of the folder itself are read")
        if not (source / home).is_file():
            raise ValueError(f"{where} names {home}, which the folder lacks: it is incomplete")
        part = read_tensors(source / home)
        if strange := sorted(name for name in part if homes.get(name) != home):
            raise ValueError(f"{source / home} holds {strange[0]}, which {INDEX} does not place there")
        tensors.update(part)
    if missing := sorted(set(homes) - set(tensors)):
        raise ValueError(f"{source / homes[missing[0]]} lacks {missing[0]}, which {INDEX} places there")
    return tensors


def nothing_to_read(source: Path) -> str:
    """Why a folder without safetensors cannot be read."""
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in source.glob(pattern))
    if pickles:
        return (
            f"{source} holds {pickles[0]}, a pickle, which could run any code when read; only safetensors is read: "
            f"write it with transformers' save_pretrained"
        )
    return f"{source} has no {WEIGHTS} and no {INDEX}"
