"""Damaged files are refused, or the model is what the bytes say; loading never crashes."""

import hashlib
import json
import struct
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hf_models import make_hf_model

import qkv
from qkv.checkpoints import load, load_tokenizer
from qkv.models import GPT, GPTConfig


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    make_hf_model("gpt2", n_layer=1, n_embd=4, n_head=2, vocab_size=7, n_positions=5, n_inner=4).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours") / "model"
    GPT(GPTConfig(vocab_size=7, max_length=5, dim=4, layers=1, heads=2, mlp_dim=4)).save(folder)
    return folder


def header_length(content: bytes) -> int:
    return 8 + struct.unpack("<Q", content[:8])[0]


def state(folder):
    return load(folder).state_dict()


def outcome(folder):
    """The error message of loading, or the loaded state."""
    try:
        return "", state(folder)
    except ValueError as error:
        return str(error), None


@contextmanager
def restored(path):
    """The content of a file, which is restored afterwards."""
    good = path.read_bytes()
    try:
        yield good
    finally:
        path.write_bytes(good)


def same(one, other) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


# every byte takes minutes; a sample of each region, seconds
EVERY = pytest.param(1, marks=pytest.mark.long, id="every byte")


@pytest.mark.parametrize("step", [23, EVERY])
@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
def test_load_refuses_a_flipped_byte_of_a_hugging_face_header_or_nothing_changes(flip, step, theirs):
    path, whole = theirs / "model.safetensors", state(theirs)
    refused = 0
    with restored(path) as good:
        for at in [*range(8), *range(8 + flip % step, header_length(good), step)]:
            path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            said, found = outcome(theirs)
            assert str(theirs) in said if found is None else same(found, whole), f"byte {at} of the header"
            refused += found is None
    assert refused > header_length(good) / step / 2


@pytest.mark.parametrize("step", [17, EVERY])
def test_load_refuses_a_changed_digit_in_a_hugging_face_header(step, theirs):
    path, whole = theirs / "model.safetensors", state(theirs)
    with restored(path) as good:
        digits = [at for at in range(8, header_length(good)) if chr(good[at]).isdigit()]
        for at, digit in [(at, digit) for at in digits for digit in b"0123456789" if digit != good[at]][::step]:
            path.write_bytes(good[:at] + bytes([digit]) + good[at + 1 :])
            with pytest.raises(ValueError, match=r"safetensors|lacks|should be"):
                state(theirs)
    assert same(state(theirs), whole)


def test_load_refuses_a_truncated_hugging_face_file(theirs):
    path = theirs / "model.safetensors"
    with restored(path) as good:
        for length in [*range(12), *range(12, len(good), 61), header_length(good), len(good) - 1]:
            path.write_bytes(good[:length])
            with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
                load(theirs)
        path.write_bytes(good + b"more")
        with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
            load(theirs)


def test_load_takes_the_numbers_of_a_hugging_face_file_without_checksum_as_they_are(theirs):
    path, whole = theirs / "model.safetensors", state(theirs)
    with restored(path) as good:
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 0x01]))
        found = state(theirs)
    changed = [name for name in whole if not torch.equal(found[name], whole[name])]
    assert set(found) == set(whole) and changed == ["tokens.weight", "head.weight"]  # one table, tied


def test_load_copies_tensors_so_that_overwriting_the_file_changes_nothing(theirs):
    path = theirs / "model.safetensors"
    model = load(theirs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with restored(path) as good:
        with path.open("r+b") as file:
            file.seek(header_length(good))
            file.write(bytes(len(good) - header_length(good)))
        assert same(model.state_dict(), before)


@pytest.mark.parametrize("size", [2**62, 2**40, 100_000_001])
def test_load_refuses_an_oversized_header_without_reading_it(size, theirs):
    path = theirs / "model.safetensors"
    with restored(path) as good:
        path.write_bytes(struct.pack("<Q", size) + good[8:])
        with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
            load(theirs)


def test_load_refuses_any_flipped_byte_of_a_qkv_folder(ours):
    path = ours / "model.safetensors"
    with restored(path) as good:
        for at in range(0, len(good), 29):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
            with pytest.raises(ValueError, match=r"model\.safetensors"):
                load(ours)
    described = json.loads((ours / "config.json").read_text())
    assert described["sha256"] == hashlib.sha256(good).hexdigest()


def test_load_reads_a_qkv_folder_without_a_checksum(ours, tmp_path):
    model = load(ours)
    model.save(tmp_path / "model")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    del described["sha256"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(described))
    assert same(state(tmp_path / "model"), model.state_dict())


def test_load_refuses_a_flipped_byte_of_config_json_or_it_describes_a_model(theirs):
    path = theirs / "config.json"
    with restored(path) as good:
        for at in range(0, len(good), 5):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x04]) + good[at + 1 :])
            said, found = outcome(theirs)
            assert found is not None or str(theirs) in said, f"byte {at} of config.json: {said}"


def llama2c(layers=1, width=8, hidden=6, heads=2, kv_heads=1, vocab=300, length=4) -> bytes:
    """A llama2.c file with increasing numbers."""
    keys, tied = width // heads * kv_heads, vocab > 0
    layer = 2 * width + 2 * width * width + 2 * keys * width + 3 * hidden * width
    count = abs(vocab) * width * (1 if tied else 2) + layers * layer + width + length * (width // heads)
    header = struct.pack("<7i", width, hidden, layers, heads, kv_heads, vocab, length)
    return header + (torch.arange(count) * 1e-3).numpy().tobytes()


@pytest.mark.parametrize("vocab", [300, -300])
def test_load_needs_exactly_the_length_that_a_llama2c_header_implies(vocab, tmp_path):
    path, content = tmp_path / "model.bin", llama2c(vocab=vocab)
    path.write_bytes(content)
    model: Any = load(path)
    assert (model.head.weight is model.tokens.weight) == (vocab > 0)
    assert model.tokens.weight[0, 1].item() == pytest.approx(1e-3)
    if vocab < 0:
        assert model.head.weight[-1, -1].item() == pytest.approx((len(content) - 28) / 4e3 - 1e-3)
    for wrong in (content[:-1], content + b"\0", content[:27], b"", content[:28]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"bytes long"):
            load(path)


def test_load_refuses_a_flipped_byte_of_a_llama2c_header(tmp_path):
    path, content = tmp_path / "model.bin", llama2c()
    for at in range(28):
        for flip in (0x01, 0x80):
            path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
            with pytest.raises(ValueError, match=r"bytes long|not a llama2\.c file|is not a model"):
                load(path)


@pytest.mark.parametrize(
    ("begin", "said"),
    [(b"PK\x03\x04", "is a pickle"), (b"\x80\x02", "is a pickle"), (struct.pack("<Ii", 0x616B3432, 2), "of version 2")],
)
def test_load_names_the_format_of_other_bin_files(begin, said, tmp_path):
    (tmp_path / "model.bin").write_bytes(begin + bytes(64))
    with pytest.raises(ValueError, match=said):
        qkv.load(tmp_path / "model.bin")


def test_load_tokenizer_refuses_a_truncated_llama2c_tokenizer(tmp_path):
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256)), b"a", b"b", b"ab"]
    records = [struct.pack("<fi", float(i), len(piece)) + piece for i, piece in enumerate(pieces)]
    path = tmp_path / "tok.bin"
    path.write_bytes(struct.pack("<i", 6) + b"".join(records))
    assert load_tokenizer(path).encode("abz").ids == [1, 35, 261, 125]
    for cut in (3, 12, len(path.read_bytes()) // 2):
        (tmp_path / "cut.bin").write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ValueError, match=r"llama2\.c tokenizer"):
            load_tokenizer(tmp_path / "cut.bin")
