"""Inputs of the Models page: a text, an image, a recording, or a sample; parsed from a request and size-limited."""

from __future__ import annotations

import base64
import binascii
import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.checkpoints import bundled
from qkv.data.speech.wav import Audio, read_audio
from qkv.data.text.span_corruption import MASK_CHAR
from qkv.interp.inputs import PreparedInput, prepare_input
from qkv.interp.media_inputs import image_grid
from qkv.interp.text_inputs import encode, find_tokenizer, max_input_tokens
from qkv.studio.models.store import LoadedModel

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FILE_BYTES = 16 * 2**20  # of an image or a recording
MAX_PIXELS = 40_000_000
MAX_SECONDS = 60  # of a recording
MAX_CHARACTERS = 1_000_000  # of a text
MAX_TOKENS = 16_384  # of a text, where the model itself has no limit
MAX_LOGITS = 50_000_000  # tokens × vocabulary
NUM_SAMPLES = 12


class TooLongError(ValueError):
    """An input longer than the model reads, or than the studio shows."""

    def __init__(self, length: int, limit: int, unit: str) -> None:
        super().__init__(f"the text has {length:,} {unit}; at most {limit:,} can be shown here")
        self.length, self.limit = length, limit


@dataclass(frozen=True, eq=False)
class ModelInput:
    """An input for a model, and its name in a command. sample: its number, if it is a bundled sample."""

    value: Any
    name: str
    target: str | list[int] | None = None
    sample: int | None = None
    notes: tuple[str, ...] = ()

    def prepare(self, loaded: LoadedModel) -> PreparedInput:
        """The model with this input."""
        return prepare_input(
            loaded.model,
            self.value,
            target=self.target,
            checkpoint=loaded.source.checkpoint,
            notes=loaded.notes + self.notes,
        )


def parse_input(loaded: LoadedModel, body: dict[str, Any]) -> ModelInput:
    """The input in a request, for this model."""
    if loaded.kind == "image":
        return _parse_image(loaded, body)
    if loaded.kind == "audio":
        return _parse_recording(loaded, body)
    text, target = _parse_text(body, "text"), _parse_text(body, "target") or None
    if not text:
        raise ValueError("enter a text")
    return _limit_tokens(loaded, text, target, bool(body.get("shorten")))


def max_tokens(loaded: LoadedModel) -> int:
    """How many tokens of a text the studio shows for a model."""
    config: Any = getattr(loaded.model, "config", None)
    vocab_size = int(getattr(config, "vocab_size", None) or 1)
    return min(max_input_tokens(loaded.model) or MAX_TOKENS, MAX_TOKENS, max(MAX_LOGITS // vocab_size, 1))


def list_samples(loaded: LoadedModel) -> dict[str, Any]:
    """Sample inputs for a model: texts, images, or whether there is a recording."""
    if loaded.kind == "image":
        return {"images": _sample_images(loaded)}
    if loaded.kind == "audio":
        return {"audio": sample_recording(loaded) is not None}
    return {"texts": _sample_texts(loaded)}


def sample_image(loaded: LoadedModel, number: int) -> Image:
    """A handwritten digit of the test set, which no bundled model was trained on."""
    from PIL import Image

    from qkv.data.images.load import load_digits

    test = load_digits().test
    if test is None or not _reads_digits(loaded) or not 0 <= number < len(test):
        raise ValueError("this model has no such sample; drop an image")
    return Image.fromarray(test.pixels[number, 0].numpy())


def sample_recording(loaded: LoadedModel) -> Path | None:
    """The sample recording of a bundled model."""
    if loaded.source.origin != "bundled":
        return None
    path = bundled.folder(loaded.source.checkpoint) / "sample.wav"
    return path if path.is_file() else None


def image_data_url(image: Image) -> str:
    """An image as a PNG data URL."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _parse_text(body: dict[str, Any], name: str) -> str:
    text = body.get(name) or ""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, got {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise TooLongError(len(text), MAX_CHARACTERS, "characters")
    return text.encode("utf-8", "replace").decode("utf-8")  # replaces lone surrogates


def _limit_tokens(loaded: LoadedModel, text: str, target: str | None, shorten: bool) -> ModelInput:
    """The text if its tokens fit; otherwise its first tokens, if it may be shortened."""
    tokenizer = find_tokenizer(loaded.model, loaded.source.checkpoint)
    tokens = encode(tokenizer, text, loaded.source.title)
    limit = max_tokens(loaded)
    if len(tokens) <= limit:
        return ModelInput(text, text, target)
    if not shorten:
        raise TooLongError(len(tokens), limit, "tokens")
    kept = tokens[:limit]
    shown = tokenizer.decode(kept) if tokenizer is not None else " ".join(map(str, kept))
    return ModelInput(
        kept, shown, target, notes=(f"the text has {len(tokens):,} tokens; the first {limit:,} are used",)
    )


def _parse_file(body: dict[str, Any], name: str, what: str) -> bytes:
    content = body.get(name)
    if not isinstance(content, str) or not content:
        raise ValueError(f"drop {what} to look at")
    if len(content) * 3 // 4 > MAX_FILE_BYTES + 2:
        size = len(content) * 3 / 4 / 2**20
        raise ValueError(f"{what} may have at most {MAX_FILE_BYTES // 2**20} MB, got {size:.0f} MB")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise ValueError(f"{what} must be sent as base64") from None


def _parse_image(loaded: LoadedModel, body: dict[str, Any]) -> ModelInput:
    if body.get("sample") is not None:
        number = int(body["sample"])
        return ModelInput(sample_image(loaded, number), _sample_name(number), sample=number)
    from PIL import Image

    from qkv.data.images.image_files import FORMATS, open_image

    content = _parse_file(body, "file", "an image")
    try:
        with open_image(content) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"the image has {image.width:,} × {image.height:,} pixels; at most {MAX_PIXELS:,} are read"
                )
            image.load()
            return ModelInput(image.copy(), _file_name(body, "image.png"))
    except (OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"this file is not an image that can be read ({', '.join(FORMATS)})") from None


def _parse_recording(loaded: LoadedModel, body: dict[str, Any]) -> ModelInput:
    if body.get("sample") is not None:
        path = sample_recording(loaded)
        if path is None:
            raise ValueError("this model has no sample; drop a recording")
        return ModelInput(read_audio(path), path.name, sample=0)
    content = _parse_file(body, "file", "a recording")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.wav"
        path.write_bytes(content)
        try:
            audio: Audio = read_audio(path)
        except ValueError as problem:
            raise ValueError(str(problem).replace(str(path), "the recording")) from None
    seconds = len(audio.samples) / audio.sample_rate
    if seconds > MAX_SECONDS:
        raise ValueError(f"the recording is {seconds:.0f} s long; at most {MAX_SECONDS} s are allowed")
    return ModelInput(audio, _file_name(body, "recording.wav"))


def _file_name(body: dict[str, Any], default: str) -> str:
    """The name of the user's file, for the command that is shown; it is never opened."""
    name = body.get("name")
    if not isinstance(name, str):
        return default
    return Path(name).name[:120] or default


def _sample_name(number: int) -> str:
    from qkv.data.images.load import load_digits

    test = load_digits().test
    return f"digit-{number if test is None else int(test.labels[number])}.png"


def _sample_texts(loaded: LoadedModel) -> list[str]:
    try:
        purpose = json.loads(getattr(loaded.model, "extra_files", {}).get("purpose.json", b"{}"))
    except ValueError:
        purpose = {}
    documents = [text for text in purpose.get("documents", []) if isinstance(text, str)]
    if documents:
        # a person may have several documents
        names = dict.fromkeys(" ".join(text.split()[:2]).rstrip(".,;:") for text in documents)
        return [f"Where was {name} born?{MASK_CHAR}" for name in list(names)[:3]] + documents[:1]
    if isinstance(purpose.get("prompt"), str):
        return [purpose["prompt"], "To be, or not to be, that is the "]
    if loaded.kind == "pair":
        return ["twenty-one thousand"] if purpose else ["A man sleeps."]
    if find_tokenizer(loaded.model, loaded.source.checkpoint) is None:
        return ["1 2 3 4 5 6 7 8"]
    return ["Once upon a time, there was a little girl named Lily.", "The cat sat on the mat. The cat sat on the"]


def _reads_digits(loaded: LoadedModel) -> bool:
    grid = image_grid(loaded.model)
    return (grid.height, grid.width, grid.channels) == (8, 8, 1)


def _sample_images(loaded: LoadedModel) -> list[dict[str, Any]]:
    """Some test digits, one of each class first."""
    from qkv.data.images.load import load_digits

    test = load_digits().test
    if test is None or not _reads_digits(loaded):
        return []
    labels = test.labels.tolist()
    numbers = [labels.index(digit) for digit in range(10)]
    numbers += [number for number in range(len(labels)) if number not in numbers][: NUM_SAMPLES - len(numbers)]
    return [
        {"number": number, "label": str(labels[number]), "source": image_data_url(sample_image(loaded, number))}
        for number in numbers
    ]
