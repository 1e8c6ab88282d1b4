"""The position schemes (a door to `qkv.ops` and `qkv.layers`)."""

from qkv.layers.positions import Shaw, T5Bias
from qkv.ops.positions import Alibi, sinusoidal
from qkv.ops.rope import Linear, Llama3, Ntk, Rope, Yarn

__all__ = ["Alibi", "Linear", "Llama3", "Ntk", "Rope", "Shaw", "T5Bias", "Yarn", "sinusoidal"]
