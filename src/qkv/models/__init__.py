"""Whole architectures, input to output on one page each."""

from qkv.models.base import Model
from qkv.models.cnn import CNN, CNNConfig
from qkv.models.encoder import Encoder, EncoderConfig, EncoderState
from qkv.models.gpt import GPT, GPTConfig
from qkv.models.mlp import MLP, MLPConfig
from qkv.models.perceiver import Perceiver, PerceiverConfig
from qkv.models.presets import PRESETS
from qkv.models.rnn import RNN, RNNCache, RNNConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.seq2seq import Seq2Seq, Seq2SeqConfig
from qkv.models.transcriber import Transcriber, TranscriberConfig
from qkv.models.vit import ViT, ViTConfig

__all__ = [
    "CNN",
    "GPT",
    "MLP",
    "PRESETS",
    "RNN",
    "CNNConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderState",
    "GPTConfig",
    "MLPConfig",
    "Model",
    "Perceiver",
    "PerceiverConfig",
    "RNNCache",
    "RNNConfig",
    "RNNSeq2Seq",
    "RNNSeq2SeqConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Transcriber",
    "TranscriberConfig",
    "ViT",
    "ViTConfig",
    "build",
]


def build(config: object) -> Model:
    """The model that a config describes.

    >>> type(build(PRESETS["course-vit"])).__name__, build(PRESETS["course-vit"]).size
    ('ViT', 3217764)
    """
    for kind in Model.known.values():
        if type(config) is kind.config_class:
            return kind(config)
    raise ValueError(f"expected a config such as GPTConfig(…); got {type(config).__name__}")
