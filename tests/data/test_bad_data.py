"""Bad data is named in one sentence with its file and place; nothing hostile is unpacked or executed."""

import io
import pickle
import struct
import wave
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from qkv.data.arrays import read_npz
from qkv.data.idx_images import read_idx
from qkv.data.load_images import load_images
from qkv.data.picture_files import read_picture
from qkv.data.questions import read_questions
from qkv.data.reading import read_lines, read_table, read_text
from qkv.data.spoken import read_spoken
from qkv.data.text import read_texts
from qkv.data.wav import Sound, read_sound, write_wav


class Trap:
    """A pickle that leaves a mark where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def refused(match, function, *arguments, **options):
    with pytest.raises(ValueError, match=match) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_text_files(tmp_path):
    refused("there is no file", read_text, tmp_path / "none.txt")
    refused("is a folder", read_text, tmp_path)
    refused("there is no text file", read_texts, tmp_path)
    (tmp_path / "a.txt").write_bytes(b"")
    refused(r"a.txt is empty", read_text, tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"one\ntwo \xe9\n")
    refused(r"a.txt, line 2: byte 8 \(0xe9\) is not UTF-8", read_text, tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\r\n")
    assert read_lines(tmp_path / "a.txt") == ["one", "two\u2028still two"]


def test_tables_and_questions(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text("Where?\tHere\nWhere was X born? Paris\n", encoding="utf-8")
    refused(r"q.tsv, line 2: expected 2 columns separated by tabs; got 1", read_questions, path)
    path.write_text("Where?\tHere\tThere\n", encoding="utf-8")
    refused(r"q.tsv, line 1: expected 2 columns.*got 3", read_questions, path)
    path.write_text("Where?\t \n", encoding="utf-8")
    refused(r"q.tsv, line 1: column 2 of 2 is empty", read_table, path, 2)
    path.write_text("a\tb\n\nc\td\n", encoding="utf-8")
    refused(r"q.tsv, line 2: expected 2 columns", read_questions, path)


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((4, 4, 3), 10 * i, np.uint8)).save(tmp_path / "set" / name / f"{i}.png")
    return tmp_path / "set"


def test_picture_files(folder, tmp_path):
    whole = (folder / "a" / "1.png").read_bytes()
    (folder / "a" / "1.png").write_bytes(whole[:40])
    (folder / "b" / "2.png").write_bytes(b"")
    (folder / "b" / "3.png").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(
        r"3 of 8 pictures cannot be used: .*a/1.png: not a picture.*b/2.png: the file is empty", load_images, folder
    )
    parts = load_images(folder, bad_items="skip", validation=0.2)
    assert any("3 of 8 pictures left out" in note for note in parts.notes)
    assert len(parts.train) + len(parts.validation) + len(parts.test) == 5
    assert not (tmp_path / "sprung").exists()


def test_pictures_of_mixed_sizes(folder):
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(folder / "b" / "0.png")
    refused(r"b/0.png: 7 × 5 pixels where most have 4 × 4; give a size", load_images, folder)
    assert load_images(folder, size=4).train.shape == (3, 4, 4)


def test_folders_that_are_no_sets(folder, tmp_path):
    refused("there is nothing at .*digitz; pictures come from digits, cifar10", load_images, "digitz")
    (tmp_path / "empty").mkdir()
    refused(r"expected a folder for each class", load_images, tmp_path / "empty")
    (folder / "c").mkdir()
    refused(r"set/c holds no pictures", load_images, folder)
    (tmp_path / "x.pt").write_bytes(b"")
    refused(r"x.pt is a file, but no .npz", load_images, tmp_path / "x.pt")
    parts = tmp_path / "parts"
    (folder / "c").rmdir()
    parts.mkdir()
    folder.rename(parts / "train")
    (parts / "test" / "z").mkdir(parents=True)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(parts / "test" / "z" / "0.png")
    refused(r"test/z is an unknown label; the training data has a, b", load_images, parts)


def test_a_picture_that_claims_too_many_pixels(tmp_path):
    held = io.BytesIO()
    Image.new("1", (8000, 8000)).save(held, "PNG")
    refused(r"8000 × 8000 pixels are more than", read_picture, held.getvalue())


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


X, Y = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 3


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"images": X, "labels": np.array([0, 1, 2, 0, 1, -1])}, r"array labels: item 5 has the unknown label -1"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, r"y_test: item 2 has the unknown label 3"),
        ({"images": X, "labels": Y[:5]}, r"images has 6 pictures, labels 5 labels"),
        ({"images": X}, r"images has no labels beside it"),
        ({"weights": X}, r"expected arrays such as x_train.*got weights"),
        ({"images": X[0], "labels": Y}, r"array images: pictures are|images has 4 pictures"),
        ({"images": X - 3.5, "labels": Y}, r"pixels are from 0 to 255, or from 0 to 1; got from -3.5"),
        ({"images": X * np.nan, "labels": Y}, r"pixels are from 0 to 255"),
        ({"images": X, "labels": Y + 0.5}, r"labels are whole numbers or words"),
        ({"images": X, "labels": np.full(6, 10**8)}, r"labels are 0 … classes − 1"),
        ({"images": X[:0], "labels": Y[:0]}, r"array images: pictures are"),
        ({"images": np.array(["a"] * 6), "labels": Y}, r"array images: pictures are"),
    ],
)
def test_arrays_that_are_no_set(tmp_path, arrays, match):
    refused(match, load_images, saved(tmp_path / "d.npz", **arrays))


def test_a_pickle_in_an_npz_file_is_never_loaded(tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    np.savez(tmp_path / "d.npz", images=X, labels=trap)
    refused(r"array labels holds Python objects, which means a pickle: refused", load_images, tmp_path / "d.npz")
    (tmp_path / "e.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(r"e.npz is damaged or no .npz file", load_images, tmp_path / "e.npz")
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("images.npy", pickle.dumps(Trap(tmp_path / "sprung")))
    refused(r"array images is no array", load_images, tmp_path / "f.npz")
    assert not (tmp_path / "sprung").exists()


def header(shape):
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_bombs_are_refused_by_their_sizes_before_anything_is_unpacked(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(header((200 << 20,)))
        for _ in range(200):
            file.write(bytes(1 << 20))
    refused(r"would unpack .* times as many: refused as a zip bomb", read_npz, tmp_path / "bomb.npz")
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("x.npy", header((10**15,)) + b"abc")
    refused(r"array x is cut short", read_npz, tmp_path / "lies.npz")
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    refused("holds no arrays", read_npz, tmp_path / "none.npz")


def test_a_damaged_npz_is_named(tmp_path):
    whole = saved(tmp_path / "d.npz", images=RANDOM.integers(0, 255, (50, 8, 8), dtype=np.uint8), labels=Y).read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[: len(whole) // 2])
    refused("d.npz is damaged", read_npz, tmp_path / "d.npz")
    flipped = bytearray(whole)
    flipped[500] ^= 255
    (tmp_path / "d.npz").write_bytes(bytes(flipped))
    refused("d.npz", read_npz, tmp_path / "d.npz")


RANDOM = np.random.default_rng(1)


def test_idx_and_parquet_files(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"hello")
    refused("is no idx file of bytes with 3 axes", read_idx, path, 3)
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 5, 5) + b"x" * 30)
    refused("cut short: 100 bytes were announced; got 30", read_idx, path, 3)
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**31, 5))
    refused("claims .* bytes", read_idx, path, 3)
    path.unlink()
    file = tmp_path / "train.parquet"
    file.write_bytes(b"PAR1 nonsense")
    refused(r"train.parquet is damaged or no parquet file", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"x"], "text": ["a"]}), file)
    refused(r"expected a column called label", load_images, tmp_path)
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), file)
    refused(r"expected a column with the bytes of pictures; got text, label", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"not a picture"], "label": [1]}), file)
    refused(r"train.parquet, row 1: not a picture", load_images, tmp_path)
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": [1, None]}), file)
    refused(r"train.parquet, row 2 has the unknown label None", load_images, tmp_path)
    file.rename(tmp_path / "test.parquet")
    refused(r"holds no training data", load_images, tmp_path)


def test_sound_files(tmp_path):
    path = tmp_path / "a.wav"
    refused("there is no file", read_sound, path)
    path.write_bytes(b"")
    refused("a.wav is empty", read_sound, path)
    path.write_bytes(b"RIFFnot a wav at all")
    refused("a.wav is no (wav file of plain PCM|sound file)", read_sound, path)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
    refused("a.wav holds no sound: 0 samples", read_sound, path)
    write_wav(path, Sound(torch.zeros(100), 8000))
    path.write_bytes(path.read_bytes()[:-60])
    refused("a.wav is cut short: 100 samples were announced; got 70", read_sound, path)


def test_folders_of_recordings(tmp_path):
    refused("expected a folder of wav files", read_spoken, tmp_path)
    for take in (0, 5, 10, 11):
        write_wav(tmp_path / f"3_ann_{take}.wav", Sound(torch.rand(900) - 0.5, 8000))
    write_wav(tmp_path / "three.wav", Sound(torch.zeros(9), 8000))
    (tmp_path / "4_ann_12.wav").write_bytes(b"")
    refused(r"2 of 6 recordings cannot be used: .*4_ann_12.wav: is empty.*three.wav: its name", read_spoken, tmp_path)
    parts = read_spoken(tmp_path, bad_items="skip")
    assert "2 of 6 recordings left out" in parts.notes[0] and len(parts.train) == 2
    refused("there is no speaker 'bob'; there are ann", read_spoken, tmp_path, left_out=("bob",), bad_items="skip")
    write_wav(tmp_path / "5_ann_12.wav", Sound(torch.rand(900) - 0.5, 16000))
    refused("recordings have one rate; got 8000 Hz, 16000 Hz", read_spoken, tmp_path, bad_items="skip")
