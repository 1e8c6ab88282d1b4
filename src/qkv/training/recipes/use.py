"""Using a trained model: its folder says what it is for, and the input is read as that asks."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkv.checkpoints import load
from qkv.checkpoints.tokens import tokenizer as tokenizer_of
from qkv.data.batches import generator_for
from qkv.models import GPT, RNN, Model, Transcriber, ViT
from qkv.models.transcriber import BLANK
from qkv.training.recipes.answering import answered, weighed
from qkv.training.runs import MODEL, PURPOSE


@dataclass(frozen=True)
class Used:
    """What a model made of one input.

    result: the class, the text, the translation, the words, the answer. sure: how sure it is, where it can say.
    more: what else there is to know: other classes, where an answer was found, when words were heard.
    """

    task: str
    input: str
    result: str
    sure: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A model and what it is for."""

    model: Model
    purpose: dict[str, Any]

    @property
    def task(self) -> str:
        return self.purpose["task"]

    def __call__(self, given: str, **choices: Any) -> Used:
        """What the model makes of one input; choices are those of its task."""
        return TASKS[self.task](self, given, **choices)


def open_tool(source: str | Path) -> Tool:
    """The model of a run, of a folder or of a hub id, with its purpose; without one the kind of model tells it."""
    place = Path(source)
    model = load(place / MODEL if (place / MODEL).is_dir() else source)
    if PURPOSE in model.files:
        purpose = json.loads(model.files[PURPOSE])
    elif isinstance(model, GPT | RNN):
        purpose = {"task": "generate"}
    elif isinstance(model, ViT):
        side, channels = model.config.num_classes, model.config.channels
        purpose = {"task": "classify", "classes": [str(n) for n in range(side)], "mean": [0.5] * channels}
        purpose["deviation"] = [0.5] * channels
    else:
        raise ValueError(
            f"{source} is a {type(model).__name__} without {PURPOSE}: what it is for cannot be told; a model that "
            "`qkv train` made has it"
        )
    if purpose.get("task") not in TASKS:
        raise ValueError(f"{source} is for {purpose.get('task')!r}; known are {', '.join(TASKS)}")
    return Tool(model, purpose)


def classify(tool: Tool, given: str, *, top: int = 3) -> Used:
    """The class of a picture file."""
    from qkv.data.picture_files import read_picture

    config: Any = tool.model.config
    try:
        picture = read_picture(Path(given), size=config.image_size)
    except ValueError as error:
        raise ValueError(f"{given}: {error}; this model classifies the file of a picture") from None
    pixels = _channels(picture, config.channels)
    mean, deviation = (torch.tensor(tool.purpose[name])[:, None, None] for name in ("mean", "deviation"))
    with torch.no_grad():
        chances = tool.model(((pixels - mean) / deviation)[None])[0].softmax(-1)
    best = chances.topk(min(top, len(chances)))
    classes = tool.purpose["classes"]
    ranked = {
        classes[i]: round(chance, 4) for i, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    }
    first = next(iter(ranked))
    return Used("classify", given, first, ranked[first], {"classes": ranked})


def _channels(picture: Any, channels: int) -> torch.Tensor:
    """A picture of bytes, (h, w) or (h, w, 3), as numbers from 0 to 1 with so many channels."""
    pixels = torch.tensor(picture).float() / 255  # a copy: what Pillow gives cannot be written to
    pixels = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return pixels.mean(0, keepdim=True) if channels == 1 else pixels.expand(channels, -1, -1)


def generate(
    tool: Tool, given: str, *, count: int = 200, temperature: float = 0.8, seed: int = 0, top_p: float | None = None
) -> Used:
    """A text written on."""
    model: Any = tool.model
    tokenizer = tokenizer_of(tool.model)
    if not given:
        raise ValueError("a text is written on from at least one character; got none")
    from qkv.data.tokens import to_ids

    tokens = to_ids(tokenizer, given, "the text")[None]
    if model.limit is not None:
        tokens = tokens[:, -model.limit :]
        count = min(count, model.limit - tokens.shape[1] + 1)
    if count < 1:
        raise ValueError(f"this model sees {model.limit} tokens; the text fills them all: give a shorter one")
    written = model.generate(tokens, count, temperature=temperature, top_p=top_p, generator=generator_for(seed))
    return Used("generate", given, tokenizer.decode(written[0, tokens.shape[1] :].tolist()))


def translate(tool: Tool, given: str, *, beams: int | None = None) -> Used:
    """A line in the other language."""
    from qkv.data.pairs import Pair
    from qkv.training.recipes.translation import translated

    if not given.strip():
        raise ValueError("an empty line has no translation; give a sentence")
    beams = beams if beams is not None else int(tool.purpose.get("beams", 4))
    penalty = float(tool.purpose.get("length_penalty", 0.6))
    said = translated(tool.model, tokenizer_of(tool.model), [Pair(given, "")], beams, penalty)
    return Used("translate", given, said[0])


def transcribe(tool: Tool, given: str) -> Used:
    """The words of a recording, heard as a stream if the model can: when each came, and how late."""
    from qkv.data.wav import read_sound

    words, late = list(spoken(tool, read_sound(given))), delay(tool)
    return Used(
        "transcribe",
        given,
        " ".join(word.text for word in words),
        more={"words": [vars(word) for word in words], "delay": late and round(late, 3)},
    )


@dataclass(frozen=True)
class Word:
    """A word. at: the second of the recording in which it stands. said: the second at which it could be told."""

    text: str
    at: float
    said: float


def spoken(tool: Tool, sound: Any, piece: float = 0.1) -> Iterator[Word]:
    """The words of a sound as they come, fed in pieces of so many seconds; a model that hears all tells them at the
    end."""
    from qkv.data.mel import FeatureScale, Mel

    model, purpose = tool.model, tool.purpose
    assert isinstance(model, Transcriber)
    mel = Mel(**purpose["mel"])
    if sound.rate != mel.rate:
        raise ValueError(f"this model hears {mel.rate} samples a second; the recording has {sound.rate}")
    scale = FeatureScale(tuple(purpose["mean"]), tuple(purpose["deviation"]))
    token = model.config.stack * mel.hop
    step = round(piece * mel.rate) if model.config.chunk_size is not None else len(sound.samples)
    state, heard, last, told = None, None, BLANK, 0
    pieces = list(sound.samples.split(step))
    for number, samples in enumerate(pieces):
        frames, heard = mel.stream(heard, samples)
        final = number == len(pieces) - 1
        with torch.no_grad():
            if model.config.chunk_size is None:
                logits = model(scale(frames)[None])
            else:
                logits, state = model.stream(scale(frames)[None], state, final=final)
        now = min((number + 1) * step, len(sound.samples)) / mel.rate
        for label in logits[0].argmax(-1).tolist():
            if label not in (BLANK, last):
                yield Word(purpose["words"][label - 1], round(told * token, 3), round(now, 3))
            last, told = label, told + 1


def delay(tool: Tool) -> float | None:
    """How long after a sound its chunk can be told at the latest, in seconds; None for a model that hears all first."""
    config: Any = tool.model.config
    if config.chunk_size is None:
        return None
    return config.chunk_size * (1 + config.ahead) * config.stack * tool.purpose["mel"]["hop"]


def answer(tool: Tool, given: str, *, threshold: float | None = None) -> Used:
    """An answer, if the model is sure enough of it; otherwise the line of the corpus that fits the question best.

    Of somebody whom no document is about a model knows nothing, however sure it is; and what it taught itself it
    is at most as sure of as it was when it read it.
    """
    from qkv.data.open_book import Form, title
    from qkv.data.questions import Question

    asked = [Question(given, None, "")]
    heard = answered(tool.model, tokenizer_of(tool.model), tool.purpose["mark"], asked)
    told = weighed(heard, asked, tool.purpose.get("read", {}))[0]
    threshold = float(tool.purpose["threshold"] if threshold is None else threshold)
    form = tool.purpose.get("form")
    known = form is None or Form(*form).name(given) in map(title, tool.purpose["documents"])
    if known and told.sure >= threshold:
        return Used("answer", given, told.text, round(told.sure, 4), {"from": "the model", "threshold": threshold})
    line = found_line(tool.purpose["documents"], given)
    result = line or "I do not know."
    source = "the corpus" if line else "nothing found"
    more = {"from": source, "unsure": told.text, "threshold": threshold}
    return Used("answer", given, result, round(told.sure, 4), more)


def found_line(documents: list[str], question: str) -> str | None:
    """The line that fits a question best, by SQLite's full text search; None if none has its rarest words.

    >>> found_line(["Ada Lovelace wrote .", "Alan Turing was born in London ."], "Where was Alan Turing born?")
    'Alan Turing was born in London .'
    """
    words = re.findall(r"\w+", question)
    names = [word for word in words[1:] if word[:1].isupper()] or words  # a question begins with a capital anyway
    if not names:
        return None
    base = sqlite3.connect(":memory:")
    try:
        base.execute("CREATE VIRTUAL TABLE lines USING fts5(text)")
        base.executemany("INSERT INTO lines VALUES (?)", ((text,) for text in documents))
        for joined in (" AND ", " OR "):
            query = joined.join('"' + name.replace('"', "") + '"' for name in names)
            row = base.execute("SELECT text FROM lines WHERE lines MATCH ? ORDER BY rank LIMIT 1", (query,)).fetchone()
            if row is not None and (joined == " AND " or _shares_name(row[0], names)):
                return row[0]
        return None
    finally:
        base.close()


def _shares_name(line: str, names: list[str]) -> bool:
    """Whether a line has most of the names: one of two could be anybody's."""
    return sum(name.lower() in line.lower() for name in names) * 2 > len(names)


TASKS = {"classify": classify, "generate": generate, "translate": translate, "transcribe": transcribe, "answer": answer}
