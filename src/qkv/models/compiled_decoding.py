"""Compiled decoding: a GPT's step as one call of C, for float32 and int8 weights on the CPU.

Axes: b batch · g key heads · s cached tokens · d head dim · c model dim · v vocabulary.

decode_step.c reads the model's own weights: nothing is copied or rearranged. The numbers are those of
`GPT.hidden_states`, to rounding, and do not depend on the number of threads. Without a compiler, `FastDecoder` is used.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.compile_kernel import load_kernel
from qkv.nn.block import Block
from qkv.nn.kv_cache import KVCache
from qkv.nn.quantized import Int8Linear
from qkv.nn.rope import Rope
from qkv.nn.scores import Dot

if TYPE_CHECKING:
    from qkv.models.gpt import GPT

SOURCE = Path(__file__).with_name("decode_step.c")
ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "swiglu")  # numbered as in decode_step.c
PHASES = 8  # of a layer, as in decode_step.c
MAX_ROWS = 32  # tokens that are read at once; with more rows PyTorch's matrix products are faster
MAX_PROMPT = 64  # longer prompts are read by the model itself, because PyTorch's matrix products are faster
MAX_INT8_PROMPT = 512  # PyTorch has no product with int8 weights, so that they would be turned into floats

Pointer = ctypes.c_void_p
Count = ctypes.c_int64


class _Matrix(ctypes.Structure):
    _fields_ = [("weight", Pointer), ("scale", Pointer), ("bias", Pointer), ("rows", Count), ("columns", Count)]


class _Norm(ctypes.Structure):
    _fields_ = [("weight", Pointer), ("bias", Pointer), ("kind", Count), ("eps", ctypes.c_double)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Norm) for name in ("attention_norm", "q_norm", "k_norm", "feed_forward_norm")),
        *((name, _Matrix) for name in ("to_q", "to_k", "to_v", "to_out", "to_gate", "to_hidden", "from_hidden")),
        *((name, Pointer) for name in ("keys", "values")),
    ]


SIZES = ("batch", "dim", "layers", "heads", "kv_heads", "head_dim", "mlp_dim", "capacity")
CHOICES = ("activation", "pairs", "interleaved", "threads")
BUFFERS = ("x", "q", "k", "v", "attended", "hidden", "gate")


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, Count) for name in (*SIZES, *CHOICES, "first", "count", "index")),
        ("scale", ctypes.c_double),
        *((name, Pointer) for name in ("tokens", "positions", "cos", "sin")),
        ("layer", ctypes.POINTER(_Layer)),
        ("norm", _Norm),
        ("head", _Matrix),
        *((name, Pointer) for name in (*BUFFERS, "scratch")),
        ("scratch_size", Count),
        *((name, Pointer) for name in ("taken", "meeting")),
    ]


def can_decode_compiled(model: "GPT", rows: int) -> bool:
    """Whether `CompiledDecoder` can run a model that `can_decode_fast`: float32 on the CPU, few rows, a compiler."""
    if not model.blocks or rows > MAX_ROWS:
        return False
    floats = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    fits = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in floats)
    return fits and load_kernel(SOURCE) is not None


def can_read_prompt(model: "GPT", tokens: Tensor) -> bool:
    """Whether `CompiledDecoder` reads a prompt (b, t) at least as fast as the model."""
    return tokens.numel() <= (MAX_INT8_PROMPT if isinstance(model.head, Int8Linear) else MAX_PROMPT)


class CompiledDecoder:
    """Continues `rows` texts, for at most `max_tokens` tokens.

    Args:
        cache: the tokens that the model has read; None is none.
    """

    def __init__(self, model: "GPT", rows: int, max_tokens: int, cache: KVCache | None = None) -> None:
        library = load_kernel(SOURCE)
        assert library is not None
        self._step = library.decode_step
        self._step.argtypes = [ctypes.POINTER(_Model), Pointer, Count, Count, Pointer]
        self._step.restype = None
        self._kept: list[Any] = []  # what the C code points to
        self.index = self.first = 0 if cache is None else cache.length  # of the next token, and of the first to come
        self.capacity = self.first + max_tokens
        self.rows, self.max_count = rows, max(1, MAX_ROWS // rows)
        layers = []
        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            layers.append(self._layer(block, (None, None) if cache is None else cache.layer(number).get()))
        self._model = self._describe(model, layers)

    def __call__(self, tokens: Int[Tensor, "b *t"]) -> Float[Tensor, "b v"]:
        """Read one or more tokens of each row and return the logits after the last."""
        tokens = tokens.reshape(self.rows, -1).long()
        if self.index + tokens.shape[1] > self.capacity:
            raise ValueError(f"this decoder has room for {self.capacity - self.index} tokens, got {tokens.shape[1]}")
        logits = torch.empty(self.rows, self._model.head.rows)
        parts = tokens.split(self.max_count, dim=1)
        for number, part in enumerate(parts):
            part = part.contiguous()
            target = logits.data_ptr() if number == len(parts) - 1 else None
            self._step(ctypes.byref(self._model), part.data_ptr(), part.shape[1], self.index, target)
            self.index += part.shape[1]
        return logits

    def _describe(self, model: "GPT", layers: list[_Layer]) -> _Model:
        config = model.config
        head_dim = config.head_dim or config.dim // config.heads
        kv_heads = config.kv_heads or config.heads
        mlp_dim = layers[0].to_hidden.rows
        positions = torch.arange(self.first, self.capacity)
        rope, table = config.position, model.position_embedding.positions
        angles = rope.rotation(positions, head_dim, torch.float32) if isinstance(rope, Rope) else None
        assert isinstance(config.score, Dot)
        threads, rows = torch.get_num_threads(), self.rows * self.max_count
        scratch_size = max(rows * config.dim, self.capacity + head_dim) + 32  # apart from the other threads'
        widths = (config.dim, config.heads * head_dim, *(2 * [kv_heads * head_dim]), config.heads * head_dim, mlp_dim)
        buffers = [torch.empty(rows * width) for width in (*widths, mlp_dim)]
        described = _Model(
            batch=self.rows, first=self.first, dim=config.dim,
            layers=len(layers), heads=config.heads, kv_heads=kv_heads, head_dim=head_dim,
            mlp_dim=mlp_dim, capacity=self.capacity, activation=ACTIVATIONS.index(config.activation),
            pairs=0 if angles is None else angles.cos.shape[-1],
            interleaved=isinstance(rope, Rope) and rope.pairing == "interleaved",
            threads=threads, scale=head_dim**-0.5 if config.score.scale is None else config.score.scale,
            tokens=self._point(model.tokens.weight), positions=self._point(None if table is None else table(positions)),
            cos=self._point(angles and angles.cos), sin=self._point(angles and angles.sin),
            layer=(_Layer * len(layers))(*layers), norm=self._norm(model.norm), head=self._matrix(model.head),
            scratch=self._point(torch.empty(threads * scratch_size)), scratch_size=scratch_size,
            taken=self._point(torch.empty(PHASES * len(layers) + 1, dtype=torch.int64)),
            meeting=self._point(torch.zeros(2, dtype=torch.int64)),
        )  # fmt: skip
        for name, buffer in zip(BUFFERS, buffers, strict=True):
            setattr(described, name, self._point(buffer))
        return described

    def _layer(self, block: Block, cached: tuple[Tensor | None, Tensor | None]) -> _Layer:
        attend, feed = block.attention, block.feed_forward
        keys, values = (torch.empty(self.rows, attend.kv_heads, self.capacity, attend.head_dim) for _ in range(2))
        for buffer, earlier in zip((keys, values), cached, strict=True):
            if earlier is not None:
                buffer[:, :, : self.first] = earlier
        return _Layer(
            attention_norm=self._norm(block.attention_norm), q_norm=self._norm(attend.q_norm),
            k_norm=self._norm(attend.k_norm), feed_forward_norm=self._norm(block.feed_forward_norm),
            to_q=self._matrix(attend.to_q), to_k=self._matrix(attend.to_k), to_v=self._matrix(attend.to_v),
            to_out=self._matrix(attend.to_out), to_gate=self._matrix(feed.to_gate),
            to_hidden=self._matrix(feed.to_hidden), from_hidden=self._matrix(feed.to_out),
            keys=self._point(keys), values=self._point(values),
        )  # fmt: skip

    def _matrix(self, linear: nn.Module | None) -> _Matrix:
        if linear is None:
            return _Matrix()
        assert isinstance(linear, nn.Linear | Int8Linear)
        quantized = isinstance(linear, Int8Linear)
        weight, scale = (linear.values, linear.scale) if quantized else (linear.weight, None)
        pointers = (self._point(tensor) for tensor in (weight, scale, linear.bias))
        return _Matrix(*pointers, linear.out_features, linear.in_features)

    def _norm(self, norm: nn.Module | None) -> _Norm:
        if norm is None:
            return _Norm()
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        layer_norm = isinstance(norm, nn.LayerNorm)
        eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        bias = norm.bias if layer_norm else None
        return _Norm(self._point(norm.weight), self._point(bias), 1 if layer_norm else 2, eps)

    def _point(self, tensor: Tensor | None) -> int | None:
        """The address of a tensor's numbers, which are kept as long as this decoder."""
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()
