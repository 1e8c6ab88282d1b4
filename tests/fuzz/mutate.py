"""Mutations: of bytes, of numbers in binary headers, and of the values of JSON and TOML texts."""

import json
import random
import re
import struct
from typing import Any

HOSTILE_NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    10**6,
    10**9,
    10**12,
    10**30,
    -(10**30),
    1e308,
)
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "nan", "\ud800", "\u0000", "a" * 5000, [], [[]], {}, [1, [2, [3]]], {"a": {"b": {}}}, 0.5,
    float("nan"), float("inf"), -0.0, "../../etc/passwd", "/dev/zero", "__class__", "<script>", "%s%n", "\u202e",
)  # fmt: skip
HOSTILE_REGEXES = (
    "(a+)+$",
    "(",
    "(?:a|a)*$",
    "[\\s\\S]{0,100000}",
    "(?<=a{1,1000})b",
    "\\p{L}+|" * 500,
    "(((((((a{99}){99}){99}){99})",
)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat, insert or overwrite a few places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.choice((1, 2, 4, 100))]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 200)))
        elif kind == 5:
            data[at:at] = data[at : at + rng.choice((1, 8, 1000))] * rng.choice((1, 2, 50))
        else:
            near = rng.randrange(min(len(data), 64)) if data and kind == 6 else at  # headers come first
            number = rng.choice((0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**24, 10**9))
            packed = struct.pack(rng.choice("<>") + "I", number)[: rng.choice((1, 2, 4))]
            data[near : near + len(packed)] = packed
    return bytes(data)


def mutate_json(text: str, rng: random.Random) -> bytes:
    """Replace, remove, nest or duplicate values; now and then the bytes are damaged as well."""
    tree = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        places = _places(tree)
        if not places:
            break
        parent, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(rng.choice(HOSTILE_VALUES))] = parent[key]
        elif kind == 2:
            parent[key] = [parent[key]] * rng.choice((1, 2, 1000))
        elif kind == 3 and isinstance(parent[key], str):
            parent[key] = rng.choice(HOSTILE_REGEXES)
        elif isinstance(parent[key], int | float) and kind < 9:
            parent[key] = rng.choice(HOSTILE_NUMBERS)
        else:
            parent[key] = rng.choice((*HOSTILE_NUMBERS, *HOSTILE_VALUES))
    said = json.dumps(tree).encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        depth = rng.choice((500, 5000, 200_000))
        said = b'{"a":' * depth + b"1" + b"}" * depth
    return mutate_bytes(said, rng) if rng.random() < 0.15 else said


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items)[:200]:
        found += [(tree, key), *_places(value)]
    return found


def mutate_text(text: str, rng: random.Random) -> bytes:
    """Replace numbers, words and lines of a text such as TOML, CSV or TSV."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.randrange(6)
        words = list(re.finditer(r"-?\d[\d.e+-]*" if kind < 3 else r"\w+|\"[^\"]*\"|[\[\]{}=]", text))
        if kind == 5 or not words:
            lines = text.split("\n")
            at = rng.randrange(len(lines))
            lines[at : at + 1] = rng.choice(([], lines[at : at + 1] * 2, ["[" * 3000], ["\u0000"], ["= = ="]))
            text = "\n".join(lines)
            continue
        word = rng.choice(words)
        value = rng.choice(HOSTILE_NUMBERS if kind < 3 else HOSTILE_VALUES)
        text = f"{text[: word.start()]}{value if kind < 4 else json.dumps(value)}{text[word.end() :]}"
    said = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(said, rng) if rng.random() < 0.2 else said


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change the JSON header and keep the rest, or damage the bytes."""
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.4:
        return mutate_bytes(content, rng)
    header = mutate_json(content[8 : 8 + length].decode(), rng)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]
