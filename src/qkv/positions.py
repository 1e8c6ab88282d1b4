"""Position encodings (public names of `qkv.nn.positions` and `qkv.nn.rope`)."""

from qkv.nn.positions import Alibi, Shaw, T5Bias, sinusoidal
from qkv.nn.rope import LinearScaling, Llama3Scaling, NtkScaling, Rope, YarnScaling

__all__ = [
    "Alibi",
    "LinearScaling",
    "Llama3Scaling",
    "NtkScaling",
    "Rope",
    "Shaw",
    "T5Bias",
    "YarnScaling",
    "sinusoidal",
]
