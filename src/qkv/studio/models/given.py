"""What a person gives a model in the page: a text, a picture, a recording, or one of the samples."""

from __future__ import annotations

import base64
import binascii
import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.checkpoints import bundled as shipped
from qkv.data.spans import MARK
from qkv.data.wav import Sound, read_sound
from qkv.interp import subject as subjects
from qkv.interp.images import grid_of
from qkv.interp.subject import Subject
from qkv.interp.texts import encode, limit_of, tokenizer_of
from qkv.studio.models.shelf import Held

if TYPE_CHECKING:
    from PIL.Image import Image

BYTES = 16 * 2**20  # of a picture's or a recording's file
PIXELS = 40_000_000  # of a picture
SECONDS = 60  # of a recording
LETTERS = 1_000_000  # of a text
TOKENS = 16_384  # of a text, where the model itself sets no limit
SCORES = 50_000_000  # tokens × vocabulary: what a model's answers take
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
SAMPLES = 12


class TooLongError(ValueError):
    """An input longer than the model reads, or than the studio shows."""

    def __init__(self, length: int, limit: int, what: str) -> None:
        super().__init__(f"this is {length:,} {what}; {limit:,} are the most that can be looked at here")
        self.length, self.limit = length, limit


@dataclass(frozen=True, eq=False)
class Given:
    """An input as a model takes it, and what it is called in a command."""

    value: Any
    name: str
    target: str | list[int] | None = None
    sample: int | None = None
    notes: tuple[str, ...] = ()

    def subject(self, held: Held) -> Subject:
        """The model with this input."""
        return subjects.of(
            held.model,
            self.value,
            target=self.target,
            where=held.source.where,
            notes=held.notes + self.notes,
        )


def given(held: Held, body: dict[str, Any]) -> Given:
    """The input that a request holds, as this model reads it."""
    if held.kind == "image":
        return _picture(held, body)
    if held.kind == "sound":
        return _sound(held, body)
    text, target = _text(body, "text"), _text(body, "target") or None
    if not text:
        raise ValueError("type a text to look at")
    return _shortened(held, text, target, bool(body.get("shorten")))


def _text(body: dict[str, Any], name: str) -> str:
    text = body.get(name) or ""
    if not isinstance(text, str):
        raise ValueError(f"{name} is a text; got {type(text).__name__}")
    if len(text) > LETTERS:
        raise TooLongError(len(text), LETTERS, "characters")
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no text


def _shortened(held: Held, text: str, target: str | None, shorten: bool) -> Given:
    """A text whose tokens fit; its tokens themselves where it had to be cut."""
    reader = tokenizer_of(held.model, held.source.where)
    tokens = encode(reader, text, held.source.title)
    limit = room(held)
    if len(tokens) <= limit:
        return Given(text, text, target)
    if not shorten:
        raise TooLongError(len(tokens), limit, "tokens")
    note = f"of the {len(tokens):,} tokens of the text the first {limit:,} were taken"
    kept = tokens[:limit]
    shown = reader.decode(kept) if reader is not None else " ".join(map(str, kept))
    return Given(kept, shown, target, notes=(note,))


def room(held: Held) -> int:
    """How many tokens of a text a model is shown at most."""
    config: Any = getattr(held.model, "config", None)
    vocab = getattr(config, "vocab", None) or getattr(config, "vocab_size", None) or 1
    return min(limit_of(held.model) or TOKENS, TOKENS, max(SCORES // int(vocab), 1))


def _file(body: dict[str, Any], name: str, what: str) -> bytes:
    content = body.get(name)
    if not isinstance(content, str) or not content:
        raise ValueError(f"drop {what} to look at")
    if len(content) * 3 // 4 > BYTES + 2:
        raise ValueError(f"{what} is a file of at most {BYTES // 2**20} MB; got {len(content) * 3 / 4 / 2**20:.0f} MB")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise ValueError(f"{what} comes as base64; got something else") from None


def _picture(held: Held, body: dict[str, Any]) -> Given:
    if body.get("sample") is not None:
        number = int(body["sample"])
        return Given(sample_picture(held, number), f"digit-{number}.png", sample=number)
    from PIL import Image, UnidentifiedImageError

    content = _file(body, "file", "a picture")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > PIXELS:
                raise ValueError(
                    f"the picture is {image.width:,} × {image.height:,} pixels; at most {PIXELS:,} are read"
                )
            image.load()
            return Given(image.copy(), _name(body, "picture.png"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"this is not a picture that can be read ({', '.join(FORMATS)})") from None


def _sound(held: Held, body: dict[str, Any]) -> Given:
    if body.get("sample") is not None:
        path = sample_sound(held)
        if path is None:
            raise ValueError("this model has no sample; drop a recording")
        return Given(read_sound(path), path.name, sample=0)
    content = _file(body, "file", "a recording")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.wav"
        path.write_bytes(content)
        try:
            sound: Sound = read_sound(path)
        except ValueError as problem:
            raise ValueError(str(problem).replace(str(path), "the recording")) from None
    if len(sound.samples) > SECONDS * sound.rate:
        raise ValueError(
            f"the recording is {len(sound.samples) / sound.rate:.0f} s long; at most {SECONDS} s are heard"
        )
    return Given(sound, _name(body, "recording.wav"))


def _name(body: dict[str, Any], otherwise: str) -> str:
    """What the file was called, for the command that is shown; never opened."""
    name = body.get("name")
    return Path(name).name[:120] or otherwise if isinstance(name, str) else otherwise


def samples(held: Held) -> dict[str, Any]:
    """What a person can begin with."""
    if held.kind == "image":
        return {"pictures": sample_pictures(held)}
    if held.kind == "sound":
        return {"sound": sample_sound(held) is not None}
    return {"texts": _texts(held)}


def _texts(held: Held) -> list[str]:
    try:
        purpose = json.loads(getattr(held.model, "files", {}).get("purpose.json", b"{}"))
    except ValueError:
        purpose = {}
    documents = [text for text in purpose.get("documents", [])[:3] if isinstance(text, str)]
    if documents:
        named = [" ".join(text.split()[:2]) for text in documents]
        return [f"Where was {name} born?{MARK}" for name in named] + documents[:1]
    if isinstance(purpose.get("prompt"), str):
        return [purpose["prompt"], "To be, or not to be, that is the "]
    if held.kind == "pair":
        return ["twenty-one thousand"] if purpose else ["A man sleeps."]
    if tokenizer_of(held.model, held.source.where) is None:
        return ["1 2 3 4 5 6 7 8"]
    return ["Once upon a time, there was a little girl named Lily.", "The cat sat on the mat. The cat sat on the"]


def _reads_digits(held: Held) -> bool:
    grid = grid_of(held.model)
    return (grid.height, grid.width, grid.channels) == (8, 8, 1)


def sample_picture(held: Held, number: int) -> Image:
    """One of the handwritten digits that ship, of those that no model was trained on."""
    from PIL import Image

    from qkv.data.digit_images import digits

    test = digits().test
    if test is None or not _reads_digits(held) or not 0 <= number < len(test):
        raise ValueError("this model has no such sample; drop a picture")
    return Image.fromarray(test.pixels[number, 0].numpy())


def sample_pictures(held: Held) -> list[dict[str, Any]]:
    """Some of them, one of each class first."""
    from qkv.data.digit_images import digits

    test = digits().test
    if test is None or not _reads_digits(held):
        return []
    labels = test.labels.tolist()
    chosen = [labels.index(digit) for digit in range(10)]
    chosen += [number for number in range(len(labels)) if number not in chosen][: SAMPLES - len(chosen)]
    return [
        {"number": number, "label": str(labels[number]), "source": picture_uri(sample_picture(held, number))}
        for number in chosen
    ]


def sample_sound(held: Held) -> Path | None:
    """The recording that lies with a model that comes with qkv."""
    if held.source.origin != "bundled":
        return None
    path = shipped.place(held.source.where) / "sample.wav"
    return path if path.is_file() else None


def picture_uri(image: Image) -> str:
    """A picture as the address of a PNG that carries itself."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
