"""The position schemes (a door to `qkv.nn` and `qkv.nn`)."""

from qkv.nn.position_layers import Shaw, T5Bias
from qkv.nn.positions import Alibi, sinusoidal
from qkv.nn.rope import Linear, Llama3, Ntk, Rope, Yarn

__all__ = ["Alibi", "Linear", "Llama3", "Ntk", "Rope", "Shaw", "T5Bias", "Yarn", "sinusoidal"]
