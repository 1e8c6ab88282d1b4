"""Weights that an exported page computes (viewer/exported/lazy_weights.ts) equal those of the trace."""

import json

import pytest
import torch
from browser import chromium

import qkv
from qkv.interp.layers import Piece, TracedLayer
from qkv.interp.lazy_weights import DenseWeights, LazyWeights, RelativeBias
from qkv.interp.viewer.pack import Blob, pack_lazy_weights
from qkv.interp.viewer.page import STATIC
from qkv.nn.masks import AndMask, BandMask, DenseMask, PaddingMask

RUN = """
([description, blob]) => qkvViewer.inflate(blob).then((bytes) => {
  const { lazy, heads, queries, keys } = JSON.parse(description);
  const weights = new qkvViewer.LazyWeights(lazy.pieces, heads, keys, bytes);
  const each = (count, of) => Array.from({ length: count }, (_, place) => of(place));
  return each(heads, (head) => each(queries, (query) => Array.from(weights.row(head, query))));
})
"""


@pytest.fixture(scope="module")
def page():
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(content=(STATIC / "viewer.js").read_text("utf-8"))
        yield page


def layer_pieces() -> dict[str, tuple[Piece, ...]]:
    torch.manual_seed(4)
    t, s = 7, 9
    q, k = torch.randn(2, 4, t, 8), torch.randn(2, 2, s, 8)
    causal = BandMask(t, s, None, 0)
    present = PaddingMask(torch.tensor([[True] * 9, [False, False, *[True] * 7]]))
    random = torch.rand(2, 4, t, s) > 0.4
    random[1, :, 2] = False  # a query that may attend to nothing
    one = lambda **options: (Piece(0, 0, LazyWeights(q, k, **{"scale": 0.35, **options})),)  # noqa: E731
    return {
        "plain": one(),
        "causal": one(mask=causal),
        "window": one(mask=BandMask(t, s, 2, 1)),
        "padding": one(mask=AndMask((causal, present))),
        "any mask": one(mask=DenseMask(random)),
        "a mask for all heads": one(mask=DenseMask(random[:, :1])),
        "a floor that is finite": one(mask=causal, mask_value=-3.0),
        "by distance": one(bias=RelativeBias(torch.randn(1, 4, t + s - 1), t)),
        "any bias": one(bias=torch.randn(4, t, s)),
        "a bias for each key": one(bias=torch.randn(2, 1, 1, s)),
        "softcap": one(softcap=0.8, mask=causal),
        "sink": one(sink=torch.randn(1, 4, 1, 1), mask=causal),
        "a sink for each query": one(sink=torch.randn(2, 1, t, 1)),
        "a scale for each head": one(scale=torch.rand(1, 4, 1, 1) * 3),
        "written": (Piece(0, 0, DenseWeights(torch.rand(2, 4, t, s).softmax(-1))),),
        "two pieces": (
            Piece(0, 0, LazyWeights(q[:, :, :4], k[:, :, :4], mask=BandMask(4, 4, None, 0))),
            Piece(4, 2, LazyWeights(q[:, :, 4:5], k[:, :, 2:])),
        ),
        "large and small numbers": (Piece(0, 0, LazyWeights(q * 1e4, k * 1e-4)),),
    }


@pytest.mark.parametrize("kind", list(layer_pieces()))
def test_lazy_weights_of_the_page_equal_those_of_the_trace(page, kind):
    layer = TracedLayer.from_pieces("layer", layer_pieces()[kind], cross=None)
    blob = Blob()
    lazy = pack_lazy_weights(layer, 1, blob)
    sizes = {"heads": layer.heads, "queries": layer.queries, "keys": layer.keys}
    shown = torch.tensor(page.evaluate(RUN, [json.dumps({"lazy": lazy, **sizes}), blob.to_base64()]))
    expected = qkv.interp.Trace([layer]).weights(0, batch=1)
    assert torch.allclose(shown, expected, atol=3e-4)


def test_pack_lazy_weights_leaves_out_a_bias_that_is_too_large_and_says_so(monkeypatch):
    monkeypatch.setattr("qkv.interp.viewer.pack.MAX_BYTES", 100)
    layer = TracedLayer.from_pieces("layer", layer_pieces()["any bias"], cross=None)
    assert "bias" in pack_lazy_weights(layer, 0, Blob())["why"]
