"""Checkpoints in and out."""

from pathlib import Path

from qkv.hub.torch_modules import from_torch
from qkv.models import Model, folder

__all__ = ["from_torch", "load"]


def load(path_or_id: str | Path) -> Model:
    """The model that a folder holds, ready to be used (in eval mode).

    A folder holds config.json and model.safetensors, as `model.save(folder)` writes them.
    """
    return folder.load(path_or_id, Model.known)
