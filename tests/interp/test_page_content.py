"""What a page holds and weighs; pictures; notebooks."""

import io
import sys
import types
from html import unescape

import pytest
import torch
from browser import Opened, chromium
from PIL import Image

import qkv
from qkv.interp import Trace
from qkv.interp.viewer import Picture, html, scene_of, widget, with_map
from qkv.interp.viewer.measure import measured
from qkv.interp.viewer.png import png_of_head, png_of_heads, png_of_table, png_over_picture


def noise(layers: int, heads: int, tokens: int, **options) -> Trace:
    """A trace of random queries and keys, whose weights are as varied as weights can be."""
    with qkv.interp.record() as trace:
        for _ in range(layers):
            q, k = torch.randn(2, 1, heads, tokens, 64)
            qkv.attention(q, k, k, **{"beta": 0.4, **options})
    return trace


def test_a_page_of_144_heads_and_512_tokens_stays_small():
    scene = scene_of(noise(12, 12, 512), [f"token {i}" for i in range(512)])
    assert len(html(scene).encode()) < 5e6
    assert len(html(scene, full=True).encode()) < 30e6


def test_what_is_measured_in_one_pass_is_what_the_trace_says():
    trace = noise(1, 2, 150, causal=True)
    found = measured(trace.layer(0), 1, size=64)
    assert torch.equal(found.picture, trace.map(0, 1, 64))
    assert found.entropy == pytest.approx(float(trace.entropy(0, 1).mean()), rel=1e-5)
    assert found.distance == pytest.approx(float(trace.distance(0, 1).mean()), rel=1e-5)
    assert found.first == pytest.approx(float(trace.first_share(0, 1).mean()), rel=1e-5)
    for query in (0, 3, 77, 149):
        expected = trace.top(0, 1, query)
        assert found.weights[query].tolist() == pytest.approx([weight for _, weight in expected], rel=1e-4)


def test_a_page_names_nothing_outside_itself():
    page = html(scene_of(noise(1, 1, 5)))
    assert "http://www.w3.org/2000/svg" in page  # the name of a language, which nothing fetches
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    policy = page.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_a_trace_displays_itself_in_a_notebook(tmp_path):
    trace = noise(2, 3, 9, causal=True)
    shown = trace._repr_html_()
    assert shown is not None and shown.count("<iframe") == 1 and "<script" not in shown
    assert unescape(shown.split('srcdoc="')[1].split('"')[0]) == html(scene_of(trace))
    assert Trace()._repr_html_() is None
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{shown}", encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(file.as_uri())
        inside = page.frame_locator("iframe")
        inside.locator("body[data-ready]").wait_for(timeout=20_000)
        inside.locator("#cell-1-2").click()
        assert inside.locator("#name").inner_text().startswith("Layer 1 · head 2")
        assert complaints == []


def test_a_widget_says_what_it_needs_or_holds_the_page(monkeypatch):
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
    assert widget(trace).page == html(scene_of(trace))


def pixels(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def test_the_picture_of_one_head_has_the_colours_of_its_weights():
    with qkv.interp.record() as trace:
        eye = torch.eye(4)[None, None] * 200
        qkv.attention(eye, eye, eye, scale=1.0)
    scene = scene_of(trace, ["$a^b$", "_", "\n", "東"], title="$x$")
    image = pixels(png_of_head(scene, scene.panels[0], 0))
    found = {colour for _, colour in image.getcolors(image.width * image.height)}
    assert (255, 234, 70) in found and (0, 32, 77) in found  # the ends of the scale: 1 and 0


def test_every_kind_of_picture_is_drawn():
    trace = noise(2, 3, 17)
    scene = scene_of(trace, types=[[(("previous", 0.5),)] * 3] * 2)
    assert pixels(png_of_heads(scene)).width > 300
    picture = Picture(torch.zeros(16, 16, 3, dtype=torch.uint8), 4, 4, 1)
    shown = with_map(scene_of(trace, picture=picture), "rollout", torch.rand(17, 17))
    assert pixels(png_over_picture(shown, 0)).width > 300
    assert pixels(png_over_picture(shown, 5, shown.panels[1], 2)).width > 200
    table = png_of_table([[0.1, None], [-0.2, 0.0]], ["0", "1"], ["head 0", "head 1"], "costs", "loss")
    assert pixels(table).width > 200


def test_a_derived_map_is_shown_as_it_is(tmp_path):
    rolled = torch.rand(9, 9).softmax(-1)
    scene = with_map(scene_of(noise(1, 2, 9)), "rollout", rolled)
    file = tmp_path / "look.html"
    file.write_text(html(scene), encoding="utf-8")
    with chromium() as browser:
        opened = Opened(browser, file, address="#panel=1")
        assert opened.text("#name").startswith("Rollout")
        assert opened.hover(3, 5) == f"{rolled[3, 5]:.6f}"
        opened.sound(file)
