"""intervene(): each intervention does what it says, and nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers_models import TRANSFORMERS_MODELS, build, call

import qkv
from qkv.interp import intervene, record
from qkv.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from qkv.nn import Additive, DenseSynthesizer, LocationAware

SMALL: dict[str, Any] = {"vocab_size": 11, "max_length": 16, "dim": 16, "layers": 2, "heads": 4}
QKV_CONFIGS = {
    "dot": GPTConfig(**SMALL, kv_heads=2),
    "window and t5": GPTConfig(**SMALL, sliding_window=3, position="t5"),
    "additive": GPTConfig(**SMALL, score=Additive(5)),
    "location-aware": GPTConfig(**SMALL, score=LocationAware(5, filters=2, kernel_size=3)),
    "synthesizer": GPTConfig(**SMALL, score=DenseSynthesizer(16)),
}
BY_NAME = {case.name: case for case in TRANSFORMERS_MODELS}
TRANSFORMERS_CASES = [
    ("GPT-2", "eager"),
    ("GPT-2", "sdpa"),
    ("Llama", "eager"),
    ("Llama", "sdpa"),
    ("BERT", "eager"),
    ("T5", "sdpa"),
]
TRANSFORMERS_CASES += [("GPT-OSS", "eager"), ("Gemma 2", "eager")]
TOKENS = torch.arange(14).reshape(2, 7) % 11
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}


def qkv_model(name: str) -> nn.Module:
    model = GPT(QKV_CONFIGS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape))
    return model


class Zeroed:
    """Sets the slice of a head in the output projection's input to 0: what ablating a head should equal."""

    def __init__(self, projection: nn.Module, head: int, width: int) -> None:
        self.projection, self.slice = projection, slice(head * width, (head + 1) * width)

    def __enter__(self) -> None:
        self.handle = self.projection.register_forward_pre_hook(self.hook)

    def __exit__(self, *_: object) -> None:
        self.handle.remove()

    def hook(self, _: nn.Module, inputs: tuple) -> tuple:
        x = inputs[0].clone()
        x[..., self.slice] = 0.0
        return (x,)


@pytest.mark.parametrize("name", QKV_CONFIGS)
def test_ablating_a_head_of_a_qkv_model_equals_zeroing_its_slice_of_the_output_projection(name: str):
    model = qkv_model(name)
    with Zeroed(model.blocks[1].attention.to_out, head=2, width=4):  # pyright: ignore
        expected = model(TOKENS)
    with intervene(model, ablate_heads=[("blocks.1.attention", 2)]):
        by_name = model(TOKENS)
    with intervene(model, ablate_heads=[(1, 2)]):
        by_place = model(TOKENS)
    torch.testing.assert_close(by_name, expected, **CLOSE)
    assert torch.equal(by_name, by_place)
    assert not torch.allclose(by_name, model(TOKENS))


PROJECTIONS = {
    "GPT-2": ("transformer.h.1.attn", "c_proj"),
    "Llama": ("model.layers.1.self_attn", "o_proj"),
    "BERT": ("encoder.layer.1.attention.self", "encoder.layer.1.attention.output.dense"),
    "T5": ("decoder.block.1.layer.1.EncDecAttention", "o"),
    "GPT-OSS": ("model.layers.1.self_attn", "o_proj"),
    "Gemma 2": ("model.layers.1.self_attn", "o_proj"),
}


def projection_of(model: nn.Module, name: str) -> tuple[str, nn.Module]:
    layer, projection = PROJECTIONS[name]
    return layer, model.get_submodule(projection if "." in projection else f"{layer}.{projection}")


@pytest.mark.parametrize(("name", "backend"), TRANSFORMERS_CASES)
@torch.no_grad()
def test_ablating_a_head_of_a_transformers_model_equals_zeroing_its_slice_of_the_output_projection(
    name: str, backend: str
):
    case = BY_NAME[name]
    model = build(case, backend)
    layer, projection = projection_of(model, name)
    with Zeroed(projection, head=3, width=4):
        expected = call(model, case)
    with intervene(model, ablate_heads=[(layer, 3)]):
        changed = call(model, case)
    torch.testing.assert_close(changed, expected, **CLOSE)
    assert not torch.allclose(changed, call(model, case))


@pytest.mark.parametrize(("name", "backend"), TRANSFORMERS_CASES)
@torch.no_grad()
def test_intervening_with_nothing_keeps_the_same_bits(name: str, backend: str):
    case = BY_NAME[name]
    model = build(case, backend)
    before = call(model, case)
    with record(model) as trace:
        call(model, case)
    scale = trace.layers[0].pieces[0].source.scale  # pyright: ignore
    with intervene(model):
        assert torch.equal(call(model, case), before)
    assert isinstance(scale, float)
    with (
        pytest.raises(ValueError, match="ran in layer 99"),
        intervene(model, scale=scale, ablate_heads=[(99, 0)], mask_edges=[(99, 0, 0, 0)]),
    ):
        assert torch.equal(call(model, case), before)


@pytest.mark.parametrize(("name", "backend"), [case for case in TRANSFORMERS_CASES if case[0] not in ("T5", "BERT")])
@torch.no_grad()
def test_intervene_scale_replaces_the_scale(name: str, backend: str):
    case = BY_NAME[name]
    model = build(case, backend)
    with record(model) as before:
        call(model, case)
    with intervene(model, scale={0: 1.7}), record(model) as after:
        changed = call(model, case)
    assert not torch.allclose(changed, call(model, case))
    source = before.layers[0].pieces[0].source
    source = type(source)(**{**vars(source), "scale": 1.7})
    for head in range(4):
        expected = source.tile(0, head, range(7))[0]
        torch.testing.assert_close(after.weights(0, head), expected, **CLOSE)


@pytest.mark.parametrize("name", QKV_CONFIGS)
def test_mask_edges_of_a_qkv_model_equals_its_own_mask(name: str):
    model = qkv_model(name)
    with intervene(model, mask_edges=[(0, 1, 5, 4), (0, 1, 5, 5)]), record(model) as trace:
        model(TOKENS)
    weights = trace.weights(0)
    assert weights[1, 5, 4] == weights[1, 5, 5] == 0 and weights[0, 5, 4] > 0
    x: list[Tensor] = []
    handle = model.blocks[0].attention.register_forward_pre_hook(lambda _, inputs: x.append(inputs[0]))  # pyright: ignore
    model(TOKENS)
    handle.remove()
    mask = torch.ones(1, 4, 7, 7, dtype=torch.bool).tril()
    if name == "window and t5":
        mask = mask.triu(-2)
    mask[:, 1, 5, 4:6] = False
    _, expected = model.blocks[0].attention(x[0], mask=mask, return_weights=True)  # pyright: ignore
    torch.testing.assert_close(weights, expected[0], **CLOSE)


@pytest.mark.parametrize(
    ("name", "backend"), [("GPT-2", "eager"), ("GPT-2", "sdpa"), ("Llama", "sdpa"), ("GPT-OSS", "eager")]
)
@torch.no_grad()
def test_mask_edges_of_a_transformers_model_renormalizes_the_row(name: str, backend: str):
    case = BY_NAME[name]
    model = build(case, backend)
    with record(model) as before:
        call(model, case)
    with intervene(model, mask_edges=[(0, 2, 6, 5)]), record(model) as after:
        call(model, case)
    old, new = before.weights(0), after.weights(0)
    assert new[2, 6, 5] == 0
    if name != "GPT-OSS":  # whose sink takes its share
        expected = old[2, 6].index_fill(0, torch.tensor([5]), 0.0)
        torch.testing.assert_close(new[2, 6], expected / expected.sum(), **CLOSE)
    torch.testing.assert_close(new[:2], old[:2], **CLOSE)


def test_mask_edges_while_generating_counts_queries_among_all_keys():
    model = qkv_model("dot")
    with intervene(model, mask_edges=[(0, 0, 9, 3)]), record(model) as trace:
        model.generate(TOKENS, max_new_tokens=5, temperature=0.0)  # pyright: ignore
    weights = trace.weights(0, 0)
    assert weights[9, 3] == 0 and weights[8, 3] > 0 and weights[10, 3] > 0


def test_a_query_with_every_edge_masked_attends_to_nothing():
    model = qkv_model("dot")
    with intervene(model, mask_edges=[(0, None, 0, 0)]), record(model) as trace:
        out = model(TOKENS)
    assert torch.equal(trace.weights(0)[:, 0], torch.zeros(4, 7))
    with intervene(model, pattern={(0, None): lambda weights: weights * (torch.arange(7) > 0)[:, None]}):
        torch.testing.assert_close(out, model(TOKENS), **CLOSE)  # the same as zero weights in that row


@pytest.mark.parametrize("name", QKV_CONFIGS)
def test_intervene_pattern_replaces_a_head_and_its_own_weights_change_nothing(name: str):
    model = qkv_model(name)
    before = model(TOKENS)
    with record(model) as trace:
        model(TOKENS)
    own = torch.stack([trace.weights(0, 1, batch=row) for row in range(2)])
    with intervene(model, pattern={(0, 1): own}):
        torch.testing.assert_close(model(TOKENS), before, **CLOSE)
    with intervene(model, pattern={(0, 1): lambda weights: weights.flip(0)}):
        assert not torch.allclose(model(TOKENS), before)
    with intervene(model, pattern={(0, 1): torch.eye(7)}):
        assert not torch.allclose(model(TOKENS), before)
    with pytest.raises(ValueError, match=r"\(7, 7\); got \(3, 3\)"), intervene(model, pattern={(0, 1): torch.eye(3)}):
        model(TOKENS)


@pytest.mark.parametrize("name", QKV_CONFIGS)
def test_intervene_patch_of_a_run_into_itself_changes_nothing(name: str):
    model = qkv_model(name)
    names = ["blocks.0", "blocks.0.attention", "blocks.1.feed_forward", "norm"]
    with record(model, activations=names) as trace:
        before = model(TOKENS)
    with intervene(model, patch={name: trace.activation(name) for name in names}):
        assert torch.equal(model(TOKENS), before)
    with intervene(model, patch={"blocks.0": lambda x: x.flip(-1)}):
        assert not torch.allclose(model(TOKENS), before)
    with pytest.raises(ValueError, match="the patch is"), intervene(model, patch={"blocks.0": torch.zeros(1)}):
        model(TOKENS)


@torch.no_grad()
def test_intervene_patch_of_a_transformers_run_into_itself_changes_nothing():
    case = BY_NAME["GPT-2"]
    model = build(case, "sdpa")
    names = ["transformer.h.0", "transformer.h.1.attn", "transformer.h.1.mlp"]
    with record(model, activations=names) as trace:
        before = call(model, case)
    with intervene(model, patch={name: trace.activation(name) for name in names}):
        assert torch.equal(call(model, case), before)


def torch_layer(norm_first: bool = False) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@torch.no_grad()
def test_intervene_works_on_a_torch_encoder():
    model, x = torch_layer(), torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    plain = model(x, src_key_padding_mask=padding)
    with pytest.raises(ValueError, match="ran in layer 99"), intervene(model, ablate_heads=[(99, 0)]):
        nothing = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(nothing[:1], plain[:1], **CLOSE)
    with intervene(model, ablate_heads=[("layers.1.self_attn", 2)]):
        changed = model(x, src_key_padding_mask=padding)
    model.layers[1].self_attn.out_proj.weight[:, 8:12] = 0.0  # pyright: ignore
    torch.testing.assert_close(changed[0], model(x, src_key_padding_mask=padding)[0], **CLOSE)


@torch.no_grad()
def test_mask_edges_of_a_torch_decoder_equals_its_own_mask():
    layer = nn.TransformerDecoderLayer(16, 4, 24, batch_first=True, dropout=0.0)
    model = nn.TransformerDecoder(layer, 1).eval()
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    mask = torch.zeros(5, 3, dtype=torch.bool)
    mask[4, 1] = True
    expected = model(x, memory, memory_mask=mask)
    with intervene(model, mask_edges=[("layers.0.multihead_attn", None, 4, 1)]):
        changed = model(x, memory)
    torch.testing.assert_close(changed, expected, **CLOSE)
    assert not torch.allclose(changed, model(x, memory))


def test_mask_edges_of_cross_attention_counts_queries_from_the_first():
    model = Seq2Seq(Seq2SeqConfig(vocab_size=11, dim=16, encoder_layers=1, decoder_layers=1, heads=4)).eval()
    with intervene(model, mask_edges=[("decoder.0.cross_attention", 0, 1, 2)]), record(model) as trace:
        model(TOKENS, TOKENS[:, :3])
    weights = trace.weights("decoder.0.cross_attention", 0)
    assert weights[1, 2] == 0 and weights[0, 2] > 0


def test_gradients_flow_through_an_intervention():
    model = qkv_model("dot")
    with intervene(model, scale=0.9, ablate_heads=[(0, 1)], mask_edges=[(1, None, 3, 2)]):
        model(TOKENS).square().mean().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    to_q = model.blocks[0].attention.to_q.weight.grad  # pyright: ignore
    assert to_q[4:8].abs().max() == 0 and to_q[:4].abs().max() > 0


def test_an_intervention_ends_with_its_block_even_by_an_exception():
    model = qkv_model("dot")
    before = model(TOKENS)
    with pytest.raises(RuntimeError), intervene(model, ablate_heads=[(0, None)], patch={"norm": lambda x: 0 * x}):
        raise RuntimeError
    assert torch.equal(model(TOKENS), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"ablate_heads": [("blocks.7.attention", 0)]},
            "no module 'blocks.7.attention'; it has, for example, blocks.0.attention",
        ),
        ({"patch": {"nothing": torch.zeros(1)}}, "no module 'nothing'"),
        ({"ablate_heads": [(0, 4)]}, "4 heads, 0 to 3; got head 4"),
        ({"mask_edges": [(0, 5, 1, 1)]}, "4 heads, 0 to 3; got head 5"),
        (
            {"ablate_heads": [(7, 0)]},
            r"ran in layer 7; layers that ran: 0 \(blocks.0.attention\), 1 \(blocks.1.attention\)",
        ),
        ({"scale": {-1: 2.0}}, r"ran in layer -1; layers that ran: 0 \(blocks.0.attention\)"),
        ({"mask_edges": [("tokens", None, 1, 0)]}, r"ran in layer 'tokens'; layers that ran: 0 \(blocks.0.attention\)"),
    ],
)
def test_an_impossible_intervention_says_what_is_possible(asked: dict, message: str):
    model = qkv_model("dot")
    with pytest.raises(ValueError, match=message), intervene(model, **asked):
        model(TOKENS)


def test_intervene_on_a_model_without_attention_says_so():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="ran in the model; layers that ran: none"), intervene(model, scale=2.0):
        model(torch.zeros(1, 2))


def test_a_layer_that_was_not_called_raises_no_error():
    model = qkv_model("dot")
    with intervene(model, ablate_heads=[(9, 0)]):
        model.blocks[0](torch.zeros(1, 2, model.config.dim))


def test_scores_that_are_not_a_product_have_no_scale():
    model = qkv_model("additive")
    with pytest.raises(ValueError, match="has no scale to change"), intervene(model, scale=2.0):
        model(TOKENS)


def test_intervene_refuses_edges_that_are_not_there_and_heads_that_are_no_pairs(unchecked):
    model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=9, dim=16, layers=1, heads=2)).eval()
    tokens = torch.tensor([[1, 2, 3]])
    wrong = [
        (
            {"mask_edges": [(0, 0, 9, 9)]},
            "query 9 to key 9 in layer 0, which ran with 3 queries and 3 keys",
        ),
        ({"mask_edges": [(0, 0, 2, 1), (0, 0, 2, -1)]}, "no edge from query 2 to key -1"),
        (
            {"ablate_heads": (0, 1)},
            r"must be a list of \(layer, head\), such as \[\(0, 1\)\]; got 0 in it",
        ),
        ({"ablate_heads": ["0.1"]}, r"got '0.1' in it"),
    ]
    for edits, message in wrong:
        with pytest.raises(ValueError, match=message), qkv.interp.intervene(model, **edits):
            model(tokens)


def test_trace_says_how_to_load_a_model_given_by_name(unchecked):
    with pytest.raises(ValueError, match=r"load it first: qkv.load\('qkv:shakespeare'\)"):
        qkv.interp.trace("qkv:shakespeare", "To be")
