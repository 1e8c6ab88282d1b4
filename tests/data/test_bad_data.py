"""Bad data raises a one-line error that names the file and the place; nothing hostile is unpacked or executed."""

import io
import os
import pickle
import struct
import wave
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from qkv.data.files import read_lines, read_npz, read_table, read_text
from qkv.data.images.cifar_mnist import read_idx
from qkv.data.images.image_files import read_image
from qkv.data.images.load import load_images
from qkv.data.speech.recordings import load_spoken_digits
from qkv.data.speech.wav import Audio, read_audio, write_wav
from qkv.data.text.language_modeling import read_texts
from qkv.data.text.question_answering import read_questions


class Trap:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def assert_error(match, function, *arguments, **options):
    with pytest.raises(ValueError, match=match) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_read_text_names_the_file_and_the_line_of_a_mistake(tmp_path):
    assert_error("there is no file", read_text, tmp_path / "none.txt")
    assert_error("is a folder", read_text, tmp_path)
    assert_error("there is no text file", read_texts, tmp_path)
    (tmp_path / "a.txt").write_bytes(b"")
    assert_error(r"a.txt is empty", read_text, tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"one\ntwo \xe9\n")
    assert_error(r"a.txt, line 2: byte 8 \(0xe9\) is not UTF-8", read_text, tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\r\n")
    assert read_lines(tmp_path / "a.txt") == ["one", "two\u2028still two"]


def test_read_questions_names_the_line_with_a_wrong_number_of_columns(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("Where?\tHere\nWhere was X born? Paris\n", encoding="utf-8")
    assert_error(r"q.tsv, line 2: expected 2 columns separated by tabs, got 1", read_questions, path)
    path.write_text("Where?\tHere\tThere\n", encoding="utf-8")
    assert_error(r"q.tsv, line 1: expected 2 columns.*got 3", read_questions, path)
    path.write_text("Where?\t \n", encoding="utf-8")
    assert_error(r"q.tsv, line 1: column 2 of 2 is empty", read_table, path, 2)
    path.write_text("a\tb\n\nc\td\n", encoding="utf-8")
    assert_error(r"q.tsv, line 2: expected 2 columns", read_questions, path)


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(tmp_path / "set" / name / f"{i}.png")
    return tmp_path / "set"


def test_load_images_reports_unreadable_image_files_or_skips_them(folder, tmp_path):
    whole = (folder / "a" / "1.png").read_bytes()
    (folder / "a" / "1.png").write_bytes(whole[:40])
    (folder / "b" / "2.png").write_bytes(b"")
    (folder / "b" / "3.png").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert_error(
        r"3 of 8 images cannot be used: .*a/1.png: not a readable image.*b/2.png: the file is empty",
        load_images,
        folder,
    )
    parts = load_images(folder, bad_items="skip", validation=0.2)
    assert any("skipped 3 of 8 images" in note for note in parts.notes)
    assert len(parts.train) + len(parts.validation) + len(parts.test) == 5
    assert not (tmp_path / "sprung").exists()


def test_load_images_refuses_mixed_sizes_unless_a_size_is_given(folder):
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(folder / "b" / "0.png")
    assert_error(r"b/0.png: 7 × 5 pixels where most have 4 × 4; set a size", load_images, folder)
    assert load_images(folder, size=4).train.shape == (3, 4, 4)


def test_load_images_explains_a_folder_that_is_no_data_set(folder, tmp_path):
    assert_error("there is nothing at .*digitz; expected digits, cifar10", load_images, "digitz")
    (tmp_path / "empty").mkdir()
    assert_error(r"expected a folder per class", load_images, tmp_path / "empty")
    (folder / "c").mkdir()
    assert_error(r"set/c has no images", load_images, folder)
    (tmp_path / "x.pt").write_bytes(b"")
    assert_error(r"x.pt is a file but not an .npz", load_images, tmp_path / "x.pt")
    parts = tmp_path / "parts"
    (folder / "c").rmdir()
    parts.mkdir()
    folder.rename(parts / "train")
    (parts / "test" / "z").mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(parts / "test" / "z" / "0.png")
    assert_error(r"test/z is an unknown class; the training data has a, b", load_images, parts)


def test_read_image_refuses_too_many_pixels(tmp_path):
    held = io.BytesIO()
    Image.new("1", (8000, 8000)).save(held, "PNG")
    assert_error(r"8000 × 8000 pixels are more than", read_image, held.getvalue())


@pytest.mark.parametrize("name", ["a.eps", "a.png"])
def test_read_image_starts_no_program_for_postscript(name, tmp_path, monkeypatch):
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\necho called > {tmp_path}/called\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=":")
    path = tmp_path / name
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    assert_error("not a readable image; expected one of PNG, JPEG", read_image, path)
    assert not (tmp_path / "called").exists()


def test_read_image_and_read_text_refuse_pipes_and_devices(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_text(path)
    with pytest.raises((OSError, ValueError), match=r"empty|not a regular file"):
        read_image(pipe)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


X, Y = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 3


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"images": X, "labels": np.array([0, 1, 2, 0, 1, -1])}, r"array labels: item 5 has the unknown label -1"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, r"y_test: item 2 has the unknown label 3"),
        ({"images": X, "labels": Y[:5]}, r"images has 6 images, labels 5 labels"),
        ({"images": X}, r"there are no labels for images"),
        ({"weights": X}, r"expected arrays such as x_train.*got weights"),
        ({"images": X[0], "labels": Y}, r"array images: images must be|images has 4 images"),
        ({"images": X - 3.5, "labels": Y}, r"pixels must be in \[0, 255\] or \[0, 1\], got -3.5"),
        ({"images": X * np.nan, "labels": Y}, r"pixels must be in \[0, 255\]"),
        ({"images": X, "labels": Y + 0.5}, r"labels must be whole numbers or words"),
        ({"images": X, "labels": np.full(6, 10**8)}, r"labels must be 0 … classes − 1"),
        ({"images": X[:0], "labels": Y[:0]}, r"array images: images must be"),
        ({"images": np.array(["a"] * 6), "labels": Y}, r"array images: images must be"),
    ],
)
def test_load_images_names_the_array_of_an_npz_that_does_not_fit(tmp_path, arrays, match):
    assert_error(match, load_images, saved(tmp_path / "d.npz", **arrays))


def test_read_npz_never_loads_a_pickle(tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    np.savez(tmp_path / "d.npz", images=X, labels=trap)
    assert_error(r"array labels holds Python objects, that is, a pickle: refused", load_images, tmp_path / "d.npz")
    (tmp_path / "e.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert_error(r"e.npz is damaged or not an .npz file", load_images, tmp_path / "e.npz")
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("images.npy", pickle.dumps(Trap(tmp_path / "sprung")))
    assert_error(r"array images is not an array", load_images, tmp_path / "f.npz")
    assert not (tmp_path / "sprung").exists()


def header(shape):
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_read_npz_refuses_zip_bombs_before_unpacking(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(header((200 << 20,)))
        for _ in range(200):
            file.write(bytes(1 << 20))
    assert_error(r"would unpack .* times as many: refused as a zip bomb", read_npz, tmp_path / "bomb.npz")
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("x.npy", header((10**15,)) + b"abc")
    assert_error(r"array x is cut short", read_npz, tmp_path / "lies.npz")
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    assert_error("holds no arrays", read_npz, tmp_path / "none.npz")


def test_read_npz_names_a_damaged_file(tmp_path):
    whole = saved(tmp_path / "d.npz", images=RANDOM.integers(0, 255, (50, 8, 8), dtype=np.uint8), labels=Y).read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: len(whole) // 2])
    assert_error("d.npz is damaged", read_npz, tmp_path / "d.npz")
    flipped = bytearray(whole)
    flipped[500] ^= 255
    (tmp_path / "d.npz").write_bytes(bytes(flipped))
    assert_error("d.npz", read_npz, tmp_path / "d.npz")


RANDOM = np.random.default_rng(1)


def test_damaged_idx_and_parquet_files_are_named(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"hello")
    assert_error("is not an idx file of bytes with 3 axes", read_idx, path, 3)
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 5, 5) + b"x" * 30)
    assert_error("cut short: its header says 100 bytes, got 30", read_idx, path, 3)
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 5))
    assert_error("claims .* bytes", read_idx, path, 3)
    path.unlink()
    file = tmp_path / "train.parquet"
    file.write_bytes(b"PAR1 nonsense")
    assert_error(r"train.parquet is damaged or not a parquet file", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"x"], "text": ["a"]}), file)
    assert_error(r"expected a column called label", load_images, tmp_path)
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), file)
    assert_error(r"expected a column with the bytes of images, got text, label", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"not an image"], "label": [1]}), file)
    assert_error(r"train.parquet, row 1: not a readable image", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": [1, None]}), file)
    assert_error(r"train.parquet, row 2 has the unknown label None", load_images, tmp_path)
    file.rename(tmp_path / "test.parquet")
    assert_error(r"has no training data", load_images, tmp_path)


def test_read_audio_names_damaged_files(tmp_path):
    path = tmp_path / "a.wav"
    assert_error("there is no file", read_audio, path)
    path.write_bytes(b"")
    assert_error("a.wav is empty", read_audio, path)
    path.write_bytes(b"RIFFnot a wav at all")
    assert_error("a.wav is not a (PCM WAV file|readable audio file)", read_audio, path)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
    assert_error("a.wav has no samples", read_audio, path)
    write_wav(path, Audio(torch.zeros(100), 8000))
    path.write_bytes(path.read_bytes()[:-60])
    assert_error("a.wav is cut short: its header says 100 samples, got 70", read_audio, path)


def test_load_spoken_digits_reports_bad_recordings_or_skips_them(tmp_path):
    assert_error("expected a folder of WAV files", load_spoken_digits, tmp_path)
    for take in (0, 5, 10, 11):
        write_wav(tmp_path / f"3_ann_{take}.wav", Audio(torch.rand(900) - 0.5, 8000))
    write_wav(tmp_path / "three.wav", Audio(torch.zeros(9), 8000))
    (tmp_path / "4_ann_12.wav").write_bytes(b"")
    assert_error(
        r"2 of 6 recordings cannot be used: .*4_ann_12.wav: is empty.*three.wav: its name", load_spoken_digits, tmp_path
    )
    parts = load_spoken_digits(tmp_path, bad_items="skip")
    assert "skipped 2 of 6 recordings" in parts.notes[0] and len(parts.train) == 2
    assert_error(
        "there is no speaker 'bob'; there are ann",
        load_spoken_digits,
        tmp_path,
        held_out_speakers=("bob",),
        bad_items="skip",
    )
    write_wav(tmp_path / "5_ann_12.wav", Audio(torch.rand(900) - 0.5, 16000))
    assert_error("expected one sample rate, got 8000 Hz, 16000 Hz", load_spoken_digits, tmp_path, bad_items="skip")
