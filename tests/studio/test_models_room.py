"""The Models room: what the page shows is what the library says, digit by digit; strange inputs are one sentence."""

import base64
import io
import json
import shlex
import shutil
import struct
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import HOSTILE, TEXT, WORDS, at, named, reader, shows

from qkv.cli.main import run
from qkv.data.digit_images import digits
from qkv.interp import change, effect, subject
from qkv.interp.ablation import beta_of
from qkv.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig
from qkv.studio.answers import UnknownError
from qkv.studio.api import models
from qkv.studio.models.looks import Looks, window
from qkv.studio.models.shelf import KEPT, Shelf
from qkv.studio.models.words import kinds, reproduce, seen
from qkv.studio.state import Studio

LARGE = """input => {
    const taken = new DataTransfer();
    taken.items.add(new File([new Uint8Array(17 * 2 ** 20)], "large.png"));
    input.files = taken.files;
    input.dispatchEvent(new Event("change", {bubbles: true}));
}"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A GPT whose tokens are markup, one of learned positions, a folder with a pickle, one with nothing."""
    home = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    for name, config in {
        "gpt": GPTConfig(vocab_size=len(WORDS), max_length=16, dim=32, layers=2, heads=4, position="rope"),
        "short": GPTConfig(vocab_size=len(WORDS), max_length=12, dim=32, layers=2, heads=4, position="learned"),
    }.items():
        model = GPT(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)  # attention that is far from even
        model.files["tokenizer.json"] = reader()
        model.save(home / name)
    (home / "pickled").mkdir()
    (home / "pickled" / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
    )
    (home / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    (home / "empty").mkdir()
    return home


@pytest.fixture(scope="module")
def place(serving, folders):
    return serving(models=(folders / "gpt", folders / "short"), runs=folders / "no-runs")


@pytest.fixture
def looks(folders):
    return Looks(Shelf(folders / "no-runs", (folders / "gpt", folders / "short")))


def asked(page, path: str, body: object) -> tuple[int, str]:
    """A request from within the page, with its cookie."""
    sent = """async ([path, body]) => {
        const answer = await fetch(path, {method: "POST", body: JSON.stringify(body)});
        return [answer.status, await answer.text()];
    }"""
    return tuple(page.evaluate(sent, [path, body]))


def test_a_picture_a_silenced_head_and_the_very_digits_of_the_library(place, visit):
    number = digits().test.labels.tolist().index(5)
    page = visit(place).go(f"models?model=qkv:digits&sample={number}&layer=1&head=2")
    shows(page, 1, 2)
    seen = subject.open("qkv:digits", Image.fromarray(digits().test.pixels[number, 0].numpy()))
    weights = seen.trace().weights(1, 2)
    for query, key in ((0, 3), (7, 16)):
        assert at(page, query, key).endswith(f"{weights[query, key].item():.6f}")
    page.get_by_role("button", name="silence head 1.2").click()
    page.wait_for_selector('[data-testid="effect"]')
    told = effect(seen.model, seen.inputs, silence=[(1, 2)])
    assert f"{told.kl:.6f} nats" in page.get_by_test_id("effect").inner_text()
    with torch.no_grad():
        before = seen.model(seen.inputs)[0].double().softmax(-1)
        with change(seen.model, silence=[(1, 2)]):
            after = seen.model(seen.inputs)[0].double().softmax(-1)
    for row in page.get_by_test_id("answers").locator("tbody tr").all():
        digit, _, old, new = row.locator("td").all_inner_texts()
        assert (old, new) == (f"{before[int(digit)]:.4f}", f"{after[int(digit)]:.4f}")
    assert "--silence 1.2" in page.get_by_test_id("reproduce").inner_text()
    assert "silence=1.2" in page.url
    patch = page.get_by_label("patch 2,1, weight")
    page.get_by_role("button", name="maps before").click()
    expected = f"patch 2,1, weight {weights[0, 1 + 2 * 4 + 1].item():.6f}"
    page.wait_for_selector(f'[aria-label="{expected}"]')
    assert patch.get_attribute("aria-label") == expected


def test_hostile_tokens_are_text_and_a_link_restores_cuts_and_betas(place, looks, visit):
    model = named(looks, "gpt")
    visitor = visit(place)
    page = visitor.go(f"models?model={model}&layer=1&head=3&cut=0.all.8.1&beta=1:2&query=8&key=0&text={TEXT}")
    page.wait_for_selector('[data-testid="effect"]')
    seen = subject.open(looks.shelf.source(model).where, TEXT)
    own = beta_of(seen.trace().layers[1])
    changes = {"cut": [(0, None, 8, 1)], "beta": {(1, None): 2 * own}}
    told = effect(seen.model, seen.inputs, **changes)
    shown = page.get_by_test_id("effect").inner_text()
    assert f"{told.kl:.6f} nats" in shown and f"{told.kl_at[8]:.6f} nats" in shown
    assert f"{told.loss_before:.4f} → {told.loss_after:.4f}" in shown
    shows(page, 1, 3)
    page.wait_for_timeout(300)  # the map after the change takes the place of the one before
    with change(seen.model, **changes):
        weights = seen.trace().weights(1, 3)
    assert at(page, 8, 0).endswith(f"{weights[8, 0].item():.6f}")
    assert HOSTILE in page.locator(".strip").inner_text()
    assert page.title() == "qkv studio" and page.locator("main img[src=x], main script").count() == 0
    assert "--beta 1=x2 --cut 0:8:1" in page.get_by_test_id("reproduce").inner_text()


def test_what_cannot_be_opened_or_read_is_said_in_the_page(place, folders, visit, monkeypatch):
    visitor = visit(place)
    page = visitor.go("models?model=qkv:digits")
    page.wait_for_selector('[data-testid="map"]')
    for folder, said in {
        "pickled": "a pickle, which could run any code",
        "empty": "is not a model's folder: it has no config.json",
        "nowhere": "there is nothing at",
    }.items():
        page.get_by_label("a checkpoint's folder").fill(str(folders / folder))
        page.get_by_role("button", name="open", exact=True).click()
        page.get_by_role("alert").filter(has_text=said).wait_for()
    page.locator("input[type=file]").evaluate(LARGE)
    page.get_by_role("alert").filter(has_text="a file of at most 16 MB").wait_for()
    monkeypatch.setattr("qkv.studio.models.given.BYTES", 2**20)
    said = asked(page, "/api/models/look", {"model": "qkv:digits", "file": "A" * 2**22})
    assert said == (400, '{"error":"a picture is a file of at most 1 MB; got 3 MB"}')
    visitor.complaints.clear()


def test_a_text_that_is_too_long_is_offered_shorter(place, looks, visit):
    visitor = visit(place)
    page = visitor.go(f"models?model={named(looks, 'short')}&text={'the cat ' * 10}")
    page.get_by_text("This text is too long to look at").wait_for()
    visitor.complaints.clear()  # the browser notes every refusal
    page.get_by_role("button", name="look at the first 12").click()
    page.wait_for_selector('[data-testid="map"]')
    assert page.locator(".strip .token").count() == 12


def test_models_are_had_by_their_ids_only(place, folders, visit):
    visitor = visit(place)
    page = visitor.go("playground")
    for name in ("../../etc/passwd", str(folders / "gpt"), "run:../models/gpt", "qkv:../digits", "folder:0"):
        status, said = asked(page, "/api/models/open", {"model": name})
        assert status == 404 and "there is no model" in json.loads(said)["error"]
    assert asked(page, "/api/models/window", {"look": "none", "layer": 0, "head": 0, "size": 64})[0] == 404
    assert asked(page, "/api/models/open", {"model": ["qkv:digits"]})[0] == 400
    assert asked(page, "/api/models/open", {})[0] == 400
    visitor.complaints.clear()


def test_windows_of_a_long_text_are_exact_or_the_largest_of_their_cells(looks):
    text = " ".join(WORDS[1 + place * 7 % 9] for place in range(700))
    look = looks.look({"model": named(looks, "gpt"), "text": text})
    whole = look.trace.weights(1, 2)
    part, step = window(look.trace, 1, 2, range(300, 400), range(250, 350), 128)
    assert step == 1 and torch.equal(part, whole[300:400, 250:350])
    part, step = window(look.trace, 1, 2, range(101, 700), range(37, 636), 100)
    assert step == 6 and part.shape == (100, 100)
    assert part[3, 2] == whole[101 + 18 : 101 + 24, 37 + 12 : 37 + 18].max()
    assert part[99, 99] == whole[101 + 594 : 700, 37 + 594 : 636].max()
    whole_map, step = window(look.trace, 1, 2, range(700), range(700), 100)
    assert step == 7 and torch.equal(whole_map, look.trace.map(1, 2, 100))


def test_answers_before_and_after_are_the_models_own(looks):
    look = looks.look({"model": named(looks, "gpt"), "text": TEXT})
    changed = looks.change({"look": look.id, "silence": ["0.1", "1.3"]})
    model, inputs = look.subject.model, look.subject.inputs
    with torch.no_grad():
        old = model(inputs)[0].double().softmax(-1)
        with change(model, silence=[(0, 1), (1, 3)]):
            new = model(inputs)[0].double().softmax(-1)
    for place in range(9):
        for each in changed.told.at(place, look.subject)["answers"]:
            assert each["before"] == old[place, each["id"]] and each["after"] == new[place, each["id"]]
            assert each["text"] == WORDS[each["id"]]
    assert changed.effect.kl == effect(model, inputs, silence=[(0, 1), (1, 3)]).kl
    with pytest.raises(ValueError, match="layer 1 has 4 heads"):
        looks.change({"look": look.id, "silence": ["1.4"]})
    with pytest.raises(ValueError, match="nothing is changed"):
        looks.change({"look": look.id})
    with pytest.raises(ValueError, match="an edge is"):
        looks.change({"look": look.id, "cut": [["a", 0, 1, 2]]})


def test_a_model_whose_answers_are_no_numbers_says_so(tmp_path):
    for part in ("norm", "blocks.0"):
        model = GPT(GPTConfig(vocab_size=len(WORDS), max_length=16, dim=32, layers=2, heads=4))
        with torch.no_grad():
            next(model.get_submodule(part).parameters()).fill_(float("nan"))
        model.files["tokenizer.json"] = reader()
        model.save(tmp_path / part)
        looks = Looks(Shelf(tmp_path / "none", (tmp_path / part,)))
        look = looks.look({"model": named(looks, part), "text": TEXT})
        said = json.loads(json.dumps([seen(look), kinds(look)], allow_nan=False))[0]["told"]
        assert said["sort"] == "none" and "answers are not numbers (NaN)" in said["why"]
        json.dumps(seen(looks.change({"look": look.id, "silence": ["1.0"]})), allow_nan=False)


def test_the_lines_that_are_shown_give_what_is_shown(looks, capsys):
    text = "-5 degrees the cat"
    look = looks.look({"model": named(looks, "gpt"), "text": text})
    changed = looks.change({"look": look.id, "silence": ["0.1"], "cut": [[1, 2, 3, 0]]})
    shown = reproduce(changed)
    known: dict[str, Any] = {}
    exec("\n".join([*shown["open"], *shown["change"], shown["effect"]]), known)
    assert torch.equal(known["trace"].weights(1, 2), changed.trace.weights(1, 2))
    assert not torch.equal(known["trace"].weights(1, 2), look.trace.weights(1, 2))
    assert "kl" in capsys.readouterr().out
    line = f"{shown['command']} --layer 1 --head 2 --json {shown['flags']} {shown['last']}"
    assert run(shlex.split(line)[1:]) == 0
    found = json.loads(capsys.readouterr().out)["shown"]["weights"]
    assert torch.allclose(torch.tensor(found), changed.trace.weights(1, 2), atol=1e-6)
    long = f"the {'x' * 500}"
    shown = reproduce(looks.look({"model": named(looks, "gpt"), "text": long}))
    assert shown["command"].endswith(' "$(cat text.txt)"') and shown["text"] == long


def test_a_model_beside_another_is_given_the_target_that_the_other_wrote(tmp_path):
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        model = Seq2Seq(Seq2SeqConfig(vocab_size=len(WORDS), dim=32, encoder_layers=1, decoder_layers=1, heads=4))
        model.files["tokenizer.json"] = reader()
        model.files["huggingface.json"] = b'{"bos_token_id": 9, "eos_token_id": 2}'
        model.save(tmp_path / name)
    looks = Looks(Shelf(tmp_path / "none", (tmp_path / "one", tmp_path / "two")))
    one = looks.look({"model": named(looks, "one"), "text": "the cat"})
    two = looks.look({"model": named(looks, "two"), "text": "the cat", "beside": one.id})
    assert one.target and two.target == [
        token for token in one.target if token != 9
    ]  # what begins a target is none of it
    assert reproduce(one)["target"] == repr(one.target) and "--target" not in reproduce(one)["command"]
    typed = looks.look({"model": named(looks, "two"), "text": "the cat", "target": "a mat", "beside": one.id})
    assert typed.given.target == "a mat" and reproduce(typed)["target"] == "'a mat'"


def test_pictures_that_are_none_are_one_sentence(looks):
    model = {"model": "qkv:digits"}
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + struct.pack(">II", 30000, 30000)
        + bytes([8, 0, 0, 0, 0])
    )
    for content, said in {b"GIF89a": "not a picture that can be read", bomb + bytes(4): "pixels|not a picture"}.items():
        with pytest.raises(ValueError, match=said):
            looks.look({**model, "file": base64.b64encode(content).decode()})
    with pytest.raises(ValueError, match="comes as base64"):
        looks.look({**model, "file": "***"})
    with pytest.raises(ValueError, match="drop a picture"):
        looks.look(model)
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), 128, np.uint8)).save(file, "PNG")
    look = looks.look({**model, "file": base64.b64encode(file.getvalue()).decode(), "name": "../grey.png"})
    assert "resized to 8×8" in look.subject.notes[0] and look.given.name == "grey.png"


def test_models_are_read_once_and_only_some_are_kept(tmp_path):
    paths = []
    for number in range(KEPT + 1):
        ViT(ViTConfig(image_size=8, patch_size=4, dim=16, layers=1, heads=2)).save(tmp_path / str(number))
        paths.append(tmp_path / str(number))
    shelf = Shelf(tmp_path / "none", tuple(paths))
    ids = [source.id for source in shelf.sources() if source.origin == "folder"]
    found = []
    threads = [threading.Thread(target=lambda: found.append(shelf.get(ids[0]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(held) for held in found}) == 1
    for name in ids[1:]:
        shelf.get(name)
    assert shelf.get(ids[-1]) is shelf.get(ids[-1]) and shelf.get(ids[0]) is not found[0]
    with pytest.raises(UnknownError, match="there is no model"):
        shelf.get("folder:none")
    old = shelf.get(ids[-1])
    shutil.rmtree(paths[-1])
    ViT(ViTConfig(image_size=8, patch_size=4, dim=32, layers=1, heads=2)).save(paths[-1])
    assert shelf.get(ids[-1]).model.config.dim == 32 and old.model.config.dim == 16


def test_a_sweep_lets_others_use_the_model_between_two_heads(looks, monkeypatch):
    look, studio, turns = looks.look({"model": named(looks, "gpt"), "text": TEXT}), Studio(), []
    begun, taken = threading.Event(), threading.Event()

    def other():
        begun.wait(10)
        with look.held.lock:
            taken.set()

    def swept(model, inputs, progress):
        begun.set()
        while not taken.is_set() and len(turns) < 5000:
            turns.append(progress(1, 2))
        raise ValueError("others had their turn" if taken.is_set() else "nobody had a turn")

    monkeypatch.setattr(models, "sweep", swept)
    thread = threading.Thread(target=other)
    thread.start()
    job = studio.jobs.get(models._sweep(studio, looks, {"look": look.id})["job"])
    thread.join(60)
    with job.changed:
        job.changed.wait_for(lambda: job.state != "running", 60)
    assert job.error == "others had their turn"
