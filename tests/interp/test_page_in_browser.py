"""The offline page in chromium: it shows what the trace holds, by pointer and by keyboard, without a network."""

import math
from pathlib import Path

import pytest
import torch
from browser import Opened, chromium

import qkv
from qkv.interp import Trace
from qkv.interp.viewer import Picture, Scene, html, scene_of, with_map

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
    file.write_text(html(scene, full=full), encoding="utf-8")
    return file


def kinds(trace: Trace) -> list:
    return [[(("previous", 0.9),) if head == 1 else () for head in range(layer.heads)] for layer in trace.layers]


def test_pointing_at_a_weight_shows_it_to_every_digit(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, scene_of(trace, WORDS, title="a text", types=kinds(trace)))
    opened = Opened(browser, file, address="#panel=1&head=2")
    weights = trace.weights(1, 2)
    for query, key in ((15, 3), (0, 0), (4, 9), (9, 9)):
        assert opened.hover(query, key) == f"{weights[query, key]:.6f}"
    assert "previous" in opened.text("#kinds")
    opened.sound(file)


def test_a_head_is_chosen_by_click_and_the_address_brings_it_back(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, scene_of(trace, WORDS))
    opened = Opened(browser, file)
    opened.page.click("#cell-2-3")
    assert opened.text("#name").startswith("Layer 2 · head 3")
    opened.page.click("#texts .word >> nth=7")
    assert "7 “the”" in opened.text("#asked")
    address = opened.page.evaluate("location.hash")
    again = Opened(browser, file, address=address)
    assert again.text("#name").startswith("Layer 2 · head 3")
    assert "7 “the”" in again.text("#asked")
    best = trace.top(2, 3, 7)
    shown = again.page.locator("#lines .weight").all_text_contents()
    expected = [f"{weight:.4f}" for _, weight in sorted(best) if weight >= 5e-7]
    assert shown == expected
    again.sound(file)


def test_the_keyboard_reaches_every_head_and_every_weight(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, scene_of(trace, WORDS))
    opened = Opened(browser, file, address="#query=5&key=2")
    opened.keys("ArrowDown", "ArrowRight", "ArrowRight")
    assert opened.text("#name").startswith("Layer 1 · head 2")
    opened.keys("ArrowUp", "ArrowUp")
    assert opened.text("#name").startswith("Layer 2 · head 2")
    opened.keys("Enter", "ArrowDown", "ArrowRight")
    assert opened.text("#readout").endswith(f"{trace.weights(2, 2)[6, 3]:.6f}")
    opened.keys("Escape", "ArrowLeft")
    assert opened.text("#name").startswith("Layer 2 · head 1")
    opened.keys("?")
    assert opened.page.locator("#help").is_visible()
    opened.keys("Escape")
    assert not opened.page.locator("#help").is_visible()
    opened.sound(file)


def test_zoom_by_key_wheel_and_drag_keeps_the_weights_where_they_are(browser, tmp_path):
    trace = text_trace()
    file = write(tmp_path, scene_of(trace, WORDS))
    opened = Opened(browser, file, address="#panel=1&head=0")
    whole = float(opened.page.evaluate("document.getElementById('stage').dataset.cell"))
    opened.hover(10, 4)
    opened.page.mouse.wheel(0, -200)
    opened.keys("+")
    near = float(opened.page.evaluate("document.getElementById('stage').dataset.cell"))
    assert near > 1.2 * whole or math.isclose(near, 44)
    assert opened.hover(10, 4) == f"{trace.weights(1, 0)[10, 4]:.6f}"
    opened.page.mouse.down()
    opened.page.mouse.move(700, 300, steps=3)
    opened.page.mouse.up()
    opened.keys("0")
    assert float(opened.page.evaluate("document.getElementById('stage').dataset.cell")) == whole
    opened.sound(file)


def test_search_finds_every_token_and_enter_goes_to_the_next(browser, tmp_path):
    file = write(tmp_path, scene_of(text_trace(), WORDS))
    opened = Opened(browser, file, address="#query=2")
    opened.keys("/", "c", "a", "t")
    assert opened.text("#found") == "2 found"
    opened.keys("Enter")
    assert "11 “cat”" in opened.text("#asked")
    opened.keys("Enter")
    assert "1 “cat”" in opened.text("#asked")
    assert opened.page.locator("#texts .found").count() == 2
    opened.keys("Escape")
    assert opened.text("#found") == ""
    opened.sound(file)


def test_dark_is_dark_and_can_be_switched(browser, tmp_path):
    file = write(tmp_path, scene_of(text_trace(), WORDS))
    opened = Opened(browser, file, dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(paper) == "rgb(21, 24, 28)"
    opened.keys("d")
    assert opened.page.evaluate(paper) == "rgb(253, 253, 251)"
    opened.sound(file)


def test_no_text_can_run_or_leave_its_place(browser, tmp_path):
    tokens = [HOSTILE, "<b>bold</b>", "&amp;", "\u2028", "\ud800", *WORDS[5:]]
    scene = scene_of(text_trace(), tokens, title=HOSTILE, facts=[("model", HOSTILE), (HOSTILE, "x")])
    file = write(tmp_path, scene)
    opened = Opened(browser, file, address="#query=1")
    opened.hover(3, 0)
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.title() == HOSTILE
    assert opened.text("h1") == HOSTILE
    assert "<b>bold</b>" in opened.text("#asked")
    assert opened.page.locator("img").count() == 0
    opened.sound(file)


def test_cross_attention_has_the_words_of_both_sides(browser, tmp_path):
    torch.manual_seed(2)
    model = qkv.models.Seq2Seq(qkv.models.Seq2SeqConfig(vocab_size=65, dim=32, heads=4, dropout=0.0)).eval()
    with torch.no_grad(), qkv.interp.record(model) as trace:
        model(torch.randint(0, 65, (1, 9)), torch.randint(0, 65, (1, 6)))
    words = {"source": [f"s{i}" for i in range(9)], "target": [f"t{i}" for i in range(6)]}
    scene = scene_of(trace, words)
    place, panel = next((i, p) for i, p in enumerate(scene.panels) if (p.layer.queries, p.layer.keys) == (6, 9))
    file = write(tmp_path, scene)
    opened = Opened(browser, file, address=f"#panel={place}&head=1")
    assert opened.text("#name").startswith("Target → source, layer 0 · head 1")
    assert opened.hover(4, 8) == f"{trace.weights(panel.place, 1)[4, 8]:.6f}"
    assert "t4" in opened.text("#tip .query") and "s8" in opened.text("#tip .key")
    opened.sound(file)


def test_a_picture_is_brightest_where_its_query_attends_most(browser, tmp_path):
    torch.manual_seed(3)
    model = qkv.models.ViT(qkv.models.ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    with torch.no_grad(), qkv.interp.record(model) as trace:
        model(torch.randn(1, 3, 16, 16))
    black = torch.zeros(16, 16, 3, dtype=torch.uint8)
    names = ["class", *(f"{row},{column}" for row in range(4) for column in range(4))]
    scene = scene_of(trace, {"patches": names}, picture=Picture(black, 4, 4, 1))
    scene = with_map(scene, "rollout", trace.weights(1).mean(0) @ trace.weights(0).mean(0))
    file = write(tmp_path, scene)
    opened = Opened(browser, file, address="#panel=1&head=1")
    assert "class" in opened.text("#pictured")
    assert brightest(opened) == trace.weights(1, 1)[0, 1:].argmax()
    box = opened.page.locator("#photo").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)  # patch (1, 2)
    assert "“1,2”" in opened.text("#pictured")
    assert brightest(opened) == trace.weights(1, 1)[7, 1:].argmax()
    opened.page.mouse.move(5, 5)
    opened.page.click("[data-mode='2']")
    assert brightest(opened) == (trace.weights(1).mean(0) @ trace.weights(0).mean(0))[0, 1:].argmax()
    opened.sound(file)


def brightest(opened: Opened) -> int:
    """The patch whose middle is brightest on the picture, among 4 × 4 with a light frame where one is pointed at."""
    sums = opened.page.evaluate(
        """() => {
          const canvas = document.getElementById("photo");
          const copy = new OffscreenCanvas(canvas.width, canvas.height);
          const context = copy.getContext("2d", { willReadFrequently: true });
          context.drawImage(canvas, 0, 0);
          return Array.from({ length: 16 }, (_, patch) => {
            const middle = [(patch % 4) + 0.5, Math.floor(patch / 4) + 0.5];
            const [x, y] = middle.map((at) => Math.round((at * canvas.width) / 4));
            return [...context.getImageData(x, y, 1, 1).data.slice(0, 3)].reduce((a, b) => a + b);
          });
        }"""
    )
    return sums.index(max(sums))


def test_a_long_text_keeps_exact_tops_and_says_at_most_elsewhere(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.content.MOST", 0)
    monkeypatch.setattr("qkv.interp.viewer.content.WHOLE", 0)
    with qkv.interp.record() as trace:
        qkv.attention(*torch.randn(3, 1, 2, 300, 16), scale=0.7, causal=True)
    file = write(tmp_path, scene_of(trace))
    opened = Opened(browser, file, address="#head=1&zoom=5&x=100&y=180")
    weights = trace.weights(0, 1)
    for key, weight in trace.top(0, 1, 200)[:8]:
        if 100 <= key < 150:
            assert opened.hover(200, key) == f"{weight:.5f}"
    tops = {key for key, _ in trace.top(0, 1, 200)}
    other = next(key for key in range(101, 140) if key not in tops)
    shown = opened.hover(200, other)
    assert shown.startswith("≤ ") and float(shown[2:]) >= float(weights[200, other]) - 1e-5
    opened.sound(file)


def test_a_full_page_computes_the_weights_that_it_does_not_hold(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.content.MOST", 0)
    monkeypatch.setattr("qkv.interp.viewer.content.WHOLE", 0)
    with qkv.interp.record() as trace:
        qkv.attention(*torch.randn(3, 1, 2, 300, 16), mask=qkv.masks.sliding_window(300, 300, left=60, right=0))
    file = write(tmp_path, scene_of(trace), full=True)
    opened = Opened(browser, file, address="#head=1&zoom=4&x=140&y=170")
    opened.page.wait_for_function("!document.querySelector('#readout b').textContent.includes('≤')")
    weights = trace.weights(0, 1)
    for query, key in ((200, 160), (195, 150), (190, 189), (200, 141), (185, 200)):
        assert abs(float(opened.hover(query, key)) - float(weights[query, key])) < 2e-4
    opened.sound(file)
