"""Files whose numbers lie, and command lines that ask for the impossible: refused in a sentence, in little memory.

What fuzzing has found is kept here as well.
"""

import io
import json
import re
import struct
from collections.abc import Callable
from typing import Any

from PIL import Image

Change = Callable[[bytes], bytes]


def set_json(path: str, value: Any) -> Change:
    """Replace the value at a dotted path of a JSON file."""

    def change(content: bytes) -> bytes:
        tree = table = json.loads(content)
        *parents, last = path.split(".")
        for name in parents:
            table = table[name]
        table[last] = value
        return json.dumps(tree).encode()

    return change


def as_other_family(model_type: str, **values: Any) -> Change:
    """A config that only transformers reads."""
    return lambda content: json.dumps({"model_type": model_type, **values}).encode()


def many_tensors(content: bytes) -> bytes:
    header = {f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(1_000_000)}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(4 * len(header))


def wav(frames: int = 100, rate: int = 8000, channels: int = 1, bits: int = 16) -> Change:
    """A WAV file of 100 samples whose header says something else."""
    size = frames * channels * bits // 8 & 0xFFFFFFFF
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, bits)
    head = b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return lambda content: head + b"data" + struct.pack("<I", size) + bytes(200)


def image_size(kind: str, offset: int, form: str, width: int, height: int) -> Change:
    """An image whose header claims another size; the checksum of a PNG header is right."""

    def change(content: bytes) -> bytes:
        data = bytearray(content)
        struct.pack_into(form, data, offset, width, height)
        if kind == "PNG":
            import zlib

            struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
        return bytes(data)

    return change


def large_but_flat(content: bytes) -> bytes:
    """A small PNG of 400 million equal pixels."""
    out = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(out, "PNG")
    return out.getvalue()


def llama2c_header(**sizes: int) -> Change:
    names = ("dim", "mlp_dim", "layers", "heads", "kv_heads", "vocab_size", "max_length")
    good = dict(zip(names, (8, 16, 1, 2, 2, 300, 8), strict=True))
    return lambda content: struct.pack("<7i", *{**good, **sizes}.values()) + content[28:]


def regex(pattern: str) -> Change:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return set_json("pre_tokenizer", split)


def replace(before: str, after: str) -> Change:
    def change(content: bytes) -> bytes:
        new = re.sub(before, after, content.decode(), count=1)
        assert new != content.decode()
        return new.encode()

    return change


# name: the kind of file, and what is changed in it
HOSTILE_FILES: dict[str, tuple[str, Change]] = {
    "10⁹ layers": ("config", set_json("config.layers", 10**9)),
    "a width of 10³⁰": ("config", set_json("config.dim", 10**30)),
    "an odd width of 10¹⁸": ("config", set_json("config.dim", 10**18 + 1)),
    "a width of 10⁶": ("config", set_json("config.dim", 10**6)),
    "a vocabulary of 10¹²": ("config", set_json("config.vocab_size", 10**12)),
    "10¹² positions": ("config", set_json("config.max_length", 10**12)),
    "10⁹ heads": ("config", set_json("config.heads", 10**9)),
    "an MLP of 10¹⁵": ("config", set_json("config.mlp_dim", 10**15)),
    "10⁹ layers of an encoder": ("config of an encoder", set_json("config.layers", 10**9)),
    "10¹² sinusoids": ("config of an encoder", set_json("config.max_length", 10**12)),
    "10⁹ layers of a ViT": ("config of a ViT", set_json("config.layers", 10**9)),
    "an image of 10⁹ pixels a side": ("config of a ViT", set_json("config.image_size", 10**9)),
    "10⁹ classes": ("config of a ViT", set_json("config.num_classes", 10**9)),
    "10⁹ layers of Hugging Face": ("Hugging Face config", set_json("n_layer", 10**9)),
    "32,768 layers of Hugging Face": ("Hugging Face config", set_json("n_layer", 2**15)),
    "a width of 10³⁰ of Hugging Face": ("Hugging Face config", set_json("n_embd", 10**30)),
    "10⁹ layers for transformers": (
        "Hugging Face config", as_other_family("gpt_neox", num_hidden_layers=10**9, architectures=["GPTNeoXForCausalLM"])),
    "10¹² words for transformers": (
        "Hugging Face config", as_other_family("gpt_neox", vocab_size=10**12, architectures=["GPTNeoXForCausalLM"])),
    "10⁷ wide for transformers": (
        "Hugging Face config", as_other_family("gpt_neox", hidden_size=10**7, num_attention_heads=10, num_hidden_layers=2,
                                               architectures=["GPTNeoXForCausalLM"])),
    "10⁶ tensors": ("safetensors", many_tensors),
    "a header of 2⁶³ bytes": ("safetensors", lambda content: (2**63).to_bytes(8, "little") + content[8:]),
    "a tensor of 10¹⁸ numbers": (
        "safetensors", lambda content: b"\x60" + bytes(7)
        + b'{"a":{"dtype":"F32","shape":[1000000000000000000],"data_offsets":[0,4]}}'.ljust(96) + bytes(4)),
    "a regex that backtracks": ("tokenizer", regex("(t|h|e| |c|a)*(t|h|e| |c|a)*(t|h|e| |c|a)*(t|h|e| |c|a)*x")),
    "a regex of nested repetitions": ("tokenizer", regex("((((a{1,999}){1,999}){1,999}){1,999})")),
    "a regex that does not end": ("tokenizer", regex("(")),
    "10⁹ tokens of padding": ("tokenizer", set_json("padding", {
        "strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<pad>"})),
    "2³¹ layers of llama2.c": ("llama2.c", llama2c_header(layers=2**31 - 1)),
    "2³⁰ wide llama2.c": ("llama2.c", llama2c_header(dim=2**30)),
    "2³¹ positions of llama2.c": ("llama2.c", llama2c_header(max_length=2**31 - 1)),
    "4 GB of samples": ("wav", wav(frames=2**31 - 1)),
    "2³² samples a second": ("wav", wav(frames=10**9, rate=2**32 - 1)),
    "one sample a second": ("wav", wav(rate=1)),
    "2³² samples a second of a short recording": ("wav", wav(rate=2**32 - 1)),
    "65,535 channels": ("wav", wav(frames=2**16, channels=2**16 - 1)),
    "no channels": ("wav", wav(channels=0)),
    "0 samples a second": ("wav", wav(rate=0)),
    "one sample a second to look at": ("wav to look at", wav(rate=1)),
    "2³² samples a second to look at": ("wav to look at", wav(rate=2**32 - 1)),
    "a PNG of 60,000 pixels a side": ("image PNG", image_size("PNG", 16, ">II", 60_000, 60_000)),
    "a PNG of 7,000 pixels a side without pixels": ("image PNG", image_size("PNG", 16, ">II", 7_000, 7_000)),
    "a flat PNG of 20,000 pixels a side": ("image PNG", large_but_flat),
    "a BMP of 2³¹ pixels a side": ("image BMP", image_size("BMP", 18, "<ii", 2**31 - 1, 2**31 - 1)),
    "a GIF of 65,535 pixels a side": ("image GIF", image_size("GIF", 6, "<HH", 65_535, 65_535)),
    "a PPM of 10⁹ pixels a side": ("image PPM", lambda content: b"P5 1000000000 1000000000 255\n" + bytes(100)),
    "a byhand score of −10³⁰": ("byhand CSV", lambda content: content.replace(b"1,2", b"-1000000000000000000000000000000,2")),
    "a byhand score of 10³⁰": ("byhand CSV", lambda content: content.replace(b"1,2", b"1000000000000000000000000000000,2")),
    "a byhand scale of 10⁹": ("byhand TOML", replace("scale = 1", "scale = 1000000000")),
    "a CSV line that begins with a comma": ("byhand CSV", lambda content: content.replace(b"1,2", b",2")),
    "architectures that are a number": (
        "Hugging Face config", as_other_family("gpt2", architectures=2147483647, vocab_size=300, n_embd=8, n_unknown=1)),
    "a run whose recipe has no model": ("run folder recipe.toml", lambda content: b'recipe = "vit-digits"\nseed = 0\n'),
    "a run whose recipe has an unknown model": ("run folder recipe.toml", replace('kind = "vit"', 'kind = "x"')),
    "a run whose results are a list": ("run folder run.json", set_json("result", [1])),
    "a run whose test is a list": ("run folder run.json", set_json("result.test", [{"accuracy": 1}])),
    "a run of nested seconds": ("run folder run.json", set_json("seconds", [[1]])),
    "a recipe of 10⁹ layers": ("whole recipe", replace("layers = 1", "layers = 1000000000")),
}  # fmt: skip
HOSTILE_CALLS = (
    ("tour", "--steps", "0", "--json", "--folder", "/dev/null"),
    ("train", "vit-digits", "--steps", "1", "--folder", "run", "--set", "model.layers=1000000000"),
    ("train", "vit-digits", "--steps", "1", "--folder", "run", "--set", "model.dim=1000000000000"),
    ("train", "vit-digits", "--steps", "1", "--folder", "run", "--set", "model.dim=10000000"),
    (
        "train",
        "vit-digits",
        "--steps",
        "1",
        "--folder",
        "run",
        "--set",
        "model.mlp_dim=1000000000000000000000000000000",
    ),
    ("train", "vit-digits", "--steps", "1", "--folder", "run", "--set", "data.batch_size=1000000000000000000"),
    ("byhand", "--generate", "1000000000", "--folder", "class"),
    ("byhand", "--generate", "2", "--tokens", "1000000000", "--folder", "class"),
    ("byhand", "--x", "1 " * 100_000, "--wq", "1"),
)
