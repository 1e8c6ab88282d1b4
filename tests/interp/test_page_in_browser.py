"""The exported page in chromium: it shows the weights of the trace, by pointer and by keyboard, without a network."""

import re
from pathlib import Path

import pytest
import torch
from browser import OpenPage, chromium

import qkv
from qkv.interp import Trace
from qkv.interp.head_types import HEAD_TYPES
from qkv.interp.viewer import PatchImage, Scene, add_map, make_scene, render_html

WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "saw", "the", "cat", "sit", "on", "a", "chair"]
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


def text_trace() -> Trace:
    torch.manual_seed(1)
    model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=3, heads=4, kv_heads=2, position="rope"))
    for parameter in model.parameters():
        parameter.data.mul_(4)  # so that heads attend to something
    with torch.no_grad(), qkv.interp.record(model.eval()) as trace:
        model(torch.randint(0, 65, (1, len(WORDS))))
    return trace


def write(folder: Path, scene: Scene, *, full: bool = False) -> Path:
    file = folder / "look.html"
    file.write_text(render_html(scene, full=full), encoding="utf-8")
    return file


def types(trace: Trace) -> list:
    return [[(("previous", 0.9),) if head == 1 else () for head in range(layer.heads)] for layer in trace.layers]


def test_pointing_at_a_weight_shows_all_its_digits(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, make_scene(trace, WORDS, title="a text", types=types(trace)))
    opened = OpenPage(browser, file, address="#panel=1&head=2")
    weights = trace.weights(1, 2)
    for query, key in ((15, 3), (0, 0), (4, 9), (9, 9)):
        assert opened.hover(query, key) == f"{weights[query, key]:.6f}"
    assert "previous" in opened.text("types")
    opened.check_offline(file)


def test_the_key_with_the_largest_weight_is_selected_until_another_is_chosen(browser, tmp_path):
    trace = text_trace()
    opened = OpenPage(browser, write(tmp_path, make_scene(trace, WORDS)), address="#panel=1&head=2&query=9")
    largest = int(trace.weights(1, 2)[9].argmax())
    assert largest > 0
    opened.page.get_by_text(f"attends to key {largest} “{WORDS[largest]}”").wait_for()


def test_the_legend_counts_the_letters_of_the_grid_and_selects_those_heads(browser, tmp_path):
    trace = text_trace()
    found = [(("previous-token", 0.9), ("positional", 0.8)), (("positional", 0.7),), (), (("offset", 0.6),)]
    file = write(tmp_path, make_scene(trace, WORDS, types=[found, [*found[:3], ()], [()] * 4]))
    opened = OpenPage(browser, file)
    badges = opened.page.locator("[data-head] .letter").all_inner_texts()
    legend = [row.split() for row in opened.page.locator("[data-testid=types] button").all_inner_texts()]
    assert {letter: int(count) for letter, _, count in legend} == {letter: badges.count(letter) for letter in badges}
    assert {name: letter for letter, name, _ in legend} == {"previous-token": "P", "positional": "T", "offset": "O"}
    opened.page.get_by_role("button", name="T positional").click()
    assert opened.page.locator("[data-head]:not(.dimmed) .letter").all_inner_texts() == ["T", "T"]


def test_every_head_type_has_a_letter_of_its_own_on_the_pages():
    code = (Path(__file__).parents[2] / "web" / "src" / "viewer" / "heads.ts").read_text(encoding="utf-8")
    letters = dict(re.findall(r'"([a-z-]+)": "([A-Z])"', code))
    assert list(letters) == list(HEAD_TYPES) and len(set(letters.values())) == len(letters)


def test_a_head_is_selected_by_click_and_the_address_restores_it(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, make_scene(trace, WORDS))
    opened = OpenPage(browser, file)
    opened.page.click('[data-head="2.3"]')
    opened.shows("name", "Layer 2 · head 3")
    opened.page.click(".strip .token >> nth=7")
    opened.shows("query", "7 “the”")
    address = opened.page.evaluate("location.hash")
    again = OpenPage(browser, file, address=address)
    assert again.text("name").startswith("Layer 2 · head 3")
    assert "7 “the”" in again.text("query")
    best = trace.top(2, 3, 7)
    shown = again.page.locator("[data-testid=lines] .weight").all_text_contents()
    expected = [f"{weight:.4f}" for _, weight in sorted(best) if weight >= 5e-7]
    assert shown == expected
    again.check_offline(file)


def test_the_keyboard_reaches_every_head_and_every_weight(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, make_scene(trace, WORDS))
    opened = OpenPage(browser, file, address="#query=5&key=2")
    opened.keys("ArrowDown", "ArrowRight", "ArrowRight")
    opened.shows("name", "Layer 1 · head 2")
    opened.keys("ArrowUp", "ArrowUp")
    opened.shows("name", "Layer 2 · head 2")
    opened.shows_head(2, 2)
    opened.keys("Enter", "ArrowDown", "ArrowRight")
    opened.shows("weight", f"{trace.weights(2, 2)[6, 3]:.6f}")
    assert "query 6 “and”" in opened.text("weight")
    opened.keys("Escape", "ArrowLeft")
    opened.shows("name", "Layer 2 · head 1")
    opened.keys("?")
    opened.page.get_by_test_id("help").wait_for(state="visible")
    opened.keys("Escape")
    opened.page.get_by_test_id("help").wait_for(state="hidden")
    opened.check_offline(file)


@pytest.mark.long
def test_zoom_by_key_and_wheel_and_pan_by_drag_show_the_right_weights(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, make_scene(trace, WORDS))
    opened = OpenPage(browser, file, address="#panel=1&head=0")
    whole = opened.cell()
    opened.hover(10, 4)
    opened.page.mouse.wheel(0, -200)
    opened.page.wait_for_function("cell => document.querySelector('[data-testid=map]').dataset.cell > cell", arg=whole)
    wheeled = opened.cell()
    opened.hover(10, 4)
    opened.keys("+")
    opened.page.wait_for_function("() => location.hash.includes('view=')")
    assert opened.cell() >= wheeled > whole
    assert opened.hover(10, 4) == f"{trace.weights(1, 0)[10, 4]:.6f}"
    before = opened.page.evaluate("location.hash")
    opened.page.mouse.down()
    opened.page.mouse.move(700, 600, steps=5)
    opened.page.mouse.up()
    opened.page.wait_for_function("hash => location.hash !== hash", arg=before)  # dragging moved the window
    opened.keys("0")
    opened.page.wait_for_function("cell => document.querySelector('[data-testid=map]').dataset.cell == cell", arg=whole)
    opened.check_offline(file)


@pytest.mark.long
def test_search_finds_every_token_and_enter_selects_the_next(browser, tmp_path):
    file = write(tmp_path, make_scene(text_trace(), WORDS))
    opened = OpenPage(browser, file, address="#query=2")
    opened.keys("/", "c", "a", "t")
    opened.shows("found", "2 found")
    opened.keys("Enter")
    opened.shows("query", "Query 11 “cat”")
    opened.keys("Enter")
    opened.shows("query", "Query 1 “cat”")
    assert opened.page.locator(".strip .hit").count() == 2
    opened.keys("Escape")
    opened.page.locator(".strip .hit").first.wait_for(state="detached")
    assert opened.text("found") == ""
    opened.check_offline(file)


@pytest.mark.long
def test_the_theme_follows_the_system_and_can_be_switched(browser, tmp_path):
    file = write(tmp_path, make_scene(text_trace(), WORDS))
    opened = OpenPage(browser, file, dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(paper) == "rgb(21, 24, 28)"
    opened.keys("d")
    opened.page.wait_for_function(f"() => {paper} === 'rgb(253, 253, 251)'")
    opened.check_offline(file)


def test_hostile_texts_stay_text(browser, tmp_path):
    tokens = [HOSTILE, "<b>bold</b>", "&amp;", "\u2028", "\ud800", *WORDS[5:]]
    scene = make_scene(text_trace(), tokens, title=HOSTILE, facts=[("model", HOSTILE), (HOSTILE, "x")])
    file = write(tmp_path, scene)
    opened = OpenPage(browser, file, address="#query=1")
    opened.hover(3, 0)
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.title() == HOSTILE
    assert opened.page.locator("h1").inner_text() == HOSTILE
    assert "<b>bold</b>" in opened.text("query")
    assert opened.page.locator("img").count() == 0
    opened.check_offline(file)


@pytest.mark.long
def test_cross_attention_has_the_tokens_of_both_sides(browser, tmp_path):
    torch.manual_seed(2)
    model = qkv.models.Seq2Seq(qkv.models.Seq2SeqConfig(vocab_size=65, dim=32, heads=4, dropout=0.0)).eval()
    with torch.no_grad(), qkv.interp.record(model) as trace:
        model(torch.randint(0, 65, (1, 9)), torch.randint(0, 65, (1, 6)))
    words = {"source": [f"s{i}" for i in range(9)], "target": [f"t{i}" for i in range(6)]}
    scene = make_scene(trace, words)
    place, panel = next((i, p) for i, p in enumerate(scene.panels) if (p.layer.queries, p.layer.keys) == (6, 9))
    file = write(tmp_path, scene)
    opened = OpenPage(browser, file, address=f"#panel={place}&head=1")
    assert opened.text("name").startswith("Target → source, layer 0 · head 1")
    assert opened.hover(4, 8) == f"{trace.weights(panel.place, 1)[4, 8]:.6f}"
    assert "4 “t4”" in opened.text("tip") and "8 “s8”" in opened.text("tip")
    opened.check_offline(file)


def test_an_image_is_brightest_where_its_query_attends_most(browser, tmp_path):
    torch.manual_seed(3)
    model = qkv.models.ViT(qkv.models.ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    with torch.no_grad(), qkv.interp.record(model) as trace:
        model(torch.randn(1, 3, 16, 16))
    black = torch.zeros(16, 16, 3, dtype=torch.uint8)
    names = ["class", *(f"{row},{column}" for row in range(4) for column in range(4))]
    scene = make_scene(trace, {"patches": names}, image=PatchImage(black, 4, 4, 1))
    scene = add_map(scene, "rollout", trace.weights(1).mean(0) @ trace.weights(0).mean(0))
    file = write(tmp_path, scene)
    opened = OpenPage(browser, file, address="#panel=1&head=1")
    opened.shows("overlay-text", "“class”")
    assert brightest(opened) == trace.weights(1, 1)[0, 1:].argmax()
    opened.page.hover("[data-token='7']")  # patch (1, 2)
    opened.shows("overlay-text", "“1,2”")
    assert brightest(opened) == trace.weights(1, 1)[7, 1:].argmax()
    opened.page.mouse.move(5, 5)
    opened.page.click("[data-overlay='2']")
    opened.shows("overlay-text", "rollout")
    assert brightest(opened) == (trace.weights(1).mean(0) @ trace.weights(0).mean(0))[0, 1:].argmax()
    opened.check_offline(file)


def brightest(opened: OpenPage) -> int:
    """The patch of the overlay with the brightest color."""
    fills = opened.page.locator("[data-testid=overlay] rect").evaluate_all(
        "all => all.map((each) => each.getAttribute('fill'))"
    )
    sums = [sum(int(part) for part in re.findall(r"\d+", fill)) for fill in fills]
    return sums.index(max(sums))


def test_a_long_text_shows_its_largest_weights_exactly_and_bounds_elsewhere(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.content.FOUR_DECIMALS", 0)
    monkeypatch.setattr("qkv.interp.viewer.content.SIX_DECIMALS", 0)
    with qkv.interp.record() as trace:
        qkv.attention(*torch.randn(3, 1, 2, 300, 16), scale=0.7, causal=True)
    file = write(tmp_path, make_scene(trace))
    opened = OpenPage(browser, file, address="#head=1&view=180.240.100.160")
    weights = trace.weights(0, 1)
    for key, weight in trace.top(0, 1, 200)[:8]:
        if 100 <= key < 150:
            assert opened.hover(200, key) == f"{weight:.5f}"
    tops = {key for key, _ in trace.top(0, 1, 200)}
    other = next(key for key in range(101, 140) if key not in tops)
    shown = opened.hover(200, other)
    assert shown.startswith("≤ ") and float(shown[2:]) >= float(weights[200, other]) - 1e-5
    opened.check_offline(file)


def test_a_full_page_computes_weights_from_queries_and_keys(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.content.FOUR_DECIMALS", 0)
    monkeypatch.setattr("qkv.interp.viewer.content.SIX_DECIMALS", 0)
    with qkv.interp.record() as trace:
        qkv.attention(*torch.randn(3, 1, 2, 300, 16), mask=qkv.masks.sliding_window(300, 300, left=60, right=0))
    file = write(tmp_path, make_scene(trace), full=True)
    opened = OpenPage(browser, file, address="#head=1&view=170.230.140.210")
    weights = trace.weights(0, 1)
    for query, key in ((200, 160), (195, 150), (190, 189), (200, 141), (185, 200)):
        assert abs(float(opened.hover(query, key)) - float(weights[query, key])) < 2e-4
    opened.check_offline(file)
