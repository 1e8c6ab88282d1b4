"""One token after another: a GPT's step without its checks, on weights laid out to be read once a step.

Axes: b batch · h heads of queries · g heads of keys · s tokens held · d head width · c model width · v vocabulary.

A step multiplies a single vector by every matrix, so it takes as long as reading the weights takes, unless the calls
between the products take longer. Where many tokens follow, queries, keys and values come from one product, and every
matrix lies with its longer axis along memory, which reads a third faster. The numbers are those of `GPT.hidden`, to
rounding; where anything is watched, changed or unusual, `GPT.hidden` itself is used.
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
from qkv.nn.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbedding
from qkv.nn.feed_forward import FeedForward
from qkv.nn.kv_cache import KVCache
from qkv.nn.multi_head_attention import MultiHeadAttention
from qkv.nn.placement import Placement
from qkv.nn.positions import Rotation
from qkv.nn.rope import Rope
from qkv.nn.scores import Dot

if TYPE_CHECKING:
    from qkv.models.gpt import GPT

PLAIN = (
    Block, MultiHeadAttention, FeedForward, TokenEmbedding, LearnedPositions, SinusoidalPositions, Placement,
    nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, Dropout,
)  # fmt: skip
WORTHWHILE = 4  # tokens: fewer are read by the model itself
ARRANGED = 48  # tokens: copying the weights costs about as much as writing this many saves

Vectors = Float[Tensor, "b c"]


def decodable(model: "GPT") -> bool:
    """Whether `Decoder` computes what the model does: nothing is watched, replaced or out of the ordinary."""
    config = model.config
    usual = (
        config.norm_order == "pre"
        and config.sliding_window is None
        and isinstance(config.score, Dot)
        and (config.score.scale is None or config.score.scale > 1e-30)
        and isinstance(config.position, str | Rope)
    )
    inside = [module for module in model.modules() if module is not model]
    watched = hooks._global_forward_hooks or hooks._global_forward_pre_hooks or _hooked(model)
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    device = model.tokens.weight.device.type
    return bool(
        usual
        and not (watched or modes or torch.is_autocast_enabled(device))
        and attention_layer.attention is attention
        and all(type(module) in PLAIN and not _hooked(module) for module in inside)
    )


class Product:
    """The products of one vector with one matrix or several, side by side.

    arranged: copy them into one matrix with its longer axis along memory.
    """

    def __init__(self, *linears: nn.Linear, arranged: bool) -> None:
        self.parts: list[tuple[Tensor, Tensor | None]] = [(linear.weight, linear.bias) for linear in linears]
        if arranged:
            weights = [weight for weight, _ in self.parts]
            biases = [bias for _, bias in self.parts if bias is not None]
            weight = torch.cat(weights) if len(weights) > 1 else weights[0]
            weight = weight.t().contiguous().t() if weight.shape[0] > weight.shape[1] else weight
            self.parts = [(weight, torch.cat(biases) if biases else None)]

    def __call__(self, x: Vectors) -> Float[Tensor, "b out"]:
        if len(self.parts) == 1:
            return F.linear(x, *self.parts[0])
        return torch.cat([F.linear(x, *part) for part in self.parts], dim=-1)


class DecoderLayer:
    """One block's step; it holds the block's keys and values."""

    def __init__(self, block: Block, keys: Tensor, values: Tensor, room: int, arranged: bool) -> None:
        attend, feed = block.attention, block.feed_forward
        assert attend.to_q is not None and attend.to_k is not None and isinstance(attend.score, Dot)
        self.heads, self.groups, self.dim = attend.heads, attend.kv_heads, attend.head_dim
        self.scale = self.dim**-0.5 if attend.score.scale is None else attend.score.scale
        self.q_norm, self.k_norm, self.rope = attend.q_norm, attend.k_norm, attend.position
        self.attention_norm, self.feed_forward_norm = _norm(block.attention_norm), _norm(block.feed_forward_norm)
        self.to_qkv = Product(attend.to_q, attend.to_k, attend.to_v, arranged=arranged)
        self.to_out = Product(attend.to_out, arranged=arranged)
        gate = () if feed.to_gate is None else (feed.to_gate,)
        self.to_hidden = Product(*gate, feed.to_hidden, arranged=arranged)
        self.from_hidden = Product(feed.to_out, arranged=arranged)
        self.activation = feed.activation
        self.keys, self.values = (_roomy(held, room) for held in (keys, values))

    def __call__(self, x: Vectors, place: int, rotation: Rotation | None) -> Vectors:
        x = x + self.to_out(self.attend(self.to_qkv(self.attention_norm(x)), place, rotation))
        return x + self.from_hidden(self.activate(self.to_hidden(self.feed_forward_norm(x))))

    def attend(self, qkv: Tensor, place: int, rotation: Rotation | None) -> Float[Tensor, "b hd"]:
        """What the token at this place gathers from those held and from itself."""
        heads, groups, count = self.heads, self.groups, qkv.shape[0]
        q, k, v = qkv.view(count, heads + 2 * groups, 1, self.dim).split((heads, groups, groups), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if isinstance(self.rope, Rope):
            q, k = self.rope.turn(q, rotation), self.rope.turn(k, rotation)
        self.keys.narrow(2, place, 1).copy_(k)
        self.values.narrow(2, place, 1).copy_(v)
        keys, values = self.keys.narrow(2, 0, place + 1), self.values.narrow(2, 0, place + 1)
        out = F.scaled_dot_product_attention(q, keys, values, scale=self.scale, enable_gqa=heads != groups)
        return out.reshape(count, heads * self.dim)

    def activate(self, hidden: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate, hidden = hidden.chunk(2, dim=-1)
            return F.silu(gate) * hidden
        if self.activation == "relu":
            return torch.relu(hidden)
        return F.gelu(hidden, approximate="tanh" if self.activation == "gelu-tanh" else "none")


class Decoder:
    """A GPT that continues what its cache holds, one token a call, for at most `room` tokens."""

    def __init__(self, model: "GPT", cache: KVCache, room: int) -> None:
        self.place, arranged = cache.length, room >= ARRANGED
        held = [cache.layer(index).held() for index in range(len(model.blocks))]
        self.layers = [
            DecoderLayer(block, keys, values, room, arranged)  # pyright: ignore[reportArgumentType]
            for block, (keys, values) in zip(model.blocks, held, strict=True)
        ]
        assert isinstance(model.head, nn.Linear)
        self.tokens, self.norm = model.tokens.weight, _norm(model.norm)
        self.head = Product(model.head, arranged=arranged)
        to_come = torch.arange(self.place, self.place + room, device=self.tokens.device)
        self.first, absolute = self.place, model.place.positions
        self.vectors = None if absolute is None else absolute(to_come)
        self.cos = self.sin = None
        if isinstance(model.config.position, Rope) and self.layers:
            self.cos, self.sin = model.config.position.rotation(to_come, self.layers[0].dim, self.tokens.dtype)

    def __call__(self, tokens: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        """Read one token of each row; the logits of the next."""
        step = self.place - self.first
        x = F.embedding(tokens, self.tokens)
        if self.vectors is not None:
            x = x + self.vectors[step]
        rotation = None
        if self.cos is not None and self.sin is not None:
            rotation = Rotation(self.cos[step : step + 1], self.sin[step : step + 1])
        for layer in self.layers:
            x = layer(x, self.place, rotation)
        self.place += 1
        return self.head(self.norm(x))


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm as one call of PyTorch's."""
    if isinstance(norm, nn.LayerNorm):
        layer, shape, weight, bias, epsilon = torch.layer_norm, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: layer(x, shape, weight, bias, epsilon)
    assert isinstance(norm, nn.RMSNorm)
    rms, shape, weight, epsilon = torch.rms_norm, list(norm.normalized_shape), norm.weight, norm.eps
    return lambda x: rms(x, shape, weight, epsilon)


def _roomy(held: Float[Tensor, "b g s d"], room: int) -> Float[Tensor, "b g n d"]:
    """A copy with room for as many more tokens."""
    roomy = held.new_empty(*held.shape[:2], held.shape[2] + room, held.shape[3])
    roomy[:, :, : held.shape[2]] = held
    return roomy


def _hooked(module: nn.Module) -> bool:
    """Whether somebody watches a module's calls, or has put another function in the place of its own."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
