"""The page's own arithmetic (recipe.js) against the trace's: every kind of mask, bias, cap and sink."""

import json

import pytest
import torch
from browser import chromium

import qkv
from qkv.interp.traces.layer import Layer, Piece
from qkv.interp.traces.lazy_weights import ByDistance, Recipe, Written
from qkv.interp.viewer.html import HERE
from qkv.interp.viewer.pack import Blob
from qkv.interp.viewer.recipes import recipe_of
from qkv.nn.masks import Band, Both, Dense, PaddingMask

RUN = """
([description, blob]) => {
  const raw = Uint8Array.from(atob(blob), (letter) => letter.charCodeAt(0));
  const inflate = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(inflate).arrayBuffer().then((buffer) => {
    const { recipe, heads, queries, keys } = JSON.parse(description);
    const rows = new RecipeRows(recipe, heads, keys, new Uint8Array(buffer));
    const each = (count, of) => Array.from({ length: count }, (_, place) => of(place));
    return each(heads, (head) => each(queries, (query) => Array.from(rows.row(head, query))));
  });
}
"""


@pytest.fixture(scope="module")
def page():
    with chromium() as browser:
        page = browser.new_page()
        for name in ("unpack", "recipe"):
            page.add_script_tag(content=(HERE / f"{name}.js").read_text("utf-8"))
        yield page


def recipes() -> dict[str, tuple[Piece, ...]]:
    torch.manual_seed(4)
    t, s = 7, 9
    q, k = torch.randn(2, 4, t, 8), torch.randn(2, 2, s, 8)
    causal = Band(t, s, None, 0)
    present = PaddingMask(torch.tensor([[True] * 9, [False, False, *[True] * 7]]))
    random = torch.rand(2, 4, t, s) > 0.4
    random[1, :, 2] = False  # a query that may attend to nothing
    one = lambda **options: (Piece(0, 0, Recipe(q, k, **{"scale": 0.35, **options})),)  # noqa: E731
    return {
        "plain": one(),
        "causal": one(mask=causal),
        "window": one(mask=Band(t, s, 2, 1)),
        "padding": one(mask=Both((causal, present))),
        "any mask": one(mask=Dense(random)),
        "a mask for all heads": one(mask=Dense(random[:, :1])),
        "a floor that is finite": one(mask=causal, floor=-3.0),
        "by distance": one(bias=ByDistance(torch.randn(1, 4, t + s - 1), t)),
        "any bias": one(bias=torch.randn(4, t, s)),
        "a bias for each key": one(bias=torch.randn(2, 1, 1, s)),
        "softcap": one(softcap=0.8, mask=causal),
        "sink": one(sink=torch.randn(1, 4, 1, 1), mask=causal),
        "a sink for each query": one(sink=torch.randn(2, 1, t, 1)),
        "a scale for each head": one(scale=torch.rand(1, 4, 1, 1) * 3),
        "written": (Piece(0, 0, Written(torch.rand(2, 4, t, s).softmax(-1))),),
        "two pieces": (
            Piece(0, 0, Recipe(q[:, :, :4], k[:, :, :4], mask=Band(4, 4, None, 0))),
            Piece(4, 2, Recipe(q[:, :, 4:5], k[:, :, 2:])),
        ),
        "large and small numbers": (Piece(0, 0, Recipe(q * 1e4, k * 1e-4)),),
    }


@pytest.mark.parametrize("kind", list(recipes()))
def test_the_page_computes_what_the_trace_computes(page, kind):
    layer = Layer.of("layer", recipes()[kind], cross=None)
    blob = Blob()
    recipe = recipe_of(layer, 1, blob)
    sizes = {"heads": layer.heads, "queries": layer.queries, "keys": layer.keys}
    shown = torch.tensor(page.evaluate(RUN, [json.dumps({"recipe": recipe, **sizes}), blob.text()]))
    expected = qkv.interp.Trace([layer]).weights(0, batch=1)
    assert torch.allclose(shown, expected, atol=3e-4)


def test_a_bias_without_a_rule_that_is_too_large_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.recipes.MOST", 100)
    layer = Layer.of("layer", recipes()["any bias"], cross=None)
    assert "bias" in recipe_of(layer, 0, Blob())["why"]
