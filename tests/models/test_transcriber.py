"""Transcriber: streaming equals one call, convolutional stem, padding, greedy CTC decoding."""

import math

import pytest
import torch
import torch.nn.functional as F
from model_cases import assert_close, make_random_model

from qkv.models import Transcriber, TranscriberConfig
from qkv.models.transcriber import ctc_greedy_decode
from qkv.nn import MultiHeadAttention
from qkv.nn.embeddings import ConvStem, conv_stem_shape

SIZES = {"features": 3, "num_labels": 5, "dim": 8, "heads": 2, "layers": 2, "mlp_dim": 12, "frames_per_token": 3}


STEM = {"features": 6, "frames_per_token": 4, "conv_channels": 3}


@pytest.mark.parametrize(
    "sizes", [{"context_frames": 0}, {"context_frames": 1}, {"context_frames": 4}, {**STEM, "context_frames": 5}]
)
@pytest.mark.parametrize("ahead", [0, 1, 2])
@torch.no_grad()
def test_transcriber_stream_equals_one_call(ahead, sizes, device):
    config = TranscriberConfig(**{**SIZES, **sizes}, chunk_size=2, left_chunks=2, lookahead_chunks=ahead)
    model = make_random_model(config, device)
    frames = torch.randn(2, 40, config.features, dtype=torch.float64, device=device)
    for size in (1, 5, 6, 40):
        state, parts = None, []
        for piece in frames.split(size, dim=1):
            logits, state = model.stream(piece, state)
            parts.append(logits)
        parts.append(model.stream(frames[:, :0], state, final=True)[0])
        assert_close(torch.cat(parts, dim=1), model(frames))


def test_transcriber_embed_frames_stacks_frames_and_context(device):
    model = make_random_model(TranscriberConfig(**SIZES, context_frames=2), device)
    frames = torch.randn(1, 7, 3, dtype=torch.float64, device=device)
    source_mask = torch.cat((torch.zeros(2, 3).to(frames), frames[0], torch.zeros(2, 3).to(frames)))
    expected = torch.stack([source_mask[start : start + 5].flatten() for start in (0, 3, 6)])
    assert torch.equal(model.embed_frames(frames, None)[0], expected)


@pytest.mark.parametrize(("stack", "context"), [(4, 1), (4, 8), (2, 3), (6, 0)])
@torch.no_grad()
def test_conv_stem_equals_the_convolutions_of_each_window_alone(stack, context, device):
    stem = ConvStem(bands=7, frames_per_token=stack, context_frames=context, channels=3).double().to(device)
    frames = torch.randn(2, context + 5 * stack, 7, dtype=torch.float64, device=device)
    tokens = stem(frames)
    assert tokens.shape == (2, 5, math.prod(conv_stem_shape(7, stack, context, 3)))
    for index in range(5):
        window = frames[:, index * stack : (index + 1) * stack + context]
        inner = F.gelu(F.conv2d(window[:, None], stem.first.weight, stem.first.bias, (1, 2), (0, 2)))
        alone = F.gelu(F.conv2d(inner, stem.second.weight, stem.second.bias, (2, 2), (0, 1)))
        expected = torch.stack([alone[:, :, place].flatten(1) for place in range(alone.shape[2])], 1)
        places = tokens[:, index].unflatten(1, (-1, stem.window)).mT
        assert_close(places, expected)


def test_transcriber_config_rejects_a_stem_that_does_not_fit():
    for sizes in ({"frames_per_token": 3, "context_frames": 8}, {"frames_per_token": 4, "context_frames": 0}):
        with pytest.raises(
            ValueError, match=r"an even frames_per_token, and frames_per_token \+ context_frames of at least 5"
        ):
            TranscriberConfig(**{**SIZES, **sizes, "conv_channels": 2})
    with pytest.raises(ValueError, match="context_frames and conv_channels 0 or more"):
        TranscriberConfig(**SIZES, conv_channels=-1)


@pytest.mark.parametrize("sizes", [{"context_frames": 0}, {"context_frames": 4}, {**STEM, "context_frames": 8}])
@torch.no_grad()
def test_transcriber_ignores_padding(sizes, device):
    config = TranscriberConfig(**{**SIZES, **sizes})
    model = make_random_model(config, device)
    frames = torch.randn(2, 20, config.features, dtype=torch.float64, device=device)
    lengths = torch.tensor([20, 13], device=device)
    together = model(frames, torch.arange(20, device=device) < lengths[:, None])
    for row, length in enumerate(lengths.tolist()):
        alone = model(frames[row : row + 1, :length])
        assert_close(together[row : row + 1, : alone.shape[1]], alone)


def test_ctc_greedy_decode_merges_repetitions_and_keeps_repeated_labels():
    said = torch.tensor([[0, 2, 2, 0, 2, 1, 1, 0], [4, 4, 4, 3, 0, 0, 4, 1]])
    logits = torch.nn.functional.one_hot(said, 5).double()
    assert ctc_greedy_decode(logits) == [[2, 2, 1], [4, 3, 4, 1]]
    assert ctc_greedy_decode(logits, torch.tensor([3, 7])) == [[2], [4, 3, 4]]


def test_transcriber_rejects_frames_of_another_dim(device):
    model = make_random_model(TranscriberConfig(**SIZES), device)
    with pytest.raises(ValueError, match=r"frames must have shape \(batch, frames, 3\)"):
        model(torch.zeros(1, 5, 4, dtype=torch.float64, device=device))


def test_transcriber_attention_dropout_defaults_to_dropout():
    for given, expected in ((None, 0.3), (0.0, 0.0), (0.1, 0.1)):
        model = Transcriber(TranscriberConfig(**SIZES, dropout=0.3, attention_dropout=given))
        parts = list(model.modules())
        assert {part.dropout for part in parts if isinstance(part, MultiHeadAttention)} == {expected}
        assert {part.p for part in parts if isinstance(part, torch.nn.Dropout)} == {0.3}
