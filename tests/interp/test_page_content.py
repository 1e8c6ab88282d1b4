"""The exported page: its content and size, PNG figures, notebooks."""

import io
import re
import sys
import types
from html import unescape

import pytest
import torch
from browser import OpenPage, chromium
from PIL import Image

import qkv
from qkv.interp import Trace
from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights
from qkv.interp.viewer import PatchImage, add_map, make_scene, render_html, widget
from qkv.interp.viewer.content import summarize_head
from qkv.interp.viewer.png import draw_head, draw_heads, draw_overlay, draw_table


def noise(layers: int, heads: int, tokens: int, **options) -> Trace:
    """A trace of random queries and keys, whose weights are as varied as weights can be."""
    with qkv.interp.record() as trace:
        for _ in range(layers):
            q, k = torch.randn(2, 1, heads, tokens, 64)
            qkv.attention(q, k, k, **{"scale": 0.4, **options})
    return trace


def test_render_html_of_144_heads_and_512_tokens_stays_small():
    scene = make_scene(noise(12, 12, 512), [f"token {i}" for i in range(512)])
    assert len(render_html(scene).encode()) < 5e6
    assert len(render_html(scene, full=True).encode()) < 30e6


def test_the_exported_page_opens_on_the_most_informative_head(tmp_path):
    types = [[(("uniform", 0.9),), (("attention-sink", 1.0),)], [(("mixed", 0.0),), (("induction", 0.6),)]]
    file = tmp_path / "page.html"
    file.write_text(render_html(make_scene(noise(2, 2, 9, causal=True), types=types)), encoding="utf-8")
    with chromium() as browser:
        OpenPage(browser, file).shows_head(1, 1)


def test_the_exported_page_of_uniform_heads_opens_on_the_sharpest():
    with qkv.interp.record() as trace:
        for sharpness in ([0.1, 0.2], [0.3, 9.0], [0.1, 0.1]):
            q, k = torch.randn(2, 1, 2, 9, 16)
            qkv.attention(q * torch.tensor(sharpness)[:, None, None], k, k)
    for best in ([(("uniform", 0.9),), (("uniform", 0.8),)], [(), ()]):
        page = render_html(make_scene(trace, types=[best] * 3))
        assert '"first":[1,1]' in page


def test_summarize_head_equals_the_statistics_of_the_trace():
    trace = noise(1, 2, 150, causal=True)
    found = summarize_head(trace.layer(0), 1, size=64)
    assert torch.equal(found.map, trace.map(0, 1, 64))
    assert found.entropy == pytest.approx(float(trace.entropy(0, 1).mean()), rel=1e-5)
    assert found.distance == pytest.approx(float(trace.distance(0, 1).mean()), rel=1e-5)
    assert found.first == pytest.approx(float(trace.first_share(0, 1).mean()), rel=1e-5)
    for query in (0, 3, 77, 149):
        expected = trace.top(0, 1, query)
        assert found.weights[query].tolist() == pytest.approx([weight for _, weight in expected], rel=1e-4)


def test_render_html_refers_to_nothing_outside_the_file():
    page = render_html(make_scene(noise(1, 1, 5)))
    names = re.findall(r"\w+://[\w./-]*", page)
    fetched = [name for name in names if not name.startswith(("http://www.w3.org/", "https://svelte.dev/e/"))]
    assert fetched == []  # names of XML languages, and addresses in the texts of errors, are not fetched
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_trace_repr_html_shows_the_page_in_a_notebook(tmp_path):
    trace = noise(2, 3, 9, causal=True)
    shown = trace._repr_html_()
    assert shown is not None and shown.count("<iframe") == 1 and "<script" not in shown
    assert unescape(shown.split('srcdoc="')[1].split('"')[0]) == render_html(make_scene(trace))
    assert Trace()._repr_html_() is None
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{shown}", encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page()
        messages: list[str] = []
        page.on("console", lambda said: messages.append(said.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(file.as_uri())
        inside = page.frame_locator("iframe")
        inside.locator("body[data-ready]").wait_for(timeout=60_000)
        inside.locator('[data-head="1.2"]').click()
        inside.get_by_test_id("name").filter(has_text="Layer 1 · head 2").wait_for()
        assert messages == []


def test_widget_names_its_missing_package_or_holds_the_page(monkeypatch):
    trace = noise(1, 1, 4)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ValueError, match="anywidget"):
        widget(trace)
    stand_in = types.ModuleType("anywidget")
    stand_in.AnyWidget = type("AnyWidget", (), {"__init__": lambda self, **fields: self.__dict__.update(fields)})
    traits = types.ModuleType("traitlets")
    trait = type("Trait", (), {"__init__": lambda self, *given: None, "tag": lambda self, **options: None})
    traits.Unicode = traits.Int = traits.Dict = trait
    monkeypatch.setitem(sys.modules, "anywidget", stand_in)
    monkeypatch.setitem(sys.modules, "traitlets", traits)
    assert widget(trace).page == render_html(make_scene(trace))


def pixels(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def test_draw_head_uses_the_ends_of_the_color_scale():
    with qkv.interp.record() as trace:
        eye = torch.eye(4)[None, None] * 200
        qkv.attention(eye, eye, eye, scale=1.0)
    scene = make_scene(trace, ["$a^b$", "_", "\n", "東"], title="$x$")
    image = pixels(draw_head(scene, scene.panels[0], 0))
    found = {color for _, color in image.getcolors(image.width * image.height)}
    assert (255, 234, 70) in found and (0, 32, 77) in found  # the ends of the scale: 1 and 0


def test_draw_heads_overlay_and_table_return_images():
    trace = noise(2, 3, 17)
    scene = make_scene(trace, types=[[(("previous", 0.5),)] * 3] * 2)
    assert pixels(draw_heads(scene)).width > 300
    image = PatchImage(torch.zeros(16, 16, 3, dtype=torch.uint8), 4, 4, 1)
    shown = add_map(make_scene(trace, image=image), "rollout", torch.rand(17, 17))
    assert pixels(draw_overlay(shown, 0)).width > 300
    assert pixels(draw_overlay(shown, 5, shown.panels[1], 2)).width > 200
    table = draw_table([[0.1, None], [-0.2, 0.0]], ["0", "1"], ["head 0", "head 1"], "costs", "loss")
    assert pixels(table).width > 200


def test_add_map_shows_a_computed_map_to_every_digit(tmp_path):
    rolled = torch.rand(9, 9).softmax(-1)
    scene = add_map(make_scene(noise(1, 2, 9)), "rollout", rolled)
    file = tmp_path / "look.html"
    file.write_text(render_html(scene), encoding="utf-8")
    with chromium() as browser:
        opened = OpenPage(browser, file, address="#panel=1")
        assert opened.text("name").startswith("Rollout")
        assert opened.hover(3, 5) == f"{rolled[3, 5]:.6f}"
        opened.check_offline(file)


def test_draw_heads_marks_a_head_without_weights_instead_of_its_type(monkeypatch):
    trace = noise(1, 2, 6)
    layer = trace.layer(0)
    weights = torch.stack((trace.weights(0, 0), torch.zeros(6, 6)))[None]
    empty = TracedLayer.from_pieces(layer.name, (Piece(0, 0, DenseWeights(weights)),), cross=None)
    scene = make_scene(Trace([empty]), types=[[(("induction", 0.6),), (("previous-token", 0.9),)]])
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda axes, text, **options: titles.append(text))
    draw_heads(scene)
    assert titles == ["induction 0.60", "all weights are 0"]
