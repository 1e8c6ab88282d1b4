"""Block against PyTorch's encoder and decoder layers; FeedForward and norms against their formulas."""

import math

import pytest
import torch
from reference import close
from torch import nn

from qkv import masks
from qkv.checkpoints import from_torch
from qkv.nn import Block, BlockConfig, FeedForward, LayerKVCache, make_norm
from qkv.positions import Alibi


def shaken(module, device):
    """In float64, with parameters that are not the tidy ones of a fresh module."""
    module = module.double().to(device).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


ORDERS = pytest.mark.parametrize("pre", [True, False])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])


@ORDERS
@ACTIVATIONS
@pytest.mark.parametrize("bias", [True, False])
def test_block_equals_transformer_encoder_layer(randn, device, pre, activation, bias):
    layer = nn.TransformerEncoderLayer(
        12, 3, 20, activation=activation, norm_first=pre, batch_first=True, bias=bias, layer_norm_eps=1e-3
    )
    theirs = shaken(layer, device)
    ours, x = from_torch(theirs), randn(2, 5, 12)
    token_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], device=device).bool()
    theirs.train()  # PyTorch's fast path for inference has no float64 of its own accuracy
    for module in theirs.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    theirs.self_attn.dropout = 0.0
    close(ours(x), theirs(x))
    out = ours(x, mask=masks.padding(token_mask))
    close(out[token_mask], theirs(x, src_key_padding_mask=~token_mask)[token_mask])
    later = torch.ones(5, 5, device=device).triu(1).bool()
    close(ours(x, mask=masks.causal(5)), theirs(x, src_mask=later))


@ORDERS
@ACTIVATIONS
def test_block_with_cross_attention_equals_transformer_decoder_layer(randn, device, pre, activation):
    theirs = shaken(
        nn.TransformerDecoderLayer(12, 3, 20, activation=activation, norm_first=pre, batch_first=True), device
    )
    ours, x, memory = from_torch(theirs), randn(2, 5, 12), randn(2, 7, 12)
    token_mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0, 1]], device=device).bool()
    later = torch.ones(5, 5, device=device).triu(1).bool()
    expected = theirs(x, memory, tgt_mask=later, memory_key_padding_mask=~token_mask)
    close(ours(x, memory, mask=masks.causal(5), memory_mask=masks.padding(token_mask)), expected)


@ORDERS
def test_block_with_caches_equals_one_call(randn, device, pre):
    config = BlockConfig(
        12, 3, 20, norm_order="pre" if pre else "post", cross_attention=True, position=Alibi(), norm="rms"
    )
    block, x, memory = shaken(Block(config), device), randn(2, 6, 12), randn(2, 7, 12)
    whole = block(x, memory, mask=masks.causal(6))
    cache, read, outs = LayerKVCache(), LayerKVCache(fixed=True), []
    for i in range(0, 6, 2):
        given = memory if i == 0 else None
        outs.append(block(x[:, i : i + 2], given, mask=masks.causal(2, i + 2), cache=cache, memory_cache=read))
    close(torch.cat(outs, dim=1), whole)


def test_block_has_gradients_for_every_parameter(randn, device):
    block = shaken(
        Block(BlockConfig(12, 4, 20, kv_heads=2, activation="swiglu", norm="rms", cross_attention=True)), device
    )
    block(randn(2, 5, 12), randn(2, 3, 12), mask=masks.causal(5)).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None and (parameter.grad.any() or name.endswith("to_k.bias")), name


def test_block_dropout_acts_in_training_only(randn, device):
    block, x = Block(BlockConfig(12, 3, 20, dropout=0.5)).double().to(device), randn(2, 5, 12)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu-tanh", "swiglu"])
def test_feed_forward_equals_its_formula(randn, device, activation, bias):
    network = shaken(FeedForward(6, 10, activation=activation, bias=bias), device)
    x = 2 * randn(2, 4, 6)
    with torch.no_grad():
        hidden = network.to_hidden(x).cpu()
        if activation == "swiglu":
            assert network.to_gate is not None
            hidden = hidden * network.to_gate(x).cpu().apply_(lambda gate: gate / (1 + math.exp(-gate)))
        else:
            hidden.apply_(FORMULAS[activation])
        close(network(x), network.to_out(hidden.to(device)))
    assert (network.to_out.bias is None) == (not bias)


def test_make_norm_layer_equals_its_formula(randn, device):
    norm, x = shaken(make_norm("layer", 6, eps=1e-3), device), 3 * randn(2, 4, 6) + 5
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + 1e-3).sqrt()
    close(norm(x), (x - mean) / deviation * norm.weight + norm.bias)
    assert make_norm("layer", 6, bias=False).bias is None


def test_make_norm_rms_equals_its_formula(randn, device):
    norm, x = shaken(make_norm("rms", 6, eps=1e-3), device), 3 * randn(2, 4, 6) + 5
    close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockConfig(12, 3, 20, norm_order="both"), "norm_order must be 'pre' or 'post', got 'both'"),  # pyright: ignore[reportArgumentType]
        (lambda: Block(BlockConfig(12, 3, 20, norm="batch")), "norm must be 'layer' or 'rms', got 'batch'"),  # pyright: ignore[reportArgumentType]
        (lambda: Block(BlockConfig(12, 5, 20)), "dim=12 is not divisible by heads=5"),
        (lambda: FeedForward(6, 0), "mlp_dim must be at least 1, got 0"),
        (lambda: FeedForward(6, 9, activation="tanh"), "'relu', 'gelu', 'gelu-tanh' or 'swiglu', got 'tanh'"),  # pyright: ignore[reportArgumentType]
        (
            lambda: Block(BlockConfig(12, 3, 20, cross_attention=True))(torch.zeros(1, 2, 12)),
            "needs a memory: pass memory=",
        ),
        (
            lambda: Block(BlockConfig(12, 3, 20))(torch.zeros(1, 2, 12), torch.zeros(1, 2, 12)),
            "takes no memory.*cross_attention=True",
        ),
    ],
)
def test_block_rejects_impossible_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
