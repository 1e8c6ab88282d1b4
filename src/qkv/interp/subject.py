"""What is looked at: a model with one input, and what its rows and columns are called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from qkv.checkpoints.fetch import resolve
from qkv.interp import checkpoint as checkpoints
from qkv.interp.audio import sound_inputs
from qkv.interp.images import Picture, picture_inputs
from qkv.interp.recording.record import Wanted
from qkv.interp.run import Inputs, at
from qkv.interp.texts import pair_inputs, text_inputs, tokenizer_of
from qkv.interp.traces.layer import Layer
from qkv.interp.traces.trace import Trace
from qkv.models import CNN, MLP, Encoder, Transcriber, ViT
from qkv.models.translate import Translator

if TYPE_CHECKING:
    from PIL.Image import Image
    from tokenizers import Tokenizer

Kind = Literal["text", "pair", "image", "sound"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and one input for it.

    checkpoint: as it was given.
    kind: "text"; "pair", a source and a target; "image"; "sound".
    inputs: what the model is called with, `look.at(subject.model, subject.inputs)`.
    tokens: what the tokens of the text, or of the target, or the patches are called.
    source: for a pair, what the source's tokens are called.
    picture: for an image, the picture as the model sees it and the grid of its patches.
    classes: for an image, the classes' names, where the checkpoint says them; for a sound, the labels'.
    notes: sentences on what was done on the way (resized, generated, read by transformers), for people to read.
    """

    checkpoint: str
    model: nn.Module
    inputs: Inputs
    kind: Kind
    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    picture: Picture | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def trace(self, activations: Wanted = ()) -> Trace:
        """The attention of the model on the input."""
        return at(self.model, self.inputs, activations=activations)

    def labels(self, layer: Layer) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the rows (queries) and columns (keys) of a layer's map are called; numbers where no names fit."""
        sides = (self.tokens, self.source) if self.source else (self.tokens,)
        if self.source and not layer.cross and ("encoder" in layer.name and "decoder" not in layer.name):
            sides = (self.source, self.tokens)

        def named(size: int, names: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
            return next((each for each in names if len(each) == size), tuple(map(str, range(size))))

        columns = tuple(reversed(sides)) if layer.cross else sides
        return named(layer.queries, sides), named(layer.keys, columns)

    def token(self, number: int) -> str:
        """What a token, or a class, is called."""
        if self.kind in ("image", "sound"):
            return self.classes[number] if number < len(self.classes) else f"class {number}"
        from qkv.interp.texts import names_of

        return names_of(self.tokenizer, [number])[0]


def open(  # noqa: A001  (said as `subject.open`)
    checkpoint: str | Path,
    given: str | Path | Image | Sequence[int] | None = None,
    *,
    target: str | Sequence[int] | None = None,
    count: int = 24,
) -> Subject:
    """A checkpoint's model with an input: a text, or the file of a picture, as the model reads it.

    checkpoint: a folder of ours or of Hugging Face's, a llama2.c file, or a hub id.
    given: the text; or its tokens as whole numbers, where there is no tokenizer; or a picture's file.
    target: for an encoder–decoder, what it wrote; if not given, up to `count` tokens that it writes itself.
    """
    model, notes = checkpoints.load(checkpoint)
    return of(model, given, target=target, count=count, where=checkpoint, notes=notes)


def of(
    model: nn.Module,
    given: str | Path | Image | Sequence[int] | None = None,
    *,
    target: str | Sequence[int] | None = None,
    count: int = 24,
    where: str | Path | None = None,
    notes: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
) -> Subject:
    """The same for a model that is there already."""
    kind = kind_of(model)
    if given is None or (isinstance(given, str | list | tuple) and not len(given)):
        raise ValueError(f"nothing to look at was given; this {type(model).__name__} reads {WANTED[kind]}")
    if target is not None and kind != "pair":
        raise ValueError(f"a target belongs to an encoder–decoder; this {type(model).__name__} reads {WANTED[kind]}")
    name = type(model).__name__ if where is None else str(where)
    if kind == "image":
        inputs, picture, more = picture_inputs(model, _picture(given), _settings(model, where))
        names = picture.names
        return Subject(name, model, inputs, kind, names, (), None, picture, _classes(model), notes + more)
    if kind == "sound":
        frames, names, labels = sound_inputs(model, given)  # pyright: ignore[reportArgumentType]
        return Subject(name, model, frames, kind, names, classes=labels, notes=notes)
    if not isinstance(given, str | list | tuple):
        raise ValueError(f"this {type(model).__name__} reads {WANTED[kind]}; got {given}")
    reader = tokenizer or tokenizer_of(model, where)
    if kind == "text":
        inputs, tokens, more = text_inputs(model, reader, given, name)
        return Subject(name, model, inputs, kind, tokens, (), reader, notes=notes + more)
    inputs, source, tokens, more = pair_inputs(model, reader, given, target, count, name)
    return Subject(name, model, inputs, kind, tokens, source, reader, notes=notes + more)


WANTED = {
    "text": "a text",
    "pair": "a text, and perhaps a target",
    "image": "the file of a picture",
    "sound": "the file of a recording (wav)",
}


def kind_of(model: nn.Module) -> Kind:
    """What a model reads; a ValueError, which says what is possible, for what is neither text nor picture."""
    if isinstance(model, ViT | CNN | MLP):
        return "image"
    if isinstance(model, Translator):
        return "pair"
    if isinstance(model, Transcriber):
        return "sound"
    reads = getattr(model, "main_input_name", "input_ids")
    sound = isinstance(model, Encoder) and model.config.vocab_size is None
    if sound or reads not in ("input_ids", "pixel_values"):
        raise ValueError(
            f"this {type(model).__name__} reads vectors (sound, features), not text or a picture; in Python it can be "
            "looked at with qkv.interp.at(model, inputs)"
        )
    if reads == "pixel_values":
        return "image"
    return "pair" if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else "text"


def _picture(given: Any) -> Any:
    if isinstance(given, list | tuple):
        raise ValueError("this model reads the file of a picture; got numbers")
    return given


def _settings(model: nn.Module, where: str | Path | None) -> dict[str, Any]:
    """The preprocessor_config.json that came with a model, or {}."""
    name = "preprocessor_config.json"
    content = getattr(model, "files", {}).get(name)
    if content is None and where is not None and (path := resolve(where)).is_dir() and (path / name).is_file():
        content = (path / name).read_bytes()
    try:
        settings = json.loads(content) if content else {}
    except ValueError as error:
        raise ValueError(f"{name} of this model is not JSON: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _classes(model: nn.Module) -> tuple[str, ...]:
    """The names of a picture's classes, where the checkpoint says them: `qkv train`'s or a Hugging Face config."""
    files = getattr(model, "files", {})
    if told := json.loads(files.get("purpose.json", b"{}")).get("classes"):
        return tuple(map(str, told))
    content = files.get("huggingface.json")
    labels = json.loads(content).get("id2label") if content else None
    labels = getattr(getattr(model, "config", None), "id2label", None) if labels is None else labels
    if not isinstance(labels, dict):
        return ()
    return tuple(str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0])))
