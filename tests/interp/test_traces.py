"""Trace: weights, maps, top keys and measures; saved and loaded whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers_models import TRANSFORMERS_MODELS, build, call, tokens

import qkv.interp.layers as layers
from qkv.interp import Trace, record
from qkv.models import GPT, GPTConfig
from qkv.nn import Additive

SMALL: dict[str, Any] = {"vocab_size": 11, "max_length": 32, "dim": 16, "layers": 2, "heads": 4}
BY_NAME = {case.name: case for case in TRANSFORMERS_MODELS}


def gpt(**options) -> GPT:
    model = GPT(GPTConfig(**SMALL, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    return model


@torch.no_grad()
def recorded(model: nn.Module, length: int = 20) -> Trace:
    with record(model) as trace:
        model(torch.randint(0, 11, (2, length)))
    return trace


def all_weights(trace: Trace, layer: int | str) -> Tensor:
    return torch.stack([trace.weights(layer, batch=row) for row in range(trace.layer(layer).batch)])


@pytest.mark.parametrize("options", [{}, {"sliding_window": 4}, {"position": "t5"}, {"score": Additive(5)}], ids=str)
def test_weights_of_a_window_are_a_part_of_the_whole_map(options: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layers, "TILE_CELLS", 60)  # three rows at a time
    trace = recorded(gpt(**options))
    whole = trace.weights(0)
    assert whole.shape == (4, 20, 20)
    torch.testing.assert_close(whole.sum(-1), torch.ones(4, 20))
    torch.testing.assert_close(trace.weights(0, 2, rows=range(3, 9), columns=slice(1, 7)), whole[2, 3:9, 1:7])
    torch.testing.assert_close(trace.weights("blocks.0.attention", -1, rows=slice(-1, None)), whole[3, 19:])


@pytest.mark.parametrize("size", [1, 3, 7, 10, 20, 50])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 4}, {"score": Additive(5)}], ids=str)
def test_map_is_the_whole_map_pooled(size: int, options: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layers, "TILE_CELLS", 60)
    trace = recorded(gpt(**options))
    whole = trace.weights(1, 3, batch=1)
    step = -(-20 // size)
    cells = -(-20 // step)
    padded = (
        F.pad(whole, (0, cells * step - 20, 0, cells * step - 20))
        .unflatten(0, (cells, step))
        .unflatten(2, (cells, step))
    )
    torch.testing.assert_close(trace.map(1, 3, size, batch=1), padded.amax((1, 3)))
    torch.testing.assert_close(trace.map(1, 3, size, batch=1, pool="sum"), padded.sum((1, 3)))


def test_top_gives_the_largest_weights_first():
    trace = recorded(gpt())
    row = trace.weights(0, 1)[7]
    top = trace.top(0, 1, query=7, k=3)
    assert [key for key, _ in top] == row.argsort(descending=True)[:3].tolist()
    assert [weight for _, weight in top] == pytest.approx(row.sort(descending=True).values[:3].tolist())


def test_entropy_distance_and_first_share_are_those_of_the_weights():
    trace = recorded(gpt(sliding_window=6))
    weights = trace.weights(1, 2)
    places = torch.arange(20.0)
    torch.testing.assert_close(trace.entropy(1, 2), torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(trace.distance(1, 2), (weights * (places[:, None] - places).abs()).sum(-1))
    torch.testing.assert_close(trace.first_share(1, 2), weights[:, 0])


@pytest.mark.parametrize("name", ["GPT-2, padded", "Llama", "Mistral", "T5", "GPT-OSS", "Gemma 2"])
@torch.no_grad()
def test_save_and_load_keep_a_whole_trace(name: str, tmp_path: Path):
    case = BY_NAME[name]
    model = build(case, "eager")
    with record(model, activations=lambda name: name.endswith(".0")) as trace:
        call(model, case)
    trace.save(tmp_path / "trace")
    back = Trace.load(tmp_path / "trace")
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["trace.json", "trace.safetensors"]
    assert [(layer.name, layer.kv_heads, layer.cross) for layer in back.layers] == [
        (layer.name, layer.kv_heads, layer.cross) for layer in trace.layers
    ]
    for layer in range(len(trace.layers)):
        torch.testing.assert_close(all_weights(back, layer), all_weights(trace, layer))
    assert {name: len(calls) for name, calls in back.activations.items()} == {
        name: len(calls) for name, calls in trace.activations.items()
    }


@torch.no_grad()
def test_save_and_load_keep_fused_generated_and_dense_traces(tmp_path: Path):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 1).eval()
    with record(encoder) as fused:
        encoder(torch.randn(2, 5, 16))
    model = gpt(position="alibi")
    with record(model) as generated:
        model.generate(torch.randint(0, 11, (1, 4)), max_new_tokens=9, temperature=0.0)
    for index, trace in enumerate((fused, generated, recorded(gpt(score=Additive(5))))):
        trace.save(tmp_path / str(index))
        back = Trace.load(tmp_path / str(index))
        torch.testing.assert_close(all_weights(back, 0), all_weights(trace, 0))


def test_keys_that_steps_share_are_written_once(tmp_path: Path):
    model = gpt(position="alibi")  # each step has a bias of its own, so the steps stay apart
    with torch.inference_mode(), record(model) as trace:
        model.generate(torch.randint(0, 11, (1, 4)), max_new_tokens=9, temperature=0.0)
    assert len(trace.layers[0].pieces) > 3
    trace.save(tmp_path / "trace")
    described = json.loads((tmp_path / "trace" / "trace.json").read_text())
    assert len({piece["source"]["keys"]["tensor"] for piece in described["layers"][0]["pieces"]}) == 1


def test_load_says_what_is_wrong_with_a_damaged_folder(tmp_path: Path):
    folder = tmp_path / "trace"
    recorded(gpt()).save(folder)
    with pytest.raises(ValueError, match=r"is not a folder; a trace is a folder with trace\.json and"):
        Trace.load(tmp_path / "other")
    text = (folder / "trace.json").read_text()
    (folder / "trace.json").write_text(text.replace('"LazyWeights"', '"Secret"'))
    with pytest.raises(ValueError, match="unknown kind 'Secret'; known are"):
        Trace.load(folder)
    (folder / "trace.json").write_text(text.replace('"mask_value"', '"ceiling"'))
    with pytest.raises(ValueError, match="LazyWeights got an unexpected keyword argument 'ceiling'"):
        Trace.load(folder)
    (folder / "trace.json").write_text(text[:-20])
    with pytest.raises(ValueError, match="is not JSON"):
        Trace.load(folder)
    (folder / "trace.json").write_text(text)
    (folder / "trace.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        Trace.load(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"holds other files \(notes.txt"):
        recorded(gpt()).save(tmp_path / "mine")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda trace: trace.weights(7), "2 layers, 0 to 1; got 7"),
        (lambda trace: trace.weights("blocks"), "no layer is named 'blocks'; there are blocks.0.attention"),
        (lambda trace: trace.weights(0, 4), "4 heads, 0 to 3; got 4"),
        (lambda trace: trace.weights(0, batch=2), "2 rows in the batch"),
        (lambda trace: trace.weights(0, rows=range(5, 30)), "must lie within 0 to 20"),
        (lambda trace: trace.map(0, 0, 0), "size must be at least 1"),
        (lambda trace: trace.top(0, 0, 20), "20 queries, 0 to 19"),
    ],
)
def test_an_impossible_index_says_what_is_possible(ask, message: str):
    with pytest.raises(ValueError, match=message):
        ask(recorded(gpt()))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Mistral", "T5"])
@torch.no_grad()
def test_a_generation_of_a_transformers_model_is_joined_into_one_map(name: str, backend: str):
    transformers = pytest.importorskip("transformers")
    case = BY_NAME[name]
    if name == "T5":
        kind = transformers.T5ForConditionalGeneration
        model = kind._from_config(case.config(), attn_implementation=backend).eval()
        prompt = tokens(1, 6)
    else:
        model, prompt = build(case, backend), tokens(1, 4)
    options = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False}
    before = model.generate(prompt, **options)  # pyright: ignore
    with record(model) as trace:
        text = model.generate(prompt, **options)  # pyright: ignore
    assert torch.equal(before, text)
    with record(model) as whole:
        if name == "T5":
            model(input_ids=prompt, decoder_input_ids=text[:, :-1])
        else:
            model(text[:, :-1])
    assert len(trace.layers) == len(whole.layers)
    for layer in whole.layers:
        torch.testing.assert_close(trace.weights(layer.name), whole.weights(layer.name), rtol=0, atol=1e-5)
        assert trace.layer(layer.name).cross == layer.cross


@torch.no_grad()
def test_masks_and_shared_key_heads_of_transformers_models_are_recognized():
    for name, backend in (("Llama", "eager"), ("Llama", "sdpa"), ("Mistral", "eager"), ("Mistral", "sdpa")):
        case = BY_NAME[name]
        model = build(case, backend)
        with record(model) as trace:
            call(model, case)
        source = trace.layers[0].pieces[0].source
        assert trace.layers[0].kv_heads == 2
        assert type(source.mask).__name__ == "BandMask" and source.bias is None  # pyright: ignore
        assert source.mask.left == (2 if name == "Mistral" else None)  # pyright: ignore


def test_a_long_recording_holds_no_square_of_its_length():
    q, k, v = torch.randn(3, 1, 2, 4096, 8)
    with torch.no_grad(), record() as trace:
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
    source = trace.layers[0].pieces[0].source
    held = sum(x.numel() for x in vars(source).values() if isinstance(x, Tensor))
    assert held == q.numel() + k.numel()
    assert trace.map(0, 1, 64).shape == (64, 64)
    assert trace.weights(0, 1, rows=range(4000, 4010)).shape == (10, 4096)
