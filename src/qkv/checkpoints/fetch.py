"""From a path or a hub id to files on this machine. A path makes no network call."""

import os
import re
from pathlib import Path

from qkv.checkpoints import bundled as shipped
from qkv.checkpoints.weights import INDEX
from qkv.models.folder import COMPANIONS, CONFIG, WEIGHTS

# What is fetched: settings and safetensors. Pickles and code never are.
FILES = [CONFIG, WEIGHTS, INDEX, "model-?????-of-?????.safetensors"]
FILES += [name for name in COMPANIONS if name.endswith("_config.json") or name.startswith(("tokenizer", "special"))]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve(path_or_id: str | Path) -> Path:
    """A path as it is, if something stands there; otherwise the folder that a hub id was fetched to.

    A name such as "qkv:digits" is a model that comes with qkv.
    HF_HOME says where fetched files are kept; with HF_HUB_OFFLINE=1 only what is there already is used.
    """
    if shipped.is_name(path_or_id):
        return shipped.place(os.fspath(path_or_id))
    path = Path(path_or_id).expanduser()
    if path.exists():
        return path
    name = os.fspath(path_or_id)
    if isinstance(path_or_id, Path) or not HUB_ID.fullmatch(name) or name.endswith((".bin", ".safetensors", ".json")):
        raise ValueError(f"there is nothing at {path_or_id}; expected a model's folder, a llama2.c file or a hub id")
    if shipped.PREFIX + name in shipped.names():
        raise ValueError(f"there is no folder {name}; the model that comes with qkv is {shipped.PREFIX}{name}")
    return _fetched(name)


def _fetched(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"there is no folder {name}; to fetch it from the hub, install huggingface_hub: pip install 'qkv[hf]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:  # whatever the network and the hub can raise
        first = (str(error).strip().splitlines() or [""])[0]  # the hub's errors go on for a paragraph
        reason = first.split(". ")[0].rstrip(".").removeprefix("Got: ")[:200] or type(error).__name__
        raise ValueError(f"there is no folder {name}, and the hub did not give it: {reason}") from error
