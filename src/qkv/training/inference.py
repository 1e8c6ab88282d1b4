"""Use a trained model: classify an image, continue a text, translate, transcribe speech, answer a question."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from qkv.checkpoints import load, load_tokenizer
from qkv.data.batches import generator_for
from qkv.data.text.tokenizers import check_length
from qkv.models import GPT, RNN, Model, Transcriber, ViT
from qkv.models.transcriber import BLANK
from qkv.training.recipes.question_answering import answer_questions, scale_confidence
from qkv.training.runs import PURPOSE_FILE

COST_TOKENS = 512  # that measure the cost of quantization


@dataclass(frozen=True)
class Prediction:
    """The output of a model for one input.

    result: the class, continuation, translation, transcript or answer. confidence: its probability, where there is one.
    more: further outputs: other classes, the source of an answer, the times of words.
    notes: sentences for people on how the input was prepared (resampled, inverted).
    """

    task: str
    input: str
    result: str
    confidence: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Predictor:
    """A model with its purpose: what it is for, its labels and normalization."""

    model: Model
    purpose: dict[str, Any]

    @property
    def task(self) -> str:
        return self.purpose["task"]

    def __call__(self, text: str, **options: Any) -> Prediction:
        """Run the model on one input (a file or a text); the options are those of its task."""
        check_length(text)
        return TASKS[self.task](self, text, **options)


def load_predictor(source: str | Path) -> Predictor:
    """Load the model of a run, a model folder, a hub id or a bundled name, with its purpose.

    Without purpose.json the class of the model decides.
    """
    model = load(source)
    if PURPOSE_FILE in model.extra_files:
        purpose = json.loads(model.extra_files[PURPOSE_FILE])
    elif isinstance(model, GPT | RNN):
        purpose = {"task": "generate"}
    elif isinstance(model, ViT):
        halves = [0.5] * model.config.channels
        classes = [str(n) for n in range(model.config.num_classes)]
        purpose = {"task": "classify", "classes": classes, "mean": halves, "std": halves}
    else:
        raise ValueError(
            f"{source} is a {type(model).__name__} without {PURPOSE_FILE}, so its task is unknown; models from "
            "`qkv train` have this file"
        )
    if purpose.get("task") not in TASKS:
        raise ValueError(f"{source} has the task {purpose.get('task')!r}; expected one of {', '.join(TASKS)}")
    return Predictor(model, purpose)


def quantize_predictor(predictor: Predictor, kind: str) -> str:
    """Quantize the model of a predictor in place; return a sentence that says what it costs."""
    model = predictor.model
    before = _text_perplexity(predictor)
    model.quantize(kind)
    after = _text_perplexity(predictor)
    if before is None or after is None:
        return f"linear layers are rounded to {kind}"
    change = f"{before:.3f} to {after:.3f} ({100 * (after / before - 1):+.2f} %)"
    return f"linear layers are rounded to {kind}: perplexity on {COST_TOKENS} tokens of Shakespeare from {change}"


@torch.no_grad()
def _text_perplexity(predictor: Predictor) -> float | None:
    """The perplexity of a language model on a page of Shakespeare; None for others, or without these characters."""
    from qkv.data.text.language_modeling import load_shakespeare
    from qkv.data.text.tokenizers import encode

    model: Any = predictor.model
    if predictor.task != "generate":
        return None
    try:
        tokens = encode(load_tokenizer(model), load_shakespeare()[1][: 8 * COST_TOKENS])[:COST_TOKENS]
    except ValueError:
        return None
    limit = min(model.max_positions or COST_TOKENS, COST_TOKENS)
    windows = [part for part in tokens.split(limit) if len(part) > 1]
    losses = [F.cross_entropy(model(part[None, :-1])[0], part[1:], reduction="none") for part in windows]
    return float(torch.cat(losses).mean().exp())


def classify(predictor: Predictor, path: str, *, top: int = 3) -> Prediction:
    """Classify an image file."""
    import numpy as np

    from qkv.data.images.drawn_digits import prepare_digit, reads_digits
    from qkv.data.images.image_files import open_image, read_image

    config: Any = predictor.model.config
    digits = reads_digits(config.image_size, config.channels, config.num_classes)
    notes: tuple[str, ...] = ()
    if not path:
        raise ValueError("the name of the file is empty; this model classifies image files")
    try:
        if Path(path).is_dir():
            raise ValueError("this is a folder")
        image = read_image(Path(path), size=None if digits else config.image_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; this model classifies image files") from None
    if digits:
        with open_image(Path(path)) as opened:
            prepared, notes = prepare_digit(opened)
        image = np.asarray(prepared)
        if not image.any():
            return Prediction("classify", path, "no digit", None, {"classes": {}}, notes)
    pixels = _to_channels(image, config.channels)
    mean, std = (torch.tensor(predictor.purpose[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        probabilities = predictor.model(((pixels - mean) / std)[None])[0].softmax(-1)
    best = probabilities.topk(min(top, len(probabilities)))
    classes = predictor.purpose["classes"]
    ranked = {classes[i]: round(p, 4) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
    first = next(iter(ranked))
    return Prediction("classify", path, first, ranked[first], {"classes": ranked}, notes)


def _to_channels(image: Any, channels: int) -> torch.Tensor:
    """Convert an image of bytes, (h, w) or (h, w, 3), to numbers in [0, 1] with so many channels."""
    pixels = torch.tensor(image).float() / 255  # a copy: Pillow's arrays are read-only
    pixels = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return pixels.mean(0, keepdim=True) if channels == 1 else pixels.expand(channels, -1, -1)


def generate(
    predictor: Predictor,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    top_p: float | None = None,
) -> Prediction:
    """Continue a text."""
    from qkv.data.text.tokenizers import decode, encode

    if not prompt:
        raise ValueError("the prompt must have at least one character")
    model: Any = predictor.model
    tokenizer = load_tokenizer(model)
    tokens = encode(tokenizer, prompt, add_special_tokens=True)[None]
    length, limit = tokens.shape[1], model.max_positions
    trained = getattr(model.config, "max_length", None)
    notes: tuple[str, ...] = ()
    if limit is not None and length > limit:
        notes = (f"the prompt has {length} tokens; the model reads the last {limit}",)
    elif trained is not None and length > trained:
        notes = (f"the prompt has {length} tokens, more than the {trained} that the model was made for",)
    if limit is not None:
        tokens = tokens[:, -limit:]
        max_new_tokens = min(max_new_tokens, limit - tokens.shape[1] + 1)
    if max_new_tokens < 1:
        raise ValueError(f"this model sees {limit} tokens and the prompt fills them all: use a shorter one")
    generator = generator_for(seed)
    generated = model.generate(tokens, max_new_tokens, temperature=temperature, top_p=top_p, generator=generator)
    return Prediction("generate", prompt, decode(tokenizer, generated[0, tokens.shape[1] :]), notes=notes)


def translate(predictor: Predictor, sentence: str, *, num_beams: int | None = None) -> Prediction:
    """Translate a line."""
    from qkv.data.text.translation import SentencePair
    from qkv.training.recipes.translation import translate_pairs

    if not sentence.strip():
        raise ValueError("an empty line has no translation; give a sentence")
    purpose = predictor.purpose
    num_beams = int(purpose.get("num_beams", 4)) if num_beams is None else num_beams
    penalty = float(purpose.get("length_penalty", 0.6))
    tokenizer = load_tokenizer(predictor.model)
    translations = translate_pairs(predictor.model, tokenizer, [SentencePair(sentence, "")], num_beams, penalty)
    return Prediction("translate", sentence, translations[0])


def transcribe(predictor: Predictor, path: str) -> Prediction:
    """Transcribe a recording, as a stream if the model can: with the time of each word, and the delay."""
    from qkv.data.speech.description import describe_recording
    from qkv.data.speech.mel import Mel
    from qkv.data.speech.wav import read_audio

    audio = read_audio(path)
    words, delay = list(stream_words(predictor, audio)), latency(predictor)
    mel = Mel(**predictor.purpose["mel"])
    notes = describe_recording(audio, mel.sample_rate)
    if len(audio.samples) < mel.window * audio.sample_rate:
        notes = (*notes, f"the recording is shorter than {mel.window} s, one frame of the model's input")
    more = {"words": [vars(word) for word in words], "delay": delay and round(delay, 3)}
    return Prediction("transcribe", path, " ".join(word.text for word in words), more=more, notes=notes)


@dataclass(frozen=True)
class TimedWord:
    """A word. at: its second in the recording. available: the second at which it could be output."""

    text: str
    at: float
    available: float


def stream_words(predictor: Predictor, audio: Any, piece: float = 0.1) -> Iterator[TimedWord]:
    """Yield the words of audio that is fed in pieces of so many seconds; an offline model yields them at the end."""
    from qkv.data.speech.mel import FeatureNormalization, Mel
    from qkv.data.speech.resampling import resample

    model, purpose = predictor.model, predictor.purpose
    assert isinstance(model, Transcriber)
    mel = Mel(**purpose["mel"])
    audio = resample(audio, mel.sample_rate)
    normalize = FeatureNormalization(tuple(purpose["mean"]), tuple(purpose["std"]))
    seconds_per_token = model.config.frames_per_token * mel.hop
    streaming = model.config.chunk_size is not None
    step = round(piece * mel.sample_rate) if streaming else len(audio.samples)
    model_state, mel_state, last, count = None, None, BLANK, 0
    pieces = list(audio.samples.split(step))
    for number, samples in enumerate(pieces):
        frames, mel_state = mel.stream(mel_state, samples)
        with torch.no_grad():
            if streaming:
                final = number == len(pieces) - 1
                logits, model_state = model.stream(normalize(frames)[None], model_state, final=final)
            else:
                logits = model(normalize(frames)[None])
        now = min((number + 1) * step, len(audio.samples)) / mel.sample_rate
        for label in logits[0].argmax(-1).tolist():
            if label not in (BLANK, last):
                yield TimedWord(purpose["words"][label - 1], round(count * seconds_per_token, 3), round(now, 3))
            last, count = label, count + 1


def latency(predictor: Predictor) -> float | None:
    """Return the largest delay between a sound and its output, in seconds; None for an offline model."""
    config: Any = predictor.model.config
    if config.chunk_size is None:
        return None
    return config.chunk_size * (1 + config.lookahead_chunks) * config.frames_per_token * predictor.purpose["mel"]["hop"]


def answer(predictor: Predictor, question: str, *, threshold: float | None = None) -> Prediction:
    """Answer a question if the model is confident enough; otherwise return the line of the corpus that fits best.

    The model abstains on people who are not in the corpus, whatever the threshold; `more["why"]` says why it abstained.
    The confidence in a pseudo-label is at most the one the model had when it read the document.
    """
    from qkv.data.text.question_answering import QuestionAnswer, QuestionTemplate, document_subject

    if not question.strip():
        raise ValueError("the question is empty")
    purpose, asked = predictor.purpose, [QuestionAnswer(question, None, "")]
    answers = answer_questions(predictor.model, load_tokenizer(predictor.model), purpose["mask_id"], asked)
    found = scale_confidence(answers, asked, purpose.get("reading_confidence", {}))[0]
    threshold = float(purpose["threshold"] if threshold is None else threshold)
    template = purpose.get("question_template")
    name, why = None, ""
    if template is not None:
        name = QuestionTemplate(*template).extract_name(question)
        if name not in map(document_subject, purpose["documents"]):
            why = f"no document is about {name!r}"
    if not why and found.confidence < threshold:
        why = f"the threshold is {threshold:.0%}"
    confidence = round(found.confidence, 4)
    if not why:
        return Prediction("answer", question, found.text, confidence, {"from": "the model", "threshold": threshold})
    line = search_documents(purpose["documents"], question, name)
    more = {"from": "the corpus" if line else "nothing found", "why": why}
    more |= {"model_answer": found.text, "threshold": threshold}
    return Prediction("answer", question, line or "I do not know.", confidence, more)


def search_documents(documents: list[str], question: str, name: str | None = None) -> str | None:
    """Return the line that fits a question best, by SQLite's full-text search; None if none has its names.

    name: the name in the question, if it is known; otherwise its capitalized words are taken, or all words.

    >>> search_documents(["Ada Lovelace wrote .", "Alan Turing was born in London ."], "Where was Alan Turing born?")
    'Alan Turing was born in London .'
    """
    words = re.findall(r"\w+", question)
    names = [word for word in words[1:] if word[:1].isupper()] or words  # the first word is always capitalized
    names = names if name is None else re.findall(r"\w+", name)
    if not names:
        return None
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE VIRTUAL TABLE lines USING fts5(text)")
        database.executemany("INSERT INTO lines VALUES (?)", ((text,) for text in documents))
        for operator in (" AND ", " OR "):
            query = operator.join('"' + name.replace('"', "") + '"' for name in names)
            select = "SELECT text FROM lines WHERE lines MATCH ? ORDER BY rank LIMIT 1"
            row = database.execute(select, (query,)).fetchone()
            if row is not None and (operator == " AND " or _has_most(row[0], names)):
                return row[0]
        return None
    finally:
        database.close()


def _has_most(line: str, names: list[str]) -> bool:
    """Whether a line has most of the names: one of two could belong to anybody."""
    return sum(name.lower() in line.lower() for name in names) * 2 > len(names)


TASKS = {"classify": classify, "generate": generate, "translate": translate, "transcribe": transcribe, "answer": answer}
