"""load_images returns the pixels and labels that each kind of source holds."""

import gzip
import io
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from qkv.cli.main import run
from qkv.data.images import cifar_mnist
from qkv.data.images.cifar_mnist import CIFAR100_CLASSES, read_cifar_records
from qkv.data.images.dataset import Images, split_images
from qkv.data.images.load import load_images
from qkv.data.images.npz import guess_role, to_pixels
from qkv.data.overlap import find_overlap
from qkv.training.recipes import get_recipe
from qkv.training.recipes.images import ImageData, load_splits

RANDOM = np.random.default_rng(0)


def random_image(side=6, color=True):
    return RANDOM.integers(0, 256, (side, side, 3) if color else (side, side), dtype=np.uint8)


def png(array):
    held = io.BytesIO()
    Image.fromarray(array).save(held, "PNG")
    return held.getvalue()


def together(parts):
    """All images and labels, sorted, so that the split does not matter."""
    held = [
        (bytes(p.numpy().tobytes()), int(y)) for part in parts for p, y in zip(part.pixels, part.labels, strict=True)
    ]
    return sorted(held)


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_x", "train_y", "test_x", "test_y"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X_train", "Y_train", "X_val", "Y_val"),
    ],
)
def test_load_images_finds_npz_arrays_by_name_and_notes_them(tmp_path, names):
    x, y = np.stack([random_image() for _ in range(30)]), np.arange(30) % 4
    arrays = dict(zip(names, (x[:24], y[:24], x[24:], y[24:, None]), strict=True))
    np.savez_compressed(tmp_path / "d.npz", **arrays)
    parts = load_images(tmp_path / "d.npz", validation=0.25)
    assert any(names[0] in note and names[1] in note for note in parts.notes)
    all_parts = [parts.train, parts.validation, parts.test]
    wanted = sorted((x[i].transpose(2, 0, 1).tobytes(), int(y[i])) for i in range(30))
    assert together(all_parts) == wanted and parts.classes == ("0", "1", "2", "3")
    assert len(parts.validation if "val" in names[2] else parts.test) == 6


def test_load_images_splits_one_npz_set_in_three_by_the_seed(tmp_path):
    np.savez(
        tmp_path / "d.npz", images=np.stack([random_image(color=False) for _ in range(40)]), labels=["b", "a"] * 20
    )
    parts = load_images(tmp_path / "d.npz", validation=0.2, seed=3)
    assert parts.classes == ("a", "b") and len(parts.train) + len(parts.validation) + len(parts.test) == 40
    assert not find_overlap(parts.train.pixels, parts.test.pixels).indices
    assert torch.equal(parts.test.pixels, load_images(tmp_path / "d.npz", validation=0.2, seed=3).test.pixels)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.transpose(0, 3, 1, 2),
        lambda x: x.astype(np.float32) / 255,
        lambda x: x.astype(np.int64),
        lambda x: np.asfortranarray(x),
        lambda x: np.concatenate((x, x[..., :1]), -1),
    ],
)
def test_load_images_accepts_pixels_of_any_axis_order_and_dtype(change, tmp_path):
    x = np.stack([random_image(7) for _ in range(5)])
    np.savez(tmp_path / "d.npz", images=change(x), labels=np.zeros(5, int))
    parts = load_images(tmp_path / "d.npz", validation=0.2)
    assert together([parts.train, parts.validation, parts.test]) == sorted(
        (p.transpose(2, 0, 1).tobytes(), 0) for p in x
    )


def test_to_pixels_reshapes_flat_rows_and_guess_role_reads_names():
    assert to_pixels(np.zeros((2, 64), np.uint8), "x").shape == (2, 1, 8, 8)
    assert guess_role("validation_data") == ("images", "validation") and guess_role("weights") == (None, "train")


def write_folders(folder, classes, count, side=6):
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.png").write_bytes(png(random_image(side)))


def test_load_images_takes_classes_from_folder_names(tmp_path):
    write_folders(tmp_path, ("dog", "cat"), 10)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    parts = load_images(tmp_path, validation=0.2)
    assert parts.classes == ("cat", "dog") and parts.train.shape == (3, 6, 6)
    wanted = sorted(
        (np.asarray(Image.open(p)).transpose(2, 0, 1).tobytes(), ("cat", "dog").index(p.parent.name))
        for p in tmp_path.rglob("*.png")
    )
    assert together([parts.train, parts.validation, parts.test]) == wanted


def test_load_images_keeps_train_and_test_folders_and_resizes(tmp_path):
    for part, count, side in (("train", 6, 6), ("test", 2, 9)):
        write_folders(tmp_path / part, ("a", "b"), count, side)
    Image.fromarray(random_image(5, color=False)).save(tmp_path / "train" / "a" / "gray.png")
    parts = load_images(tmp_path, validation=0.3, size=4)
    assert len(parts.test) == 4 and len(parts.train) + len(parts.validation) == 13
    assert parts.train.shape == parts.test.shape == (3, 4, 4)


def test_load_images_reads_parquet_files_with_class_names(tmp_path):
    (tmp_path / "data").mkdir()
    described = {"info": {"features": {"label": {"names": ["ant", "bee", "cow"], "_type": "ClassLabel"}}}}
    kept = {}
    for name, count in (("train-00000-of-00002", 5), ("train-00001-of-00002", 4), ("test-00000-of-00001", 3)):
        images, labels = [random_image() for _ in range(count)], [i % 3 for i in range(count)]
        kept.setdefault(name.split("-")[0], []).extend(
            (p.transpose(2, 0, 1).tobytes(), y) for p, y in zip(images, labels, strict=True)
        )
        table = pa.table({"image": [{"bytes": png(p), "path": None} for p in images], "label": labels})
        table = table.replace_schema_metadata({b"huggingface": json.dumps(described).encode()})
        pq.write_table(table, tmp_path / "data" / f"{name}.parquet")
    parts = load_images(tmp_path, validation=0.3)
    assert parts.classes == ("ant", "bee", "cow")
    assert together([parts.test]) == sorted(kept["test"])
    assert together([parts.train, parts.validation]) == sorted(kept["train"])


@pytest.mark.parametrize(("kind", "labels"), [("cifar10", 1), ("cifar100", 2)])
def test_load_images_reads_cifar_records_of_labels_and_color_planes(tmp_path, kind, labels):
    files = (
        [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"] if labels == 1 else ["train.bin", "test.bin"]
    )
    kept = {}
    for name in files:
        images, label_bytes = [random_image(32) for _ in range(4)], RANDOM.integers(0, 10, (4, labels), dtype=np.uint8)
        planes = [p.transpose(2, 0, 1).tobytes() for p in images]
        (tmp_path / name).write_bytes(b"".join(t.tobytes() + p for t, p in zip(label_bytes, planes, strict=True)))
        kept[name] = [(p, int(t[-1])) for t, p in zip(label_bytes, planes, strict=True)]
    parts = load_images(tmp_path, validation=0.25)
    assert len(parts.classes) == (10 if labels == 1 else 100)
    assert together([parts.test]) == sorted(kept[files[-1]])
    assert together([parts.train, parts.validation]) == sorted(x for name in files[:-1] for x in kept[name])
    (tmp_path / files[0]).write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match=r"5,000 bytes is not a whole number of records"):
        load_images(tmp_path)


def write_cifar100(folder, train=20, test=6):
    """CIFAR-100 as `cifar100.npz` and as official files, with the same random images."""
    binary = folder / "cifar-100-binary"
    binary.mkdir(parents=True)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        x = RANDOM.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        y, coarse = np.arange(count) * 7 % 100, np.arange(count) % 20
        y[0] = 99
        rows = np.concatenate([coarse[:, None], y[:, None], x.transpose(0, 3, 1, 2).reshape(count, -1)], 1)
        (binary / f"{part}.bin").write_bytes(rows.astype(np.uint8).tobytes())
        arrays |= {f"{part}_x": x, f"{part}_y": y, f"{part}_coarse": coarse}
    np.savez(folder / "cifar100.npz", **arrays)
    return folder


def test_vit_cifar100_reads_npz_and_official_bin_files_alike_and_names_its_classes(tmp_path):
    folder = write_cifar100(tmp_path / "cifar100")
    sources = (folder / "cifar100.npz", folder / "cifar-100-binary", folder)
    one, *others = (load_splits(ImageData(str(path), class_names=CIFAR100_CLASSES), 0) for path in sources)
    for other in others:
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(one, part).pixels, getattr(other, part).pixels)
            assert torch.equal(getattr(one, part).labels, getattr(other, part).labels)
            assert getattr(other, part).classes == getattr(one, part).classes == CIFAR100_CLASSES
    assert len(CIFAR100_CLASSES) == len(set(CIFAR100_CLASSES)) == 100 and list(CIFAR100_CLASSES) == sorted(
        CIFAR100_CLASSES
    )
    assert get_recipe("vit-cifar100").resolve().data.class_names == CIFAR100_CLASSES


def damage(folder, name):
    """Damage the files in one way; returns what to load."""
    binary, npz = folder / "cifar-100-binary", folder / "cifar100.npz"
    train = (binary / "train.bin").read_bytes()
    if name == "cut":
        (binary / "train.bin").write_bytes(train[:-1])
    elif name == "shifted":
        (binary / "train.bin").write_bytes(bytes([20]) + train[1:])
    elif name in ("train.bin", "test.bin"):
        (binary / name).unlink()
    elif name == "cut.npz":
        npz.write_bytes(npz.read_bytes()[:-1000])
    elif name == "changed.npz":
        content = bytearray(npz.read_bytes())
        content[5000] ^= 255
        npz.write_bytes(content)
    elif name == "unlabeled.npz":
        np.savez(npz, train_x=np.zeros((2, 32, 32, 3), np.uint8))
    else:
        npz.unlink()
    return npz if "npz" in name else binary


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut", "train.bin is damaged: 61,479 bytes is not a whole number of records of 3074 bytes"),
        ("shifted", "train.bin, record 0: unknown coarse label 20; coarse labels are 0 … 19"),
        ("train.bin", "cifar-100-binary lacks train.bin of cifar100"),
        ("test.bin", "cifar-100-binary lacks test.bin of cifar100"),
        ("cut.npz", "cifar100.npz is damaged or not an .npz file"),
        ("changed.npz", "cifar100.npz is damaged or not an .npz file: Bad CRC-32"),
        ("unlabeled.npz", "there are no labels for train_x"),
        ("missing npz", "there is nothing at"),
    ],
)
def test_vit_cifar100_refuses_damaged_or_missing_files_in_one_sentence(tmp_path, name, message, capsys):
    path = damage(write_cifar100(tmp_path / "cifar100"), name)
    command = ["train", "vit-cifar100", "--preset", "nyu-hw4", "--data", str(path), "--folder", str(tmp_path / "run")]
    assert run(command) == 2
    printed = capsys.readouterr()
    assert not printed.out and "qkv: " in printed.err
    assert message in " ".join(printed.err.split()) and "Traceback" not in printed.err
    assert not (tmp_path / "run").exists()


def test_read_cifar_records_names_the_record_of_an_unknown_label(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(bytes([3]) + bytes(3072) + bytes([11]) + bytes(3072))
    with pytest.raises(ValueError, match=r"one.bin, record 1: unknown label 11"):
        read_cifar_records([path], 1, tuple("abcdefghij"))


def write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()) if path.suffix == ".gz" else head + array.tobytes())


@pytest.mark.parametrize("end", ["", ".gz"])
def test_load_images_reads_idx_files_packed_or_not(tmp_path, end):
    kept = {}
    for part, (images, labels) in cifar_mnist.IDX_FILES.items():
        x, y = np.stack([random_image(5, color=False) for _ in range(8)]), np.arange(8, dtype=np.uint8) % 3
        write_idx(tmp_path / (images + end), x)
        write_idx(tmp_path / (labels + end), y)
        kept[part] = sorted((p.tobytes(), int(t)) for p, t in zip(x, y, strict=True))
    parts = load_images(tmp_path, validation=0.25)
    assert together([parts.train, parts.validation]) == kept["train"] and together([parts.test]) == kept["test"]


def test_load_images_reads_the_debian_fashion_mnist_where_it_is_installed():
    if not cifar_mnist.is_idx_folder(cifar_mnist.FASHION_DEBIAN):
        pytest.skip("needs Debian's dataset-fashion-mnist")
    parts = load_images("fashion-mnist")
    assert len(parts.train) == 54_000 and len(parts.test) == 10_000 and parts.classes[9] == "ankle boot"


def test_with_class_names_names_numbered_classes_only():
    pixels, labels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    counted = split_images({"train": Images(pixels, labels, ("0", "1")), "test": Images(pixels, labels, ("0", "1"))})
    named = counted.with_class_names(("cat", "dog"))
    assert [part.classes for part in (named.train, named.validation, named.test)] == [("cat", "dog")] * 3
    assert torch.equal(named.train.labels, counted.train.labels)
    assert counted.with_class_names(()) is counted and counted.with_class_names(("a", "b", "c")) is counted
    assert named.with_class_names(("hen", "fox")).classes == ("cat", "dog"), "class names of the data itself stay"
