"""The Models page and its API: numbers of the library digit by digit; bad inputs are one sentence."""

import base64
import io
import json
import shlex
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import HOSTILE, TEXT, WORDS, find_id, make_tokenizer, read_weight, wait_for_head

from qkv.cli.main import run
from qkv.data.images.load import load_digits
from qkv.interp import intervene, measure_effect, prepare_input
from qkv.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig
from qkv.studio.api import models
from qkv.studio.models.inputs import list_samples
from qkv.studio.models.looks import LookStore, map_window
from qkv.studio.models.store import MAX_LOADED, ModelStore
from qkv.studio.models.views import head_types_json, look_json, reproduce
from qkv.studio.responses import NotFoundError
from qkv.studio.server import Studio

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
        model.extra_files["tokenizer.json"] = make_tokenizer()
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
    return LookStore(ModelStore(folders / "no-runs", (folders / "gpt", folders / "short")))


def post_json(page, path: str, body: object) -> tuple[int, str]:
    """A request from within the page, with its cookie."""
    sent = """async ([path, body]) => {
        const answer = await fetch(path, {method: "POST", body: JSON.stringify(body)});
        return [answer.status, await answer.text()];
    }"""
    return tuple(page.evaluate(sent, [path, body]))


def test_an_image_and_an_ablated_head_show_the_numbers_of_the_library(place, visit):
    number = load_digits().test.labels.tolist().index(5)
    page = visit(place).go(f"models?model=qkv:digits&sample={number}&layer=1&head=2")
    wait_for_head(page, 1, 2)
    prepared = prepare_input("qkv:digits", Image.fromarray(load_digits().test.pixels[number, 0].numpy()))
    weights = prepared.trace().weights(1, 2)
    for query, key in ((0, 3), (7, 16)):
        assert read_weight(page, query, key).endswith(f"{weights[query, key].item():.6f}")
    page.get_by_role("button", name="ablate head 1.2").click()
    page.wait_for_selector('[data-testid="effect"]')
    expected_effect = measure_effect(prepared.model, prepared.inputs, ablate_heads=[(1, 2)])
    assert f"{expected_effect.kl:.6f} nats" in page.get_by_test_id("effect").inner_text()
    with torch.no_grad():
        before = prepared.model(prepared.inputs)[0].double().softmax(-1)
        with intervene(prepared.model, ablate_heads=[(1, 2)]):
            after = prepared.model(prepared.inputs)[0].double().softmax(-1)
    for row in page.get_by_test_id("predictions").locator("tbody tr").all():
        digit, _, old, new = row.locator("td").all_inner_texts()
        assert (old, new) == (f"{before[int(digit)]:.4f}", f"{after[int(digit)]:.4f}")
    assert "--ablate 1.2" in page.get_by_test_id("reproduce").inner_text()
    assert "ablate=1.2" in page.url
    patch = page.get_by_label("patch 2,1, weight")
    page.get_by_role("button", name="maps before").click()
    expected = f"patch 2,1, weight {weights[0, 1 + 2 * 4 + 1].item():.6f}"
    page.wait_for_selector(f'[aria-label="{expected}"]')
    assert patch.get_attribute("aria-label") == expected


def test_an_ablated_head_is_drawn_with_its_weights_and_says_so(place, visit):
    page = visit(place).go("models?model=qkv:digits&sample=0&layer=1&head=2&ablate=1.2")
    page.set_default_timeout(120_000)
    page.wait_for_selector('[data-testid="effect"]')
    page.get_by_text("This head is ablated: its output is 0.").wait_for()
    image = Image.fromarray(load_digits().test.pixels[0, 0].numpy())
    weights = prepare_input("qkv:digits", image).trace().weights(1, 2)
    assert read_weight(page, 7, 16).endswith(f"{weights[7, 16].item():.6f}")


def test_a_drawing_is_read_and_saved_under_the_name_in_the_commands(place, visit, tmp_path):
    page = visit(place).go("models?model=qkv:digits")
    page.set_default_timeout(120_000)
    page.get_by_text("draw an image").click()
    page.locator(".pad select").select_option("thick")
    pad = page.get_by_label("Draw an image here")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    for i, (x, y) in enumerate([(0.3, 0.2), (0.7, 0.2), (0.45, 0.8)]):  # a seven, left of the middle
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        if i == 0:
            page.mouse.down()
    page.mouse.up()
    page.locator(".pad").get_by_role("button", name="Look").click()
    page.get_by_text("cropped, centered and resized").wait_for()
    with page.expect_download() as saving:
        page.get_by_text("save drawing.png").click()
    saving.value.save_as(tmp_path / "drawing.png")
    first = page.get_by_test_id("predictions").locator("tbody tr").first.locator("td").all_inner_texts()
    prepared = prepare_input("qkv:digits", str(tmp_path / "drawing.png"))
    with torch.no_grad():
        expected = prepared.model(prepared.inputs)[0].double().softmax(-1)
    assert (first[0], first[2]) == ("7", f"{expected[7]:.4f}")
    assert "qkv look qkv:digits drawing.png" in page.get_by_test_id("reproduce").inner_text()


def test_bars_of_predictions_have_their_length_on_a_phone(place, visit):
    page = visit(place).go("models?model=qkv:digits&sample=0")
    page.set_viewport_size({"width": 390, "height": 844})
    bars = page.get_by_test_id("predictions").locator(".bar span")
    bars.first.wait_for(timeout=120_000)
    assert bars.first.bounding_box()["width"] > 40


def test_hostile_tokens_stay_text_and_a_link_restores_interventions(place, looks, visit):
    model = find_id(looks, "gpt")
    visitor = visit(place)
    page = visitor.go(f"models?model={model}&layer=1&head=3&mask=0.all.8.1&scale=1:2&query=8&key=0&text={TEXT}")
    page.wait_for_selector('[data-testid="effect"]')
    prepared = prepare_input(looks.models.source(model).checkpoint, TEXT)
    own = prepared.trace().layers[1].scale
    changes = {"mask_edges": [(0, None, 8, 1)], "scale": {(1, None): 2 * own}}
    expected_effect = measure_effect(prepared.model, prepared.inputs, **changes)
    shown = page.get_by_test_id("effect").inner_text()
    assert f"{expected_effect.kl:.6f} nats" in shown and f"{expected_effect.kl_at[8]:.6f} nats" in shown
    assert f"{expected_effect.loss_before:.4f} → {expected_effect.loss_after:.4f}" in shown
    wait_for_head(page, 1, 3)
    page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
    with intervene(prepared.model, **changes):
        weights = prepared.trace().weights(1, 3)
    assert read_weight(page, 8, 0).endswith(f"{weights[8, 0].item():.6f}")
    assert HOSTILE in page.locator(".strip").inner_text()
    assert page.title() == "qkv studio" and page.locator("main img[src=x], main script").count() == 0
    assert "--scale 1=x2 --mask-edge 0:8:1" in page.get_by_test_id("reproduce").inner_text()


def test_models_and_files_that_cannot_be_read_are_reported_on_the_page(place, folders, visit, monkeypatch):
    visitor = visit(place)
    page = visitor.go("models?model=qkv:digits")
    page.wait_for_selector('[data-testid="map"]')
    for folder, text in {
        "pickled": "a pickle, which could run any code",
        "empty": "is not a model folder: it has no config.json",
        "nowhere": "there is nothing at",
    }.items():
        page.get_by_label("a checkpoint folder").fill(str(folders / folder))
        page.get_by_role("button", name="open", exact=True).click()
        page.get_by_role("alert").filter(has_text=text).wait_for()
    page.locator("input[type=file]").evaluate(LARGE)
    page.get_by_role("alert").filter(has_text="may have at most 16 MB").wait_for()
    monkeypatch.setattr("qkv.studio.models.inputs.MAX_FILE_BYTES", 2**20)
    text = post_json(page, "/api/models/look", {"model": "qkv:digits", "file": "A" * 2**22})
    assert text == (400, '{"error":"an image may have at most 1 MB, got 3 MB"}')
    visitor.errors.clear()


def test_a_text_that_is_too_long_can_be_shortened(place, looks, visit):
    visitor = visit(place)
    page = visitor.go(f"models?model={find_id(looks, 'short')}&text={'the cat ' * 10}")
    page.get_by_text("This text is too long").wait_for()
    visitor.errors.clear()  # the browser notes every refusal
    page.get_by_role("button", name="use the first 12").click()
    page.wait_for_selector('[data-testid="map"]')
    assert page.locator(".strip .token").count() == 12


def test_models_are_opened_only_by_id(place, folders, visit):
    visitor = visit(place)
    page = visitor.go("playground")
    for name in ("../../etc/passwd", str(folders / "gpt"), "run:../models/gpt", "qkv:../digits", "folder:0"):
        status, text = post_json(page, "/api/models/open", {"model": name})
        assert status == 404 and "there is no model" in json.loads(text)["error"]
    assert post_json(page, "/api/models/window", {"look": "none", "layer": 0, "head": 0, "size": 64})[0] == 404
    assert post_json(page, "/api/models/open", {"model": ["qkv:digits"]})[0] == 400
    assert post_json(page, "/api/models/open", {})[0] == 400
    visitor.errors.clear()


def test_map_window_is_exact_or_max_pooled(looks):
    text = " ".join(WORDS[1 + place * 7 % 9] for place in range(700))
    look = looks.look({"model": find_id(looks, "gpt"), "text": text})
    whole = look.trace.weights(1, 2)
    part, step = map_window(look.trace, 1, 2, range(300, 400), range(250, 350), 128)
    assert step == 1 and torch.equal(part, whole[300:400, 250:350])
    part, step = map_window(look.trace, 1, 2, range(101, 700), range(37, 636), 100)
    assert step == 6 and part.shape == (100, 100)
    assert part[3, 2] == whole[101 + 18 : 101 + 24, 37 + 12 : 37 + 18].max()
    assert part[99, 99] == whole[101 + 594 : 700, 37 + 594 : 636].max()
    whole_map, step = map_window(look.trace, 1, 2, range(700), range(700), 100)
    assert step == 7 and torch.equal(whole_map, look.trace.map(1, 2, 100))


def test_predictions_before_and_after_equal_the_models_own(looks):
    look = looks.look({"model": find_id(looks, "gpt"), "text": TEXT})
    changed = looks.intervene({"look": look.id, "ablate": ["0.1", "1.3"]})
    model, inputs = look.prepared.model, look.prepared.inputs
    with torch.no_grad():
        old = model(inputs)[0].double().softmax(-1)
        with intervene(model, ablate_heads=[(0, 1), (1, 3)]):
            new = model(inputs)[0].double().softmax(-1)
    for place in range(9):
        for each in changed.predictions.at(place, look.prepared)["top"]:
            assert each["before"] == old[place, each["id"]] and each["after"] == new[place, each["id"]]
            assert each["text"] == WORDS[each["id"]]
    assert changed.effect.kl == measure_effect(model, inputs, ablate_heads=[(0, 1), (1, 3)]).kl
    with pytest.raises(ValueError, match="layer 1 has 4 heads"):
        looks.intervene({"look": look.id, "ablate": ["1.4"]})
    with pytest.raises(ValueError, match="there is no intervention"):
        looks.intervene({"look": look.id})
    with pytest.raises(ValueError, match="an edge must be"):
        looks.intervene({"look": look.id, "mask": [["a", 0, 1, 2]]})


def test_a_model_with_nan_predictions_says_so(tmp_path):
    for part in ("norm", "blocks.0"):
        model = GPT(GPTConfig(vocab_size=len(WORDS), max_length=16, dim=32, layers=2, heads=4))
        with torch.no_grad():
            for parameter in model.get_submodule(part).parameters():
                parameter.fill_(float("nan"))
        model.extra_files["tokenizer.json"] = make_tokenizer()
        model.save(tmp_path / part)
        looks = LookStore(ModelStore(tmp_path / "none", (tmp_path / part,)))
        look = looks.look({"model": find_id(looks, part), "text": TEXT})
        text = json.loads(json.dumps([look_json(look), head_types_json(look)], allow_nan=False))[0]["predictions"]
        assert text["kind"] == "none" and "predictions are not numbers (NaN)" in text["why"]
        json.dumps(look_json(looks.intervene({"look": look.id, "ablate": ["1.0"]})), allow_nan=False)


def test_reproduce_lines_give_the_shown_weights(looks, capsys):
    text = "-5 degrees the cat"
    look = looks.look({"model": find_id(looks, "gpt"), "text": text})
    changed = looks.intervene({"look": look.id, "ablate": ["0.1"], "mask": [[1, 2, 3, 0]]})
    shown = reproduce(changed)
    known: dict[str, Any] = {}
    exec("\n".join([*shown["open"], *shown["intervene"], shown["effect"]]), known)
    assert torch.equal(known["trace"].weights(1, 2), changed.trace.weights(1, 2))
    assert not torch.equal(known["trace"].weights(1, 2), look.trace.weights(1, 2))
    assert "kl" in capsys.readouterr().out
    line = f"{shown['command']} --layer 1 --head 2 --json {shown['flags']} {shown['last']}"
    assert run(shlex.split(line)[1:]) == 0
    found = json.loads(capsys.readouterr().out)["shown"]["weights"]
    assert torch.allclose(torch.tensor(found), changed.trace.weights(1, 2), atol=1e-6)
    long = f"the {'x' * 500}"
    shown = reproduce(looks.look({"model": find_id(looks, "gpt"), "text": long}))
    assert shown["command"].endswith(' "$(cat text.txt)"') and shown["text"] == long


def test_a_model_beside_another_gets_the_target_of_the_other(tmp_path):
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        model = Seq2Seq(Seq2SeqConfig(vocab_size=len(WORDS), dim=32, encoder_layers=1, decoder_layers=1, heads=4))
        model.extra_files["tokenizer.json"] = make_tokenizer()
        model.extra_files["huggingface.json"] = b'{"bos_token_id": 9, "eos_token_id": 2}'
        model.save(tmp_path / name)
    looks = LookStore(ModelStore(tmp_path / "none", (tmp_path / "one", tmp_path / "two")))
    one = looks.look({"model": find_id(looks, "one"), "text": "the cat"})
    two = looks.look({"model": find_id(looks, "two"), "text": "the cat", "beside": one.id})
    assert one.target and two.target == [
        token for token in one.target if token != 9
    ]  # what begins a target is none of it
    assert reproduce(one)["target"] == repr(one.target) and "--target" not in reproduce(one)["command"]
    typed = looks.look({"model": find_id(looks, "two"), "text": "the cat", "target": "a mat", "beside": one.id})
    assert typed.input.target == "a mat" and reproduce(typed)["target"] == "'a mat'"


def test_a_text_with_unknown_characters_is_refused_with_one_sentence(looks):
    with pytest.raises(ValueError, match=r"the characters '2', '0', '4' .* are not in the tokenizer's vocabulary"):
        looks.look({"model": "qkv:shakespeare", "text": "Hello 2024"})


def test_bad_image_files_are_refused_with_one_sentence(looks):
    model = {"model": "qkv:digits"}
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + struct.pack(">II", 30000, 30000)
        + bytes([8, 0, 0, 0, 0])
    )
    refused = "not a readable image; expected one of PNG"
    for content, text in {b"GIF89a": refused, bomb + bytes(4): f"pixels|{refused}"}.items():
        with pytest.raises(ValueError, match=text):
            looks.look({**model, "file": base64.b64encode(content).decode()})
    with pytest.raises(ValueError, match="must be sent as base64"):
        looks.look({**model, "file": "***"})
    with pytest.raises(ValueError, match="drop an image"):
        looks.look(model)
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), 128, np.uint8)).save(file, "PNG")
    look = looks.look({**model, "file": base64.b64encode(file.getvalue()).decode(), "name": "../grey.png"})
    assert "probably no digit: nothing stands out" in look.prepared.notes[0] and look.input.name == "grey.png"


def test_model_store_loads_once_and_keeps_a_limited_number(tmp_path):
    paths = []
    for number in range(MAX_LOADED + 1):
        ViT(ViTConfig(image_size=8, patch_size=4, dim=16, layers=1, heads=2)).save(tmp_path / str(number))
        paths.append(tmp_path / str(number))
    store = ModelStore(tmp_path / "none", tuple(paths))
    ids = [source.id for source in store.sources() if source.origin == "folder"]
    found = []
    threads = [threading.Thread(target=lambda: found.append(store.get(ids[0]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(held) for held in found}) == 1
    for name in ids[1:]:
        store.get(name)
    assert store.get(ids[-1]) is store.get(ids[-1]) and store.get(ids[0]) is not found[0]
    with pytest.raises(NotFoundError, match="there is no model"):
        store.get("folder:none")
    old = store.get(ids[-1])
    shutil.rmtree(paths[-1])
    ViT(ViTConfig(image_size=8, patch_size=4, dim=32, layers=1, heads=2)).save(paths[-1])
    assert store.get(ids[-1]).model.config.dim == 32 and old.model.config.dim == 16


def test_a_sweep_lets_other_requests_use_the_model_between_two_heads(looks, monkeypatch):
    studio, turns = Studio(), []
    api = models.ModelsApi(studio)
    api.looks = looks
    look = looks.look({"model": find_id(looks, "gpt"), "text": TEXT})
    started, taken = threading.Event(), threading.Event()

    def other():
        started.wait(10)
        with look.loaded.lock:
            taken.set()

    def swept(model, inputs, progress):
        started.set()
        while not taken.is_set() and len(turns) < 5000:
            turns.append(progress(1, 2))
        raise ValueError("others had their turn" if taken.is_set() else "nobody had a turn")

    monkeypatch.setattr(models, "ablation_sweep", swept)
    thread = threading.Thread(target=other)
    thread.start()
    job = studio.jobs.get(api.sweep({"look": look.id})["job"])
    thread.join(60)
    with job.changed:
        job.changed.wait_for(lambda: job.state != "running", 60)
    assert job.error == "others had their turn"


def test_sample_texts_of_biographies_are_all_different():
    found = ModelStore(Path("no-runs"), ()).get("qkv:biographies")
    texts = list_samples(found)["texts"]
    assert len(set(texts)) == len(texts) == 4


def test_models_are_listed_with_the_kind_of_their_input():
    kinds = {source.id: source.facts.get("kind") for source in ModelStore(Path("no-runs"), ()).sources()}
    assert kinds["qkv:spoken-digits"] == "audio" and kinds["qkv:biographies"] == kinds["qkv:shakespeare"] == "text"
