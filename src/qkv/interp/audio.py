"""From a recording to what a transcriber hears, and what its places and labels are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qkv.data.mel import FeatureScale, Mel
from qkv.data.wav import Sound, read_sound
from qkv.models import Transcriber

BLANK = "–"  # what the label is called that says nothing


def sound_inputs(model: nn.Module, given: str | Path | Sound) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Frames (1, n, f) as the model hears them, what its tokens are called (by their second), and its labels."""
    purpose = _purpose(model)
    mel = Mel(**purpose["mel"])
    sound = given if isinstance(given, Sound) else read_sound(Path(given).expanduser())
    if sound.rate != mel.rate:
        raise ValueError(f"this model hears {mel.rate} samples a second; the recording has {sound.rate}")
    frames = FeatureScale(tuple(purpose["mean"]), tuple(purpose["deviation"]))(mel(sound.samples))
    if not len(frames):
        raise ValueError(f"the recording is shorter than {mel.window} s, one frame of what this model hears")
    assert isinstance(model, Transcriber)
    step = token_seconds(model)
    names = tuple(f"{place * step:.2f} s" for place in range(-(-len(frames) // model.config.stack)))
    return frames[None].to(next(model.parameters()).dtype), names, (BLANK, *map(str, purpose["words"]))


def token_seconds(model: Transcriber) -> float:
    """How long a token of what a transcriber hears is."""
    return model.config.stack * Mel(**_purpose(model)["mel"]).hop


def _purpose(model: nn.Module) -> dict[str, Any]:
    """How sound becomes frames, as `qkv train` wrote it down."""
    try:
        purpose = json.loads(getattr(model, "files", {}).get("purpose.json", b"{}"))
    except ValueError:
        purpose = {}
    if not isinstance(purpose, dict) or not {"mel", "mean", "deviation", "words"} <= set(purpose):
        raise ValueError(
            f"this {type(model).__name__} does not say how it hears (purpose.json with mel, mean, deviation, words); "
            "in Python it can be looked at with qkv.interp.at(model, frames)"
        )
    return purpose
