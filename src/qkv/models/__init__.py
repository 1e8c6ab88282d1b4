"""Models: GPT, ViT, Encoder, Seq2Seq, Perceiver, Transcriber and the RNN, CNN and MLP baselines, one file each."""

from qkv.models.base import Model, build
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
