"""prepare_input(): load a checkpoint, prepare a text, an image or a recording for it, and label its tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from qkv._files import read_limited
from qkv.checkpoints import load_any, resolve
from qkv.interp.forward import Inputs, trace
from qkv.interp.layers import TracedLayer
from qkv.interp.media_inputs import PreparedImage, audio_inputs, image_inputs
from qkv.interp.recording.recorder import ModuleFilter
from qkv.interp.text_inputs import find_tokenizer, pair_inputs, text_inputs, token_labels
from qkv.interp.traces import Trace
from qkv.models import CNN, MLP, Encoder, Transcriber, ViT
from qkv.models.generation import Translator

if TYPE_CHECKING:
    from tokenizers import Tokenizer

InputKind = Literal["text", "pair", "image", "audio"]
EXPECTED = {
    "text": "a text",
    "pair": "a text, and optionally a target",
    "image": "an image file",
    "audio": "an audio file (wav)",
}


@dataclass(frozen=True, eq=False)
class PreparedInput:
    """A model and one input prepared for it.

    checkpoint: as it was given. model: in eval mode.
    inputs: what the model is called with: `interp.trace(prepared.model, prepared.inputs)`.
    kind: "text"; "pair", a source and a target; "image"; "audio".
    tokens: a label for each token of the text or the target, or for each patch.
    source: for a pair, a label for each token of the source.
    image: for an image, the image as the model sees it and its patch grid.
    classes: for an image, the class names if the checkpoint has them; for audio, the labels.
    notes: sentences for people on how the input was prepared (resized, generated, loaded by transformers).
    """

    checkpoint: str
    model: nn.Module
    inputs: Inputs
    kind: InputKind
    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    image: PreparedImage | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def trace(self, activations: ModuleFilter = ()) -> Trace:
        """Run the model on the input and return the attention of the run."""
        return trace(self.model, self.inputs, activations=activations)

    def labels(self, layer: TracedLayer) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Labels for the rows (queries) and columns (keys) of a layer's map; numbers if no labels fit."""
        sides = (self.tokens, self.source) if self.source else (self.tokens,)
        if self.source and not layer.cross and ("encoder" in layer.name and "decoder" not in layer.name):
            sides = (self.source, self.tokens)

        def fitting(size: int, sides: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
            return next((labels for labels in sides if len(labels) == size), tuple(map(str, range(size))))

        columns = tuple(reversed(sides)) if layer.cross else sides
        return fitting(layer.queries, sides), fitting(layer.keys, columns)

    def token(self, index: int) -> str:
        """The label of a token of the vocabulary, or of a class."""
        if self.kind in ("image", "audio"):
            return self.classes[index] if index < len(self.classes) else f"class {index}"
        return token_labels(self.tokenizer, [index])[0]


def prepare_input(
    model: nn.Module | str | Path,
    source: Any = None,
    *,
    target: str | Sequence[int] | None = None,
    max_new_tokens: int = 24,
    checkpoint: str | Path | None = None,
    tokenizer: Tokenizer | None = None,
    notes: tuple[str, ...] = (),
    like: PreparedInput | None = None,
) -> PreparedInput:
    """Prepare an input for a model: a text, an image or a recording, as the model reads it.

    model: a model, or a checkpoint: a folder of qkv's or Hugging Face's, a run folder, a llama2.c file, a hub id, or a
        bundled model such as "qkv:digits".
    source: the text, or its token ids; an image or its file; an audio file.
    target: for an encoder–decoder, the tokens or text of its target; by default up to `max_new_tokens` tokens that it
        generates itself.
    checkpoint: where a model that is passed as a module came from; its tokenizer and settings are read there.
    notes: to be kept with the input, before the notes on its preparation.
    like: an input that this one is compared with: the model must read the same kind.
    """
    if not isinstance(model, nn.Module):
        checkpoint = model
        model, more = load_any(checkpoint)
        notes += more
    kind, reads = input_kind(model), f"this {type(model).__name__} reads"
    if like is not None and kind != like.kind:
        raise ValueError(
            f"{checkpoint} cannot be compared with {like.checkpoint}: {reads} {EXPECTED[kind]}, the other one "
            f"{EXPECTED[like.kind]}"
        )
    if source is None or (isinstance(source, str | list | tuple) and not len(source)):
        raise ValueError(f"no input was given; {reads} {EXPECTED[kind]}")
    if target is not None and kind != "pair":
        raise ValueError(f"a target needs an encoder–decoder; {reads} {EXPECTED[kind]}")
    name = type(model).__name__ if checkpoint is None else str(checkpoint)
    if kind == "image":
        if isinstance(source, list | tuple):
            raise ValueError(f"{reads} an image file; got numbers")
        inputs, image, more = image_inputs(model, source, _read_preprocessor(model, checkpoint))
        classes = _class_names(model)
        return PreparedInput(name, model, inputs, kind, image.labels, image=image, classes=classes, notes=notes + more)
    if kind == "audio":
        features, labels, classes, more = audio_inputs(model, source)  # pyright: ignore[reportArgumentType]
        return PreparedInput(name, model, features, kind, labels, classes=classes, notes=notes + more)
    if not isinstance(source, str | list | tuple):
        raise ValueError(f"{reads} {EXPECTED[kind]}; got {source}")
    tokenizer = tokenizer or find_tokenizer(model, checkpoint)
    if kind == "text":
        inputs, tokens, more = text_inputs(model, tokenizer, source, name)
        return PreparedInput(name, model, inputs, kind, tokens, (), tokenizer, notes=notes + more)
    inputs, labels, tokens, more = pair_inputs(model, tokenizer, source, target, max_new_tokens, name)
    return PreparedInput(name, model, inputs, kind, tokens, labels, tokenizer, notes=notes + more)


def input_kind(model: nn.Module) -> InputKind:
    """What a model reads; a ValueError, with what to do instead, if it is neither text, image nor audio."""
    if isinstance(model, ViT | CNN | MLP):
        return "image"
    if isinstance(model, Translator):
        return "pair"
    if isinstance(model, Transcriber):
        return "audio"
    main_input = getattr(model, "main_input_name", "input_ids")
    reads_vectors = isinstance(model, Encoder) and model.config.vocab_size is None
    if reads_vectors or main_input not in ("input_ids", "pixel_values"):
        raise ValueError(
            f"this {type(model).__name__} reads vectors (features), not text or an image; in Python use "
            "qkv.interp.trace(model, inputs)"
        )
    if main_input == "pixel_values":
        return "image"
    return "pair" if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else "text"


def _read_preprocessor(model: nn.Module, checkpoint: str | Path | None) -> dict[str, Any]:
    """The preprocessor_config.json that came with a model, or {}."""
    name = "preprocessor_config.json"
    content = getattr(model, "extra_files", {}).get(name)
    if content is None and checkpoint is not None:
        path = resolve(checkpoint) / name
        content = read_limited(path) if path.is_file() else None
    try:
        settings = json.loads(content) if content else {}
    except ValueError as error:
        raise ValueError(f"{name} of this model is not JSON: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _class_names(model: nn.Module) -> tuple[str, ...]:
    """The names of an image model's classes, if the checkpoint has them: from `qkv train` or a Hugging Face config."""
    files = getattr(model, "extra_files", {})
    if classes := json.loads(files.get("purpose.json", b"{}")).get("classes"):
        return tuple(map(str, classes))
    content = files.get("huggingface.json")
    labels = json.loads(content).get("id2label") if content else None
    labels = getattr(getattr(model, "config", None), "id2label", None) if labels is None else labels
    if not isinstance(labels, dict):
        return ()
    return tuple(str(label) for _, label in sorted(labels.items(), key=lambda item: int(item[0])))
