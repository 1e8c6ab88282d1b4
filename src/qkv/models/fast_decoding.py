"""Fast decoding: one-token GPT steps without checks, on weights arranged so that each is read once per step.

Axes: b batch · h query heads · g key heads · s cached tokens · d head dim · c model dim · v vocabulary.

A step multiplies one vector by every matrix, so it takes as long as reading the weights, unless the calls in between
take longer. Where many tokens follow, queries, keys and values come from one product, and every matrix is stored with
its longer axis contiguous, which reads a third faster. The numbers are those of `GPT.hidden_states`, to rounding. Where
anything is hooked, replaced or unusual, `GPT.hidden_states` itself is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from qkv.nn import multi_head_attention as attention_layer
from qkv.nn.attention import attention
from qkv.nn.block import Block
from qkv.nn.dropout import Dropout
from qkv.nn.embeddings import LearnedPositions, PositionEmbedding, SinusoidalPositions, TokenEmbedding
from qkv.nn.feed_forward import Activation, FeedForward, activate
from qkv.nn.kv_cache import KVCache
from qkv.nn.multi_head_attention import MultiHeadAttention
from qkv.nn.positions import Rotation
from qkv.nn.quantized import Int8Linear
from qkv.nn.rope import Rope
from qkv.nn.scores import Dot

if TYPE_CHECKING:
    from qkv.models.gpt import GPT

SUPPORTED = (
    Block, MultiHeadAttention, FeedForward, TokenEmbedding, LearnedPositions, SinusoidalPositions, PositionEmbedding,
    nn.ModuleList, nn.Linear, Int8Linear, nn.LayerNorm, nn.RMSNorm, Dropout,
)  # fmt: skip
MIN_TOKENS = 4  # for fewer tokens the model itself is used
MIN_TOKENS_TO_REARRANGE = 48  # copying the weights costs about as much as so many tokens save

Vectors = Float[Tensor, "b c"]


def can_decode_fast(model: "GPT") -> bool:
    """Whether `FastDecoder` computes the same as the model: nothing is hooked, replaced or unusual."""
    config = model.config
    usual = (
        config.norm_order == "pre"
        and config.sliding_window is None
        and isinstance(config.score, Dot)
        and (config.score.scale is None or config.score.scale > 1e-30)
        and isinstance(config.position, str | Rope)
    )
    hooked = hooks._global_forward_hooks or hooks._global_forward_pre_hooks or _is_hooked(model)
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    autocast = torch.is_autocast_enabled(model.tokens.weight.device.type)
    if not usual or hooked or modes or autocast or attention_layer.attention is not attention:
        return False
    inner = [module for module in model.modules() if module is not model]
    return all(type(module) in SUPPORTED and not _is_hooked(module) for module in inner)


class Product:
    """The product of a vector with one matrix, or with several side by side.

    Args:
        rearrange: copy the matrices into one with its longer axis contiguous.
    """

    def __init__(self, *linears: nn.Linear | Int8Linear, rearrange: bool) -> None:
        self.parts: list[tuple[Tensor, Tensor | None]] = [(linear.weight, linear.bias) for linear in linears]
        if rearrange:
            weights = [weight for weight, _ in self.parts]
            biases = [bias for _, bias in self.parts if bias is not None]
            weight = torch.cat(weights) if len(weights) > 1 else weights[0]
            weight = weight.t().contiguous().t() if weight.shape[0] > weight.shape[1] else weight
            self.parts = [(weight, torch.cat(biases) if biases else None)]

    def __call__(self, x: Vectors) -> Float[Tensor, "b out"]:
        if len(self.parts) == 1:
            return F.linear(x, *self.parts[0])
        return torch.cat([F.linear(x, *part) for part in self.parts], dim=-1)


class FastLayer:
    """One block's step, with the block's keys and values."""

    def __init__(self, block: Block, keys: Tensor, values: Tensor, max_tokens: int, rearrange: bool) -> None:
        attend, feed = block.attention, block.feed_forward
        assert attend.to_q is not None and attend.to_k is not None and isinstance(attend.score, Dot)
        self.heads, self.kv_heads, self.head_dim = attend.heads, attend.kv_heads, attend.head_dim
        self.scale = self.head_dim**-0.5 if attend.score.scale is None else attend.score.scale
        self.q_norm, self.k_norm, self.rope = attend.q_norm, attend.k_norm, attend.position
        self.attention_norm = _make_norm_function(block.attention_norm)
        self.feed_forward_norm = _make_norm_function(block.feed_forward_norm)
        self.to_qkv = Product(attend.to_q, attend.to_k, attend.to_v, rearrange=rearrange)
        self.to_out = Product(attend.to_out, rearrange=rearrange)
        gate = () if feed.to_gate is None else (feed.to_gate,)
        self.to_hidden = Product(*gate, feed.to_hidden, rearrange=rearrange)
        self.from_hidden = Product(feed.to_out, rearrange=rearrange)
        self.activation: Activation = feed.activation
        self.keys, self.values = (_extend_buffer(cached, max_tokens) for cached in (keys, values))

    def __call__(self, x: Vectors, index: int, rotation: Rotation | None) -> Vectors:
        x = x + self.to_out(self.attend(self.to_qkv(self.attention_norm(x)), index, rotation))
        return x + self.from_hidden(self.activate(self.to_hidden(self.feed_forward_norm(x))))

    def attend(self, qkv: Tensor, index: int, rotation: Rotation | None) -> Float[Tensor, "b hd"]:
        """Attention of the token at this index to the cached tokens and itself."""
        heads, kv_heads, b = self.heads, self.kv_heads, qkv.shape[0]
        q, k, v = qkv.view(b, heads + 2 * kv_heads, 1, self.head_dim).split((heads, kv_heads, kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if isinstance(self.rope, Rope):
            q, k = self.rope.rotate(q, rotation), self.rope.rotate(k, rotation)
        self.keys.narrow(2, index, 1).copy_(k)
        self.values.narrow(2, index, 1).copy_(v)
        keys, values = self.keys.narrow(2, 0, index + 1), self.values.narrow(2, 0, index + 1)
        out = F.scaled_dot_product_attention(q, keys, values, scale=self.scale, enable_gqa=heads != kv_heads)
        return out.reshape(b, heads * self.head_dim)

    def activate(self, hidden: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate, hidden = hidden.chunk(2, dim=-1)
            return F.silu(gate) * hidden
        return activate(hidden, self.activation)


class FastDecoder:
    """Continues the cached tokens of a GPT, one token per call, for at most `max_tokens` tokens."""

    def __init__(self, model: "GPT", cache: KVCache, max_tokens: int) -> None:
        rearrange = max_tokens >= MIN_TOKENS_TO_REARRANGE
        self.first = self.index = cache.length  # of the first token to come, and of the next one
        cached = [cache.layer(number).get() for number in range(len(model.blocks))]
        self.layers = [
            FastLayer(block, keys, values, max_tokens, rearrange)  # pyright: ignore[reportArgumentType]
            for block, (keys, values) in zip(model.blocks, cached, strict=True)
        ]
        assert isinstance(model.head, nn.Linear | Int8Linear)
        self.tokens, self.norm = model.tokens.weight, _make_norm_function(model.norm)
        self.head = Product(model.head, rearrange=rearrange)
        positions = torch.arange(self.first, self.first + max_tokens, device=self.tokens.device)
        table = model.position_embedding.positions
        self.vectors = None if table is None else table(positions)
        self.rotation = None
        if isinstance(model.config.position, Rope) and self.layers:
            self.rotation = model.config.position.rotation(positions, self.layers[0].head_dim, self.tokens.dtype)

    def __call__(self, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        """Read one token of each row and return the logits of the next."""
        step = self.index - self.first
        x = F.embedding(tokens, self.tokens)
        if self.vectors is not None:
            x = x + self.vectors[step]
        rotation = None
        if self.rotation is not None:
            rotation = Rotation(self.rotation.cos[step : step + 1], self.rotation.sin[step : step + 1])
        for layer in self.layers:
            x = layer(x, self.index, rotation)
        self.index += 1
        return self.head(self.norm(x))


def _make_norm_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm as a single PyTorch call."""
    if isinstance(norm, nn.LayerNorm):
        layer, shape, weight, bias, eps = torch.layer_norm, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: layer(x, shape, weight, bias, eps)
    assert isinstance(norm, nn.RMSNorm)
    rms, shape, weight, eps = torch.rms_norm, list(norm.normalized_shape), norm.weight, norm.eps
    return lambda x: rms(x, shape, weight, eps)


def _extend_buffer(cached: Float[Tensor, "b g s d"], max_tokens: int) -> Float[Tensor, "b g n d"]:
    """A copy with room for `max_tokens` more tokens."""
    buffer = cached.new_empty(*cached.shape[:2], cached.shape[2] + max_tokens, cached.shape[3])
    buffer[:, :, : cached.shape[2]] = cached
    return buffer


def _is_hooked(module: nn.Module) -> bool:
    """Whether a module has forward hooks, or its `forward` was replaced."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
