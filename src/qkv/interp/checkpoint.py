"""From a checkpoint to a model: ours where we read it, transformers' own where we do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from qkv import checkpoints as hub
from qkv.checkpoints.fetch import resolve
from qkv.models.folder import CONFIG, read_config


def load(checkpoint: str | Path) -> tuple[nn.Module, tuple[str, ...]]:
    """The model of a checkpoint, in eval mode, and notes on how it was read.

    Ours, Hugging Face's that qkv reads, and llama2.c's are qkv models. Of another Hugging Face folder the model is
    transformers' own, if that is installed: a trace needs no model of ours.
    """
    path = resolve(checkpoint)
    if (path / "model" / CONFIG).is_file():  # a run: its trained model
        path = path / "model"
    try:
        return hub.load(path), ()
    except ValueError as refusal:
        described = read_config(path) if path.is_dir() and (path / CONFIG).is_file() else {}
        if "qkv" in described or not isinstance(described.get("model_type"), str):
            raise
        return _by_transformers(path, described, refusal)


def _by_transformers(path: Path, described: dict[str, Any], refusal: ValueError) -> tuple[nn.Module, tuple[str, ...]]:
    """The model as transformers reads it, from safetensors only and with no code of the folder's own."""
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{refusal}; with transformers installed (pip install 'qkv[hf]') more can be read") from None
    names = described.get("architectures") or []
    named = bool(names) and isinstance(names[0], str)
    kind: Any = getattr(transformers, names[0], None) if named else transformers.AutoModel
    if not hasattr(kind, "from_pretrained"):
        raise ValueError(f"{refusal}; nor does transformers {transformers.__version__} know {names[0]!r}")
    try:
        model, report = kind.from_pretrained(
            path, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # whatever the library raises on a folder that it cannot read
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{refusal}; transformers does not read it either: {reason}") from None
    lost = sorted(report.get("missing_keys") or []) + sorted(str(key) for key in report.get("mismatched_keys") or [])
    if lost:
        raise ValueError(f"{path} lacks {len(lost)} tensors that {type(model).__name__} asks for, first {lost[0]}")
    return model.eval(), (f"{type(model).__name__} as transformers reads it",)
