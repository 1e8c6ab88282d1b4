"""Convert torch.nn modules to qkv with their weights: MultiheadAttention, TransformerEncoder, TransformerDecoderLayer …

The tables map PyTorch's names to ours.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import Encoder, EncoderConfig, Seq2Seq
from qkv.nn import MultiHeadAttention
from qkv.nn.block import Block, BlockConfig
from qkv.nn.feed_forward import Activation

M = TypeVar("M", bound=nn.Module)
ENCODER_LAYER = {"norm1": "attention_norm", "norm2": "feed_forward_norm"}
DECODER_LAYER = {"norm1": "attention_norm", "norm2": "cross_norm", "norm3": "feed_forward_norm"}
FEED_FORWARD = {"linear1": "to_hidden", "linear2": "to_out"}


@singledispatch
def from_torch(module: nn.Module) -> nn.Module:
    """Convert a MultiheadAttention, TransformerEncoderLayer, TransformerDecoderLayer or TransformerEncoder of torch.nn.

    Our module computes the same outputs, in the same dtype and mode.

    >>> theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    >>> x = torch.randn(1, 5, 16)
    >>> bool((from_torch(theirs)(x) - theirs(x, x, x)[0]).abs().max() < 1e-5)
    True
    """
    raise ValueError(
        f"from_torch converts torch.nn's MultiheadAttention, TransformerEncoderLayer, TransformerDecoderLayer or "
        f"TransformerEncoder, got {type(module).__name__}"
    )


@from_torch.register
def _(module: nn.MultiheadAttention) -> MultiHeadAttention:
    if module.bias_k is not None or module.add_zero_attn or not module._qkv_same_embed_dim:
        raise ValueError(
            "add_bias_kv, add_zero_attn, kdim and vdim of torch.nn.MultiheadAttention are not supported by qkv"
        )
    ours = MultiHeadAttention(
        module.embed_dim, module.num_heads, dropout=module.dropout, bias=module.in_proj_bias is not None
    )
    return _convert(ours, module, fill_attention)


@from_torch.register
def _(module: nn.TransformerEncoderLayer) -> Block:
    return _convert(Block(_block_config(module)), module, fill_block)


@from_torch.register
def _(module: nn.TransformerDecoderLayer) -> Block:
    return _convert(Block(_block_config(module)), module, fill_block)


@from_torch.register
def _(module: nn.TransformerEncoder) -> Encoder:
    """PyTorch's encoder takes vectors, so ours gets an identity as input projection."""
    first = module.layers[0]
    assert isinstance(first, nn.TransformerEncoderLayer)
    block = _block_config(first)
    config = EncoderConfig(
        features=block.dim,
        dim=block.dim,
        layers=len(module.layers),
        heads=block.heads,
        mlp_dim=block.mlp_dim,
        activation=block.activation,
        norm_order=block.norm_order,
        norm_eps=_norm_eps(module),
        position="none",
        final_norm=module.norm is not None,
        dropout=block.dropout,
        bias=block.bias,
    )
    ours = Encoder(config)
    assert isinstance(ours.tokens, nn.Linear)
    with torch.no_grad():
        nn.init.eye_(ours.tokens.weight)
        nn.init.zeros_(ours.tokens.bias)
    return _convert(ours, module, fill_encoder)


def fill_seq2seq(ours: Seq2Seq, theirs: nn.Transformer) -> None:
    """Copy the layers of torch.nn.Transformer, which has no token embeddings, into a Seq2Seq of its shape."""
    _fill_stack(ours.encoder, ours.encoder_norm, theirs.encoder)
    _fill_stack(ours.decoder, ours.decoder_norm, theirs.decoder)


def fill_encoder(ours: Encoder, theirs: nn.TransformerEncoder) -> None:
    """Copy the layers of torch.nn.TransformerEncoder into an Encoder of its shape."""
    _fill_stack(ours.blocks, ours.norm, theirs)


def _fill_stack(blocks: nn.ModuleList, norm: nn.Module, theirs: nn.Module) -> None:
    assert isinstance(theirs, nn.TransformerEncoder | nn.TransformerDecoder)
    if len(blocks) != len(theirs.layers):
        raise ValueError(f"a stack of {len(blocks)} layers cannot take the weights of {len(theirs.layers)} layers")
    if isinstance(norm, nn.Identity) != (theirs.norm is None):
        raise ValueError("one of the two stacks ends in a norm and the other does not; set final_norm= of the config")
    for block, layer in zip(blocks, theirs.layers, strict=True):
        fill_block(block, layer)
    if theirs.norm is not None:
        _copy(norm, theirs.norm)


def fill_block(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy torch.nn's encoder or decoder layer into a Block of its shape."""
    decoder = isinstance(theirs, nn.TransformerDecoderLayer)
    assert isinstance(ours, Block) and isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    fill_attention(ours.attention, theirs.self_attn)
    if isinstance(theirs, nn.TransformerDecoderLayer):
        fill_attention(ours.cross_attention, theirs.multihead_attn)
    for theirs_name, ours_name in (DECODER_LAYER if decoder else ENCODER_LAYER).items():
        _copy(getattr(ours, ours_name), getattr(theirs, theirs_name))
    for theirs_name, ours_name in FEED_FORWARD.items():
        _copy(getattr(ours.feed_forward, ours_name), getattr(theirs, theirs_name))


def fill_attention(ours: MultiHeadAttention | None, theirs: nn.MultiheadAttention) -> None:
    """Copy torch.nn.MultiheadAttention, whose three projections are fused, into ours."""
    assert ours is not None and ours.to_q is not None and ours.to_k is not None
    projections = (ours.to_q, ours.to_k, ours.to_v)
    with torch.no_grad():
        for ours_part, weight in zip(projections, theirs.in_proj_weight.chunk(3), strict=True):
            ours_part.weight.copy_(weight)
        if theirs.in_proj_bias is not None:
            for ours_part, bias in zip(projections, theirs.in_proj_bias.chunk(3), strict=True):
                ours_part.bias.copy_(bias)
    _copy(ours.to_out, theirs.out_proj)


def _block_config(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> BlockConfig:
    return BlockConfig(
        dim=layer.self_attn.embed_dim,
        heads=layer.self_attn.num_heads,
        mlp_dim=layer.linear1.out_features,
        activation=_activation(layer.activation),
        norm_order="pre" if layer.norm_first else "post",
        norm_eps=_norm_eps(layer),
        dropout=layer.dropout.p,
        bias=layer.linear1.bias is not None,
        cross_attention=isinstance(layer, nn.TransformerDecoderLayer),
    )


def _activation(theirs: object) -> Activation:
    if theirs in (F.relu, torch.relu) or isinstance(theirs, nn.ReLU):
        return "relu"
    if theirs is F.gelu or isinstance(theirs, nn.GELU):
        return "gelu-tanh" if getattr(theirs, "approximate", "none") == "tanh" else "gelu"
    name = getattr(theirs, "__name__", type(theirs).__name__)
    raise ValueError(f"the activation {name!r} is not supported by qkv; expected 'relu' or 'gelu'")


def _norm_eps(theirs: nn.Module) -> float:
    found = {norm.eps for norm in theirs.modules() if isinstance(norm, nn.LayerNorm)}
    if len(found) > 1:
        raise ValueError(f"all norms of a qkv model have one norm_eps, got {sorted(found)}")
    return found.pop()


def _convert(ours: M, theirs: nn.Module, fill: Callable[[M, Any], None]) -> M:
    parameter: Tensor = next(theirs.parameters())
    ours = ours.to(parameter.device, parameter.dtype)
    fill(ours, theirs)
    return ours.train(theirs.training)


def _copy(ours: nn.Module | None, theirs: nn.Module | None) -> None:
    assert ours is not None and theirs is not None
    ours.load_state_dict(theirs.state_dict())
