"""The Models room by hand: a recording, two models, the rollout, a zoom, β and cuts by keys; the library's digits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TEXT, WORDS, at, named, place_of, reader, shows

from qkv.checkpoints import bundled as shipped
from qkv.data.wav import read_sound
from qkv.interp import change, compare, effect, rollout, subject, sweep
from qkv.interp.ablation import beta_of
from qkv.models import GPT, GPTConfig
from qkv.models.transcriber import read_out
from qkv.studio.models.looks import Looks
from qkv.studio.models.shelf import Shelf

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
        model.files["tokenizer.json"] = reader()
        model.save(home / name)
    return home


@pytest.fixture(scope="module")
def ids(folders) -> dict[str, str]:
    looks = Looks(Shelf(folders / "no-runs", tuple(folders / name for name in ("gpt", "<i>other"))))
    return {name: named(looks, name) for name in ("gpt", "<i>other")}


@pytest.fixture(scope="module")
def place(serving, folders):
    return serving(models=(folders / "gpt", folders / "<i>other"), runs=folders / "no-runs")


@pytest.fixture
def page(place, visit, ids) -> Any:
    """The first model on the text, its head 1.3 shown."""
    found = visit(place).go(f"models?model={ids['gpt']}&layer=1&head=3&query=8&key=4&text={TEXT}")
    found.set_default_timeout(20_000)
    shows(found, 1, 3)
    return found


def test_a_recording_that_is_dropped_is_played_and_its_words_stand_where_they_were_said(place, visit):
    file = shipped.place(SPOKEN) / "sample.wav"
    page = visit(place).go(f"models?model={SPOKEN}")
    page.get_by_test_id("heard").wait_for()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("sample.wav", exact=True).wait_for()
    seen = subject.open(SPOKEN, str(file))
    with torch.no_grad():
        logits = seen.model(seen.inputs)
    words = [seen.token(label) for label in read_out(logits)[0]]
    expect(page.get_by_test_id("heard")).to_have_text(f"heard: {' '.join(words)}")
    player = page.get_by_label("The recording", exact=True)
    page.wait_for_function("() => document.querySelector('audio').readyState === 4")
    sound = read_sound(file)
    assert player.get_attribute("src").startswith("blob:")
    assert player.evaluate("each => each.duration") == pytest.approx(len(sound.samples) / sound.rate, abs=0.01)
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


def test_two_models_are_compared_as_the_library_compares_them(page, folders, ids):
    page.get_by_label("beside it").select_option(ids["<i>other"])
    card = page.get_by_test_id("comparison")
    card.get_by_text("best matched").wait_for()
    one, two = (subject.open(folders / name, TEXT).trace() for name in ("gpt", "<i>other"))
    found = compare(one, two)
    assert card.locator("dd").all_inner_texts() == [
        f"{number:.4f}" for number in (found.mean, found.matched, found.table[1][3])
    ]
    assert page.locator("h2", has_text="<i>other").count() == 1  # text, never HTML
    assert page.get_by_test_id("map").count() == 2
    reproduce = page.get_by_test_id("reproduce")
    expect(reproduce).to_contain_text(f"--against '{folders / '<i>other'}'")
    expect(reproduce).to_contain_text("print(qkv.interp.compare(trace, other.trace()))")
    page.get_by_test_id("map").first.focus()
    page.keyboard.press("x")
    seen = subject.open(folders / "gpt", TEXT)
    with change(seen.model, cut=[(1, 3, 8, 4)]):
        found = compare(seen.trace(), two)
    numbers = [f"{number:.4f}" for number in (found.mean, found.matched, found.table[1][3])]
    expect(card.locator("dd")).to_have_text(numbers)  # what is shown is compared
    expect(reproduce).to_contain_text("with qkv.interp.change(seen.model, **changes):")


def test_the_rollout_is_reached_by_the_keys_and_shows_the_librarys_numbers(page, folders):
    page.locator('[data-head="rollout"]').wait_for()  # it comes after the map
    page.locator('[data-head="1.3"]').focus()
    page.keyboard.press("ArrowDown")
    shows(page, -1, 0)
    found = rollout(subject.open(folders / "gpt", TEXT).trace()).weights
    assert at(page, 8, 2).endswith(f"{found[8, 2].item():.6f}")
    expect(page.get_by_test_id("reproduce")).to_contain_text("--rollout")


def test_a_link_restores_the_window_that_was_zoomed_to(page):
    page.get_by_test_id("map").press("+")
    page.wait_for_selector('[data-testid="map"][data-window="1.3 4,9 2,7"]')
    page.wait_for_url("**view=4.9.2.7**")
    page.reload()
    page.wait_for_selector('[data-testid="map"][data-window="1.3 4,9 2,7"]')
    page.evaluate("location.hash = location.hash.replace(/&text=[^&]*/, '&lost=a+long+text')")
    page.get_by_text("It was a long text; give it once more on the left.").wait_for()  # and no sample in its place


def test_beta_and_a_cut_by_the_keys_change_the_answer_as_the_library_says(page, folders):
    seen = subject.open(folders / "gpt", TEXT)
    own = beta_of(seen.trace().layers[1])
    page.get_by_label("β as a multiple of its own").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")  # a quarter of a doubling each
    turned = effect(seen.model, seen.inputs, beta={(1, 3): 2 * own})
    expect(page.get_by_test_id("effect")).to_contain_text(f"{turned.kl:.6f} nats")
    page.get_by_test_id("map").focus()
    page.keyboard.press("x")
    both = effect(seen.model, seen.inputs, beta={(1, 3): 2 * own}, cut=[(1, 3, 8, 4)])
    expect(page.get_by_test_id("effect")).to_contain_text(f"{both.kl:.6f} nats")
    expect(page.get_by_test_id("reproduce")).to_contain_text("--beta 1.3=x2 --cut 1.3:8:4")
    page.get_by_role("button", name="undo all").click()
    expect(page.get_by_test_id("effect")).to_have_count(0)


def test_which_heads_matter_is_told_with_the_numbers_of_the_sweep(page, folders):
    page.get_by_role("button", name="silence each in turn").click()
    seen = subject.open(folders / "gpt", TEXT)
    found = sweep(seen.model, seen.inputs)
    costs = sorted((cost for row in found.table for cost in row if cost is not None), reverse=True)
    listed = page.locator("ol li .number")
    expect(listed).to_have_text([f"{cost:.4f}" for cost in costs[:5]])


def test_a_long_text_is_pooled_and_zoomed_to_its_own_weights(place, visit, folders, ids):
    page = visit(place).go(f"models?model={ids['gpt']}&layer=1&head=2&query=420&key=300&text={LONG[:1500]}")
    page.set_default_timeout(30_000)
    shows(page, 1, 2)
    page.locator("textarea").fill(LONG)
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_selector('[data-testid="map"][data-step="2"]')
    weights = subject.open(folders / "gpt", LONG).trace().weights(1, 2)
    largest = weights[500:502, 200:202].max().item()
    assert f"at most {largest:.6f}; zoom in" in at(page, 500 // 2, 200 // 2)
    page.get_by_test_id("map").click(position=place_of(page, 210, 150))  # query 420, key 300
    page.get_by_test_id("map").press("+")
    page.wait_for_selector('[data-testid="map"][data-step="1"]')
    page.mouse.move(0, 0)
    expect(page.get_by_test_id("weight")).to_contain_text(f"{weights[420, 300].item():.6f}")
