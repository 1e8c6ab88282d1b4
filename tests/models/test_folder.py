"""Model folders: saved models load bit for bit, saving is atomic, and damaged folders give clear errors."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from model_cases import EVERY_MODEL, GPTS, IMAGE, LLAMA, TWO_STACKS, inputs, make_random_model, parametrize_cases
from safetensors.torch import load_file, save_file

import qkv
from qkv.models import GPT, CNNConfig, GPTConfig, Seq2SeqConfig, build
from qkv.models import folder as folders
from qkv.positions import LinearScaling, NtkScaling, Rope


@pytest.fixture
def folder(tmp_path, device):
    """A saved model."""
    make_random_model(GPTS["rope"], device).save(tmp_path / "model")
    return tmp_path / "model"


def equal_state(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours
    )


@parametrize_cases(EVERY_MODEL)
@torch.no_grad()
def test_load_returns_a_saved_model_bit_for_bit(config, tmp_path, device):
    model = make_random_model(config, device).train()
    model.save(tmp_path / "deep" / "model")
    back = qkv.load(tmp_path / "deep" / "model")
    assert type(back) is type(model) and back.config == model.config
    assert equal_state(back, model)
    assert not back.training
    given = inputs(config, device)
    assert torch.equal(back.to(device)(*given), model.eval()(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rope", "seq2seq, sinusoidal", "cnn", "vit, cls, sinusoidal", "lstm"])
def test_save_and_load_keep_the_dtype(name, dtype, tmp_path, device):
    model = make_random_model(EVERY_MODEL[name], device).to(dtype)
    model.save(tmp_path / "model")
    back = qkv.load(str(tmp_path / "model"))
    assert equal_state(back, model)
    assert {buffer.dtype for buffer in back.buffers()} == {buffer.dtype for buffer in model.buffers()}


@pytest.mark.parametrize(
    "config", [GPTConfig(7, dim=8, heads=2, tie_embeddings=True), Seq2SeqConfig(**TWO_STACKS)], ids=["gpt", "seq2seq"]
)
def test_save_writes_tied_weights_once_and_load_ties_them(config, tmp_path, device):
    model = make_random_model(config, device)
    model.save(tmp_path / "model")
    numbers = sum(tensor.numel() for tensor in load_file(tmp_path / "model" / "model.safetensors").values())
    assert numbers == model.num_parameters
    back = qkv.load(tmp_path / "model")
    tables = [module.weight for name, module in back.named_modules() if name.endswith("tokens") or name == "head"]
    assert len(tables) >= 2 and all(table is tables[0] for table in tables)
    assert equal_state(back, model)


@pytest.mark.parametrize("scaling", [None, LinearScaling(2.0), NtkScaling(4.0), LLAMA.scaling])
def test_load_restores_nested_configs(scaling, tmp_path, device):
    config = GPTConfig(7, dim=8, heads=2, position=Rope(base=500.0, pairing="halves", rotary_dim=2, scaling=scaling))
    make_random_model(config, device).save(tmp_path / "model")
    assert qkv.load(tmp_path / "model").config == config
    assert hash(qkv.load(tmp_path / "model").config) == hash(config)


def test_save_and_load_keep_batch_norm_statistics(tmp_path, device):
    model = make_random_model(CNNConfig(**IMAGE, stage_channels=(3,)), device).train()
    model(*inputs(model.config, device))
    model.save(tmp_path / "model")
    assert equal_state(qkv.load(tmp_path / "model"), model)


def test_save_replaces_an_older_model_and_keeps_its_tokenizer(folder, device):
    (folder / "tokenizer.json").write_text("{}")
    other = make_random_model(GPTS["alibi"], device)
    other.save(folder)
    assert equal_state(qkv.load(folder), other)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_behind_a_symbolic_link_keeps_the_link(folder, device):
    link = folder.parent / "link"
    link.symlink_to(folder, target_is_directory=True)
    other = make_random_model(GPTS["alibi"], device)
    other.save(link)
    assert equal_state(qkv.load(link), other) and equal_state(qkv.load(folder), other)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["link", "model"]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "failing", ["models.folder.safetensors_pieces", "_files.fsync", "_files._replace_folder", "_files.json.dumps"]
)
def test_save_that_fails_keeps_the_old_model(failing, exists, tmp_path, device, monkeypatch):
    before, after = make_random_model(GPTS["rope"], device), make_random_model(GPTS["rope"], device)
    target = tmp_path / "model"
    if exists:
        before.save(target)

    def fail(*arguments, **options):
        raise OSError("no space left on device")

    def fail_halfway(*arguments):
        yield b"half of a fi"
        fail()

    monkeypatch.setattr(f"qkv.{failing}", fail_halfway if failing.endswith("pieces") else fail)
    with pytest.raises(OSError, match="no space"):
        after.save(target)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["model"] if exists else [])
    if exists:
        assert equal_state(qkv.load(target), before)


def test_save_that_is_interrupted_keeps_the_old_model(folder, device, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "safetensors_pieces", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_random_model(GPTS["alibi"], device).save(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert qkv.load(folder).config == GPTS["rope"]


def test_save_whose_rename_fails_restores_the_old_model(folder, device, monkeypatch):
    rename = type(folder).rename

    def failing_once(path, target):
        if target == folder and not path.name.endswith(".old"):
            raise OSError("device busy")
        return rename(path, target)

    monkeypatch.setattr(type(folder), "rename", failing_once)
    with pytest.raises(OSError, match="busy"):
        make_random_model(GPTS["alibi"], device).save(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert qkv.load(folder).config == GPTS["rope"]


def test_save_refuses_folders_with_other_files(folder, device):
    model = make_random_model(GPTS["alibi"], device)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds other files \(thesis\.tex"):
        model.save(folder)
    with pytest.raises(ValueError, match="is a file; a model is saved to a folder"):
        model.save(folder / "thesis.tex")
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_fills_an_empty_folder(tmp_path, device):
    model = build(replace(GPTS["rope"], layers=0))
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    assert equal_state(qkv.load(tmp_path / "model"), model)


def described(change):
    def apply(folder):
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return apply


def stored(change):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def written(name, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "broken JSON": (written("config.json", b'{"model": "GPT", '), "config.json is not JSON"),
    "bytes that are no text": (written("config.json", b"\xff\xfe\x00"), "config.json is not JSON"),
    "a list": (written("config.json", b"[1, 2]"), "JSON object, got list"),
    "unknown model": (described(lambda all_: all_.update(model="Mamba")), "'Mamba'; known: CNN, Encoder, GPT"),
    "no model": (described(lambda all_: all_.pop("model")), "the unknown model None; known:"),
    "model of another type": (described(lambda all_: all_.update(model=["GPT"])), r"\['GPT'\]; known:"),
    "unknown field": (described(lambda all_: all_["config"].update(depth=3)), "GPTConfig has no field 'depth'"),
    "missing field": (described(lambda all_: all_["config"].pop("vocab_size")), "GPTConfig.*'vocab_size'"),
    "no fields": (described(lambda all_: all_.pop("config")), "GPTConfig must be a table of fields, got None"),
    "impossible": (described(lambda all_: all_["config"].update(heads=3)), "dim=8 is not divisible by heads=3"),
    "unknown part": (
        described(lambda all_: all_["config"].update(position={"kind": "Spiral"})),
        "position has the unknown kind 'Spiral'; known kinds:",
    ),
    "part of another type": (
        described(lambda all_: all_["config"].update(position={"kind": ["Rope"]})),
        r"position has the unknown kind \['Rope'\]; known kinds:",
    ),
    "unknown field of a part": (
        described(lambda all_: all_["config"]["position"].update(speed=3)),
        r"position \(Rope\) has no field 'speed'\. Fields: base",
    ),
    "a number as text": (described(lambda all_: all_["config"].update(dim="8")), "dim must be an integer, got '8'"),
    "a number that is none": (
        described(lambda all_: all_["config"].update(layers=None)),
        "layers must be an integer, got None",
    ),
    "a truth as number": (
        described(lambda all_: all_["config"].update(heads=True)),
        "heads must be an integer, got True",
    ),
    "an unknown choice": (
        described(lambda all_: all_["config"].update(norm="batch")),
        "norm must be 'layer' or 'rms', got 'batch'",
    ),
    "a score as position": (
        described(lambda all_: all_["config"].update(position={"kind": "Dot"})),
        r"position must be .*\{ kind = \"Alibi\" \} or .*\{ kind = \"Rope\" \}, got Dot\(",
    ),
    "missing tensor": (stored(lambda tensors: tensors.pop("norm.weight")), "lacks 1 tensors of GPT, first norm.weight"),
    "extra tensor": (
        stored(lambda tensors: tensors.update(more=torch.zeros(2))),
        "has 1 tensors that GPT does not have, first more",
    ),
    "tensor of another shape": (
        stored(lambda tensors: tensors.update({"norm.weight": torch.zeros(9)})),
        r"norm.weight must be \(8,\), got \(9,\)",
    ),
    "cut short": (cut, "damaged or not a safetensors file"),
    "empty": (written("model.safetensors", b""), "damaged or not a safetensors file"),
    "a pickle": (
        written("model.safetensors", pickle.dumps({"norm.weight": list(range(9999))})),
        "damaged or not a safetensors file",
    ),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=list(DAMAGES))
def test_load_says_what_is_wrong_with_a_folder(damage, words, folder, unchecked):
    damage(folder)
    with pytest.raises(ValueError, match=words):
        qkv.load(folder)


def test_load_says_that_a_folder_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"nothing at .*nowhere; expected a model folder"):
        qkv.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file is 0 bytes long; a llama2\.c file begins"):
        qkv.load(tmp_path / "file")


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99])
def test_load_refuses_a_changed_byte_zeroed_or_swapped_pages(place, tmp_path):
    torch.manual_seed(0)
    GPT(GPTConfig(vocab_size=50, dim=64, layers=2)).save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    whole = weights.read_bytes()
    at = int(place * len(whole)) // 4096 * 4096
    at = min(at, len(whole) - 3 * 4096)
    pages = [whole[at + i * 4096 : at + (i + 1) * 4096] for i in range(2)]
    flipped = bytes([pages[0][0] ^ 1]) + pages[0][1:] + pages[1]
    for damaged in (flipped, bytes(4096) + pages[1], pages[1] + pages[0]):
        weights.write_bytes(whole[:at] + damaged + whole[at + 2 * 4096 :])
        with pytest.raises(ValueError, match="changed after saving: its checksum"):
            qkv.load(tmp_path / "model")
    weights.write_bytes(whole)
    qkv.load(tmp_path / "model")


def test_load_verifies_the_sha256_of_a_folder_without_a_checksum(tmp_path):
    GPT(GPTConfig(vocab_size=50, dim=64, layers=2)).save(tmp_path / "model")
    config, weights = tmp_path / "model" / "config.json", tmp_path / "model" / "model.safetensors"
    content = json.loads(config.read_text())
    del content["checksum"]
    config.write_text(json.dumps(content))
    qkv.load(tmp_path / "model")
    whole = bytearray(weights.read_bytes())
    whole[-5000] ^= 1
    weights.write_bytes(whole)
    with pytest.raises(ValueError, match="its SHA-256 differs"):
        qkv.load(tmp_path / "model")


def test_load_maps_aligned_weights_and_training_them_leaves_the_file(tmp_path):
    GPT(GPTConfig(vocab_size=50, dim=64, layers=2, tie_embeddings=True)).save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    before, model = weights.read_bytes(), qkv.load(tmp_path / "model")
    assert isinstance(model, GPT) and all(parameter.data_ptr() % 64 == 0 for parameter in model.parameters())
    assert model.head.weight is model.tokens.weight
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert weights.read_bytes() == before


def test_load_draws_no_random_numbers(tmp_path):
    GPT(GPTConfig(vocab_size=50, dim=64, layers=2)).save(tmp_path / "model")
    before = torch.get_rng_state()
    qkv.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_write_tensors_says_which_file_could_not_be_written(tmp_path):
    with pytest.raises(OSError, match=r"could not write model.safetensors: "):
        folders.write_tensors(tmp_path / "missing" / "model.safetensors", {"weight": torch.ones(2)})
