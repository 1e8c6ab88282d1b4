"""Good files of every kind that qkv reads, each with a command that reads it and a mutation that fits it."""

import csv
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mutate import mutate_bytes, mutate_json, mutate_safetensors, mutate_text
from PIL import Image

import qkv
from qkv._config import to_toml
from qkv.checkpoints.bundled import folder as bundled_folder
from qkv.checkpoints.huggingface.folder import save_hf
from qkv.data.speech.wav import Audio, write_wav
from qkv.data.text.tokenizers import bpe_tokenizer, serialize_tokenizer
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig, ViT, ViTConfig
from qkv.training.recipes import get_recipe

Mutation = Callable[[bytes, random.Random], bytes]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass(frozen=True)
class Seed:
    """Files by name; the one to mutate; the command line that reads them."""

    name: str
    files: dict[str, bytes]
    target: str
    command: tuple[str, ...]
    mutation: Mutation = mutate_bytes
    code: str = ""  # a reader without a command: Python that reads the file `path`
    good_code: int = 0  # the exit code for the files as they are


def text_mutation(mutate: Callable[[str, random.Random], bytes]) -> Mutation:
    return lambda content, rng: mutate(content.decode(), rng)


AS_JSON, AS_TEXT = text_mutation(mutate_json), text_mutation(mutate_text)


def make_seeds(folder: Path) -> list[Seed]:
    """One seed for each reader."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocab_size=300, max_length=16, dim=8, layers=2, heads=2, mlp_dim=8))
    text = "the cat sat on the mat and looked at the other cat "
    gpt.extra_files["tokenizer.json"] = serialize_tokenizer(bpe_tokenizer([text * 20], 300))
    gpt.save(folder / "gpt")
    save_hf(gpt, folder / "hf")
    vit = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, num_classes=10, dim=8, layers=1, heads=2, mlp_dim=8))
    vit.save(folder / "vit")
    encoder = Encoder(EncoderConfig(vocab_size=20, max_length=16, dim=8, layers=1, heads=2, mlp_dim=8))
    encoder.save(folder / "encoder")
    models = {name: read_folder(folder / name) for name in ("gpt", "hf", "vit", "encoder")}
    look = ("look", "model", "the cat sat")
    seeds = [
        Seed("safetensors", prefix(models["gpt"]), "model/model.safetensors", look, mutate_safetensors),
        Seed("safetensors of an encoder", prefix(models["encoder"]), "model/model.safetensors",
             ("look", "model", "1 2 3"), mutate_safetensors),
        Seed("config", prefix(models["gpt"]), "model/config.json", look, AS_JSON),
        Seed("config of an encoder", prefix(models["encoder"]), "model/config.json", ("look", "model", "1 2 3"), AS_JSON),
        Seed("config of a ViT", {**prefix(models["vit"]), "a.png": image("PNG")}, "model/config.json",
             ("look", "model", "a.png"), AS_JSON),
        Seed("Hugging Face config", prefix(models["hf"]), "model/config.json", look, AS_JSON),
        Seed("Hugging Face safetensors", prefix(models["hf"]), "model/model.safetensors",
             ("convert", "model", "out", "--to", "qkv"), mutate_safetensors),
        Seed("tokenizer", prefix(models["gpt"]), "model/tokenizer.json", look, AS_JSON),
        Seed("llama2.c", {"m.bin": llama2c()}, "m.bin", ("convert", "m.bin", "out", "--to", "hf")),
        Seed("llama2.c tokenizer", {"m.bin": llama2c(), "tok.bin": llama2c_tokenizer()}, "tok.bin",
             ("look", "m.bin", "the cat")),
        Seed("wav", {"a.wav": wav()}, "a.wav", ("use", str(bundled_folder("qkv:spoken-digits")), "a.wav")),
        Seed("wav to look at", {"a.wav": wav()}, "a.wav", ("look", "qkv:spoken-digits", "a.wav")),
    ]  # fmt: skip
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        seeds.append(Seed(f"image {kind}", {"a.png": image(kind)}, "a.png", ("use", "qkv:digits", "a.png")))
    seeds += [
        Seed("recipe", {"r.toml": RECIPE.encode()}, "r.toml",
             ("train", "vit-digits", "--config", "r.toml", "--show"), AS_TEXT),
        Seed("recipe of text", {"r.toml": (EXAMPLES / "small.toml").read_bytes()}, "r.toml",
             ("train", "--config", "r.toml", "--show"), AS_TEXT),
        Seed("rubric", {"r.toml": (EXAMPLES / "rope_rubric.toml").read_bytes()}, "r.toml", ("grade", "r.toml"), AS_TEXT),
        Seed("byhand TOML", {"p.toml": PROBLEM_TOML.encode()}, "p.toml", ("byhand", "p.toml"), AS_TEXT),
        Seed("byhand answer", {"p.toml": (EXAMPLES / "answer.toml").read_bytes()}, "p.toml",
             ("byhand", "--verify", "p.toml"), AS_TEXT, good_code=1),
        Seed("byhand JSON", {"p.json": PROBLEM.encode()}, "p.json", ("byhand", "p.json"), AS_JSON),
        Seed("byhand CSV", {"p.csv": problem_csv()}, "p.csv", ("byhand", "p.csv"), AS_TEXT),
    ]  # fmt: skip
    run = run_folder(models["vit"])
    whole = run["runs/a/recipe.toml"]
    seeds.append(Seed("whole recipe", {"r.toml": whole}, "r.toml", ("train", "--config", "r.toml", "--show"), AS_TEXT))
    for name, mutation in (("recipe.toml", AS_TEXT), ("run.json", AS_JSON), ("metrics.jsonl", AS_TEXT)):
        seeds.append(Seed(f"run folder {name}", run, f"runs/a/{name}", ("runs", "runs"), mutation))
    seeds.append(Seed("run folder model", run, "runs/a/model/config.json", ("eval", "runs/a"), AS_JSON))
    npz, notebook = io.BytesIO(), json.dumps(NOTEBOOK).encode()
    np.savez(npz, train_images=np.zeros((4, 8, 8), np.uint8), train_labels=np.arange(4))
    grading = "from qkv.check.grading.reading.submission import read_submission; read_submission(path)"
    listing = (
        "from qkv.studio import run_files as r; from qkv.training import run_progress as p; "
        "f = path.parent; r.read_series(f); p.read_progress([f]); r.read_samples(f)"
    )
    seeds += [
        Seed("notebook", {"a.ipynb": notebook}, "a.ipynb", (), AS_JSON, grading),
        Seed("zip", {"a.zip": archive(notebook)}, "a.zip", (), mutate_bytes, grading),
        Seed("npz", {"a.npz": npz.getvalue()}, "a.npz", (), mutate_bytes,
             "from qkv.data.images.load import load_images; load_images(path)"),
        Seed("questions", {"q.tsv": b"Where was Ada Byron born?\tLondon\nWhere was Alan born?\tParis\n"}, "q.tsv", (),
             AS_TEXT, "from qkv.data.text.question_answering import read_questions; read_questions(path)"),
        Seed("text", {"t.txt": text.encode()}, "t.txt", (), mutate_bytes,
             "from qkv.data.text.language_modeling import read_texts; read_texts(path)"),
        Seed("runs in the studio", {"a/metrics.jsonl": METRICS.encode(), "a/samples.json": b'{"rows": [[1, "a"]]}'},
             "a/metrics.jsonl", (), AS_TEXT, listing),
        Seed("samples in the studio", {"a/metrics.jsonl": METRICS.encode(), "a/samples.json": b'{"rows": [[1, "a"]]}'},
             "a/samples.json", (), AS_JSON, listing),
    ]  # fmt: skip
    return seeds


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prefix(files: dict[str, bytes], name: str = "model") -> dict[str, bytes]:
    return {f"{name}/{key}": content for key, content in files.items()}


def image(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray((np.indices((24, 24)).sum(0) * 5).astype(np.uint8)).save(out, kind)
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    write_wav(out, Audio(torch.sin(torch.arange(4000) / 20), 8000))
    return out.getvalue()


def llama2c() -> bytes:
    dim, mlp, layers, heads, kv, vocab, length = 8, 16, 1, 2, 2, 300, 8
    sizes = vocab * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * mlp) + dim + length * (dim // heads)
    numbers = np.random.default_rng(0).normal(size=sizes).astype("<f4")
    return struct.pack("<7i", dim, mlp, layers, heads, kv, vocab, length) + numbers.tobytes()


def llama2c_tokenizer() -> bytes:
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    pieces += [bytes([97 + n // 26, 97 + n % 26]) for n in range(300 - len(pieces))]
    return struct.pack("<i", 7) + b"".join(struct.pack("<fi", -n, len(piece)) + piece for n, piece in enumerate(pieces))


def problem_csv() -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(
        [["x"], [1, 0], [0, 1], ["wq"], [1, 2], [0, 1], ["wk"], [1, 0], [1, 1], ["wv"], [2, 0], [0, 3]]
    )
    return out.getvalue().encode()


def run_folder(model: dict[str, bytes]) -> dict[str, bytes]:
    about = {"recipe": "vit-digits", "qkv": qkv.__version__, "finished": True, "seconds": 3.5, "parameters": 1000,
             "notes": ["a"], "result": {"test": {"accuracy": 0.5}}}  # fmt: skip
    recipe = to_toml(get_recipe("vit-digits").resolve({"model.dim": 8, "model.layers": 1}).to_table())
    files = {"recipe.toml": recipe.encode(), "run.json": json.dumps(about).encode(), "metrics.jsonl": METRICS.encode()}
    return prefix({**files, **prefix(model)}, "runs/a")


def archive(notebook: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("in/a.ipynb", notebook)
        file.writestr("in/rope.py", "def apply_rope(x, positions):\n    return x\n" * 20)
    return out.getvalue()


RECIPE = """recipe = "vit-digits"

[model]
dim = 32
layers = 2
heads = 4

[data]
batch_size = 64

[train]
steps = 400

[train.optimizer]
lr = 0.001
"""
PROBLEM = (
    '{"x": [[1, 0], [0, 1]], "wq": [[1, 2], [0, 1]], "wk": [[1, 0], [1, 1]], "wv": [["1/2", 0], [0, 3]], "heads": 1}'
)
PROBLEM_TOML = (
    "x = [[1, 0], [0, 1]]\nwq = [[1, 2], [0, 1]]\nwv = [[0.5, 0], [0, 3]]\nheads = 1\nscale = 1\ncausal = true\n"
)
METRICS = '{"step": 1, "loss": 2.5, "seconds": 0.1}\n{"step": 2, "loss": 2.25, "seconds": 0.2}\n'
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3"}},
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["# RoPE"]},
        {
            "cell_type": "code",
            "metadata": {},
            "execution_count": 1,
            "outputs": [],
            "source": ["import torch\n", "x = 1"],
        },
    ],
}
