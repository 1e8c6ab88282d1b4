"""The Models page in use: a recording, two models, rollout, zoom, scale and masked edges; numbers of the library."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TEXT, WORDS, cell_position, find_id, make_tokenizer, read_weight, wait_for_head

from qkv.checkpoints import bundled as shipped
from qkv.data.speech.wav import Audio, read_audio, write_wav
from qkv.interp import ablation_sweep, compare, intervene, measure_effect, prepare_input, rollout
from qkv.models import GPT, GPTConfig
from qkv.models.transcriber import ctc_greedy_decode
from qkv.studio.models.looks import LookStore
from qkv.studio.models.store import ModelStore

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SPOKEN = "qkv:spoken-digits"
LONG = " ".join(WORDS[1 + place * 7 % 9] for place in range(600))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Two GPTs of one size; the second's name is markup."""
    home = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("gpt", "<i>other")):
        torch.manual_seed(seed)
        model = GPT(GPTConfig(vocab_size=len(WORDS), max_length=700, dim=32, layers=2, heads=4, position="rope"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)  # attention that is far from even
        model.extra_files["tokenizer.json"] = make_tokenizer()
        model.save(home / name)
    return home


@pytest.fixture(scope="module")
def ids(folders) -> dict[str, str]:
    looks = LookStore(ModelStore(folders / "no-runs", tuple(folders / name for name in ("gpt", "<i>other"))))
    return {name: find_id(looks, name) for name in ("gpt", "<i>other")}


@pytest.fixture(scope="module")
def place(serving, folders):
    return serving(models=(folders / "gpt", folders / "<i>other"), runs=folders / "no-runs")


@pytest.fixture
def page(place, visit, ids) -> Any:
    """The first model on the text, its head 1.3 shown."""
    found = visit(place).go(f"models?model={ids['gpt']}&layer=1&head=3&query=8&key=4&text={TEXT}")
    found.set_default_timeout(120_000)
    wait_for_head(found, 1, 3)
    return found


def test_a_dropped_recording_is_played_and_its_transcript_is_aligned(place, visit):
    file = shipped.folder(SPOKEN) / "sample.wav"
    page = visit(place).go(f"models?model={SPOKEN}")
    page.get_by_test_id("transcript").wait_for()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("sample.wav", exact=True).wait_for()
    prepared = prepare_input(SPOKEN, str(file))
    with torch.no_grad():
        logits = prepared.model(prepared.inputs)
    words = [prepared.token(label) for label in ctc_greedy_decode(logits)[0]]
    expect(page.get_by_test_id("transcript")).to_have_text(f"transcript: {' '.join(words)}")
    player = page.get_by_label("The recording", exact=True)
    page.wait_for_function("() => document.querySelector('audio').readyState === 4")
    sound = read_audio(file)
    assert player.get_attribute("src").startswith("blob:")
    assert player.evaluate("each => each.duration") == pytest.approx(len(sound.samples) / sound.sample_rate, abs=0.01)
    line = page.get_by_test_id("recording")
    best = logits[0].argmax(-1).tolist()
    first = best.index(next(label for label in best if label))
    title = line.locator("svg text title").first.inner_html()
    assert title.startswith(f"{first * 0.04:.2f} to ")  # four frames of 10 ms are a token
    player.focus()
    page.keyboard.press("Space")
    page.wait_for_function("() => document.querySelector('audio').currentTime > 0")
    line.get_by_role("slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.get_by_test_id("weight").filter(has_text="query 1 “0.04 s”").wait_for()


def test_a_recording_of_noise_is_doubted_above_its_transcript(place, visit, tmp_path):
    noise = torch.randn(16_000, generator=torch.Generator().manual_seed(0)) / 8
    write_wav(tmp_path / "noise.wav", Audio(noise, 8000))
    page = visit(place).go(f"models?model={SPOKEN}")
    page.get_by_test_id("transcript").wait_for()
    page.locator("input[type=file]").set_input_files(tmp_path / "noise.wav")
    note = page.get_by_test_id("note")
    expect(note).to_contain_text("probably no speech")
    assert note.bounding_box()["y"] < page.get_by_test_id("transcript").bounding_box()["y"]


def test_comparing_two_models_shows_the_numbers_of_the_library(page, folders, ids):
    page.get_by_label("compare with").select_option(ids["<i>other"])
    card = page.get_by_test_id("comparison")
    card.get_by_text("best matching").wait_for()
    one, two = (prepare_input(folders / name, TEXT).trace() for name in ("gpt", "<i>other"))
    found = compare(one, two)
    assert card.locator("dd").all_inner_texts() == [
        f"{number:.4f}" for number in (found.mean, found.matched, found.table[1][3])
    ]
    assert page.locator("h2", has_text="<i>other").count() == 1  # text, never HTML
    assert page.get_by_test_id("map").count() == 2
    reproduce = page.get_by_test_id("reproduce")
    expect(reproduce).to_contain_text(f"--compare '{folders / '<i>other'}'")
    expect(reproduce).to_contain_text("print(qkv.interp.compare(trace, other.trace()))")
    page.get_by_test_id("map").first.focus()
    page.keyboard.press("x")
    prepared = prepare_input(folders / "gpt", TEXT)
    with intervene(prepared.model, mask_edges=[(1, 3, 8, 4)]):
        found = compare(prepared.trace(), two)
    numbers = [f"{number:.4f}" for number in (found.mean, found.matched, found.table[1][3])]
    expect(card.locator("dd")).to_have_text(numbers)  # what is shown is compared
    expect(reproduce).to_contain_text("with qkv.interp.intervene(prepared.model, **interventions):")


def test_a_head_that_the_second_model_lacks_is_named_and_replaced(place, visit):
    visitor = visit(place)
    page = visitor.go("models?model=qkv:shakespeare&beside=qkv:biographies&layer=3&head=1&text=To be")
    notice = page.get_by_text("Both models get the same input.")
    notice.wait_for(timeout=120_000)
    expect(notice).to_contain_text("biographies has no head 3.1: its head 1.1 is shown instead.", timeout=120_000)
    wait_for_head(page, 1, 1)  # of the second model
    assert "The same head" not in notice.inner_text()
    expect(page.get_by_test_id("comparison")).not_to_contain_text("comparing …", timeout=120_000)
    visitor.errors.clear()  # the server refused to compare two tokenizers, and the page says so


def test_the_rollout_is_reached_by_keys_and_shows_the_numbers_of_the_library(page, folders):
    page.locator('[data-head="-1.0"]').wait_for()  # it comes after the map
    page.locator('[data-head="1.3"]').focus()
    page.keyboard.press("ArrowDown")
    wait_for_head(page, -1, 0)
    found = rollout(prepare_input(folders / "gpt", TEXT).trace()).weights
    assert read_weight(page, 8, 2).endswith(f"{found[8, 2].item():.6f}")
    expect(page.get_by_test_id("reproduce")).to_contain_text("--rollout")


def test_a_link_restores_the_zoomed_window(page):
    page.get_by_test_id("map").press("+")
    page.wait_for_selector('[data-testid="map"][data-window="1.3 4,9 2,7"]')
    page.wait_for_url("**view=4.9.2.7**")
    page.reload()
    page.wait_for_selector('[data-testid="map"][data-window="1.3 4,9 2,7"]')
    page.evaluate("location.hash = location.hash.replace(/&text=[^&]*/, '&missing=a+long+text')")
    page.get_by_text("It was a long text; enter it again on the left.").wait_for()  # and no sample instead


def test_scale_and_a_masked_edge_by_keys_have_the_effect_of_the_library(page, folders):
    prepared = prepare_input(folders / "gpt", TEXT)
    own = prepared.trace().layers[1].scale
    page.get_by_label("Scale β as a multiple of the model's").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")  # a quarter of a doubling each
    turned = measure_effect(prepared.model, prepared.inputs, scale={(1, 3): 2 * own})
    expect(page.get_by_test_id("effect")).to_contain_text(f"{turned.kl:.6f} nats")
    for name in ("mean over positions", "at this position"):  # the two may differ either way
        expect(page.get_by_test_id("effect")).to_contain_text(f"KL divergence{',' * name.startswith('mean')} {name}")
    page.get_by_test_id("map").focus()
    page.keyboard.press("x")
    both = measure_effect(prepared.model, prepared.inputs, scale={(1, 3): 2 * own}, mask_edges=[(1, 3, 8, 4)])
    expect(page.get_by_test_id("effect")).to_contain_text(f"{both.kl:.6f} nats")
    expect(page.get_by_test_id("reproduce")).to_contain_text("--scale 1.3=x2 --mask-edge 1.3:8:4")
    chips = page.get_by_test_id("interventions").locator(".chip")
    expect(chips).to_have_text(["head 1.3: 8 → 4 masked ×", "head 1.3: β × 2 ×"])
    expect(page.get_by_test_id("types-before")).to_be_visible()  # head types stay those without the interventions
    page.get_by_role("button", name="maps before").click()
    expect(page.get_by_test_id("types-before")).to_have_count(0)
    page.get_by_role("button", name="undo all").click()
    expect(page.get_by_test_id("effect")).to_have_count(0)


def test_ablation_sweep_shows_the_numbers_of_the_library(page, folders):
    page.get_by_role("button", name="ablate each head in turn").click()
    prepared = prepare_input(folders / "gpt", TEXT)
    found = ablation_sweep(prepared.model, prepared.inputs)
    costs = sorted((cost for row in found.table for cost in row if cost is not None), reverse=True)
    listed = page.locator("ol li .number")
    expect(listed).to_have_text([f"{cost:.4f}" for cost in costs[:5]])


def test_a_long_text_is_pooled_and_zoomed_to_single_weights(place, visit, folders, ids):
    page = visit(place).go(f"models?model={ids['gpt']}&layer=1&head=2&query=420&key=300&text={LONG[:1500]}")
    page.set_default_timeout(120_000)
    wait_for_head(page, 1, 2)
    page.locator("textarea").fill(LONG)
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_selector('[data-testid="map"][data-step="2"]')
    weights = prepare_input(folders / "gpt", LONG).trace().weights(1, 2)
    largest = weights[500:502, 200:202].max().item()
    assert f"at most {largest:.6f}; zoom in" in read_weight(page, 500 // 2, 200 // 2)
    page.get_by_test_id("map").click(position=cell_position(page, 210, 150))  # query 420, key 300
    page.get_by_test_id("map").press("+")
    page.wait_for_selector('[data-testid="map"][data-step="1"]')
    page.mouse.move(0, 0)
    expect(page.get_by_test_id("weight")).to_contain_text(f"{weights[420, 300].item():.6f}")
