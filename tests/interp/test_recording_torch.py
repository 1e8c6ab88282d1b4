"""record() of PyTorch's own modules, x-transformers and hand-written attention, fast paths included."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.interp import Trace, record

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
INF = float("inf")
NESTED = "ignore:The PyTorch API of nested tensors is in prototype"


def all_weights(trace: Trace, layer: int | str) -> Tensor:
    return torch.stack([trace.weights(layer, batch=row) for row in range(trace.layer(layer).batch)])


class WeightReference:
    """Asks every nn.MultiheadAttention for the weights of each head: what it returns is the reference."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: dict[str, Tensor] = {}
        self.handles = []
        for name, module in model.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                self.handles.append(module.register_forward_pre_hook(self.ask, with_kwargs=True))
                self.handles.append(module.register_forward_hook(partial(self.keep, name)))

    def ask(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    def keep(self, name: str, _: nn.Module, __: tuple, out: tuple) -> None:
        self.weights[name] = out[1]

    def __enter__(self) -> "WeightReference":
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def reference_weights(model: nn.Module, run: Callable[[], Tensor]) -> dict[str, Tensor]:
    with torch.enable_grad(), WeightReference(model) as asked:
        run()
    return {name: weights.detach() for name, weights in asked.weights.items()}


MASKS: dict[str, dict[str, Tensor]] = {
    "nothing": {},
    "causal": {"mask": torch.full((5, 5), -INF).triu(1)},
    "padding": {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "both": {
        "mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    },
}


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "slow path"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_torch_encoder_is_recorded(mask: str, norm_first: bool, fast: bool):
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.randn(2, 5, 16)

    def run() -> Tensor:
        return model(x, **MASKS[mask])

    with torch.set_grad_enabled(not fast):
        before = run()
        with record(model) as trace:
            during = run()
    assert torch.equal(before, during)
    expected = reference_weights(model, run)
    assert [layer.name for layer in trace.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    lengths = [5, 3 if "src_key_padding_mask" in MASKS[mask] else 5]
    for name, weights in expected.items():
        assert trace.layer(name).storage == "lazy" and trace.layer(name).cross is False
        for row, length in enumerate(lengths):  # of padding, the fast path keeps nothing
            ours = trace.weights(name, batch=row)[:, :length]
            torch.testing.assert_close(ours, weights[row, :, :length, : ours.shape[-1]], **CLOSE)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_torch_decoder_is_recorded_in_self_and_cross_attention(batch_first: bool):
    layer = nn.TransformerDecoderLayer(16, 4, 24, batch_first=batch_first, dropout=0.0)
    model = nn.TransformerDecoder(layer, 2).eval()
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    x, memory = (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))
    mask = nn.Transformer.generate_square_subsequent_mask(5)

    def run() -> Tensor:
        return model(x, memory, tgt_mask=mask, tgt_is_causal=True)

    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before = run()
            with record(model) as trace:
                during = run()
        assert torch.equal(before, during)
        for name, weights in reference_weights(model, run).items():
            torch.testing.assert_close(all_weights(trace, name), weights, **CLOSE)
            assert trace.layer(name).cross == ("multihead_attn" in name)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_a_torch_attention_layer_is_recorded(need_weights: bool, grad: bool):
    model, x = nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    with torch.set_grad_enabled(grad):
        before, _ = model(x, x, x, need_weights=need_weights)
        with record(model) as trace:
            during, _ = model(x, x, x, need_weights=need_weights)
    assert torch.equal(before, during)
    expected = model(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(all_weights(trace, 0), expected, **CLOSE)


@pytest.mark.parametrize("flash", [False, True], ids=["plain", "flash"])
@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 2}, {"qk_norm": True}, {"rotary_pos_emb": True, "rotary_emb_dim": 4}], ids=str
)
@torch.no_grad()
def test_x_transformers_is_recorded(flash: bool, options: dict):
    x_transformers = pytest.importorskip("x_transformers")
    rotary = {name: options[name] for name in options if name.startswith("rotary")}
    attention = {f"attn_{name}": value for name, value in options.items() if name not in rotary}
    layers = x_transformers.Decoder(dim=16, depth=2, heads=4, attn_dim_head=4, attn_flash=flash, **attention, **rotary)
    model = x_transformers.TransformerWrapper(num_tokens=33, max_seq_len=16, attn_layers=layers).eval()
    tokens = torch.randint(0, 33, (2, 7))
    before = model(tokens)
    with record(model) as trace:
        during = model(tokens)
    assert torch.equal(before, during)
    assert [layer.heads for layer in trace.layers] == [4, 4]
    for module in model.modules():  # the same parameters without flash return their weights
        if hasattr(module, "flash"):
            module.flash = False
    _, maps = model(tokens, return_attn=True)
    for layer, weights in enumerate(maps):
        torch.testing.assert_close(all_weights(trace, layer), weights, **CLOSE)


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bthd,bshd->bhts", q, k) / 8**0.5).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v), weights


def in_place(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    scores *= 0.3
    scores.masked_fill_(~CAUSAL, -INF)
    weights = F.dropout(scores.softmax(-1), 0.0)
    return weights @ v, weights


def squeezed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.tanh(q @ k.mT / 8**0.5 / 2.0) * 2.0
    weights = (scores + torch.where(CAUSAL, 0.0, -INF)).softmax(-1)
    return weights @ v, weights


def as_columns(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (k @ q.mT * 0.5).softmax(-2)
    return v.mT @ weights, weights.mT


def temperature(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT * torch.arange(1, 5)[:, None, None]).softmax(-1)
    return weights @ v, weights


def filled_low(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    empty = CAUSAL.clone()
    empty[2] = False  # a row in which every score is −10⁹: its weights are all alike
    weights = torch.where(empty, q @ k.mT, -1e9).softmax(-1)
    return weights @ v, weights


def with_sink(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.cat((q @ k.mT, torch.arange(4.0)[:, None, None].expand(2, 4, 5, 1).to(q)), dim=-1)
    weights = (scores - scores.amax(-1, keepdim=True)).softmax(-1)[..., :-1]
    return weights @ v, weights


def two_products(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT + q @ v.mT).softmax(-1)
    return weights @ v, weights


def partly_overwritten(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    scores[..., 0] += 1.0
    weights = scores.softmax(-1)
    return weights @ v, weights


BY_HAND = {
    "lazy": (heads_last, in_place, squeezed, as_columns, temperature, filled_low, with_sink),
    "dense": (two_products, partly_overwritten),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", [f for group in BY_HAND.values() for f in group])
def test_attention_written_by_hand_is_found(function: Callable, mode: Callable, randn: Callable):
    q, k, v = (randn(2, 4, 5, 8) for _ in range(3))
    with mode():
        before, expected = function(q, k, v)
        with record() as trace:
            during, _ = function(q, k, v)
    assert torch.equal(before, during)
    assert len(trace.layers) == 1
    torch.testing.assert_close(all_weights(trace, 0), expected.clone(), **EXACT)
    assert trace.layers[0].storage == ("lazy" if function in BY_HAND["lazy"] else "dense")


@pytest.mark.parametrize("masked", ["nothing", "causal", "boolean", "added", "per head"])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_kernels_weights_are_those_of_the_formula(masked: str, grouped: bool, randn: Callable):
    q, k, v = randn(2, 4, 5, 8), randn(2, 2 if grouped else 4, 7, 8), randn(2, 2 if grouped else 4, 7, 8)
    more = randn(1, 4, 5, 7)
    rule = torch.ones(5, 7, dtype=torch.bool).tril()  # the kernel counts from the first key
    bias = torch.zeros(5, 7, dtype=q.dtype).masked_fill(~rule, -INF)
    given, bias = {
        "nothing": ({}, torch.zeros(5, 7, dtype=q.dtype)),
        "causal": ({"is_causal": True}, bias),
        "boolean": ({"attn_mask": rule}, bias),
        "added": ({"attn_mask": bias + 0.5 * rule}, bias + 0.5 * rule),
        "per head": ({"attn_mask": more}, more),
    }[masked]
    with record() as trace:
        F.scaled_dot_product_attention(q, k, v, **given, enable_gqa=grouped)
    keys = k.repeat_interleave(2, dim=1) if grouped else k
    torch.testing.assert_close(all_weights(trace, 0), (q @ keys.mT * 8**-0.5 + bias).softmax(-1), **EXACT)
    assert trace.layers[0].kv_heads == k.shape[1]


def test_a_softmax_that_gathers_no_values_is_not_attention():
    model = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1))
    with record(model) as trace:
        model(torch.randn(2, 3, 4))
    assert trace.layers == ()
    with pytest.raises(ValueError, match="no attention was recorded"):
        trace.weights(0)


def test_a_compiled_model_is_refused_by_name():
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))
    with pytest.raises(ValueError, match="OptimizedModule is compiled"), record(torch.compile(model, backend="eager")):  # pyright: ignore
        pass
    model[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"0 \(TransformerEncoderLayer\) is compiled"), record(model):
        pass


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
def test_a_scripted_model_is_refused_by_name():
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"0 \(RecursiveScriptModule\) is scripted"), record(model):
        pass


def test_an_opaque_kernel_is_refused_by_name():
    @torch.library.custom_op("qkv_tests::mystery_attention", mutates_args=())
    def mystery_attention(q: Tensor) -> Tensor:
        return q.clone()

    with pytest.raises(ValueError, match="qkv_tests::mystery_attention"), record():
        mystery_attention(torch.ones(2))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused_by_name():
    flexible = pytest.importorskip("torch.nn.attention.flex_attention")
    with pytest.raises(ValueError, match="higher_order::flex_attention"), torch.no_grad(), record():
        flexible.flex_attention(*torch.randn(3, 1, 2, 16, 16))


def test_an_unknown_activation_is_refused_with_names_near_it():
    model = nn.TransformerEncoderLayer(8, 2, 8)
    with pytest.raises(ValueError, match="no module 'attn'; it has, for example, self_attn"), record(model, ["attn"]):
        pass


def test_activations_are_kept_by_name_or_by_rule():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    with record(model, activations=["0"]) as trace:
        model(x)
        model(x + 1)
    assert len(trace.activations["0"]) == 2
    torch.testing.assert_close(trace.activation("0", 0), model[0](x))  # as it was before the ReLU wrote over it
    with record(model, activations=lambda name: name in ("0", "2")) as trace:
        out = model(x)
    assert sorted(trace.activations) == ["0", "2"] and torch.equal(trace.activation("2"), out)
    with pytest.raises(ValueError, match="no activation '1' was recorded"):
        trace.activation("1")


def test_a_trace_is_complete_after_its_block():
    with record() as trace:
        with pytest.raises(ValueError, match="complete when"):
            _ = trace.layers
        assert repr(trace) == "Trace(still recording)"
    assert repr(trace) == "Trace(0 layers, 0 heads)"
