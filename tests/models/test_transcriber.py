"""Speech heard piece by piece is transcribed as the whole would be."""

import math

import pytest
import torch
import torch.nn.functional as F
from model_zoo import assert_close, randomised

from qkv.models import Transcriber, TranscriberConfig
from qkv.models.transcriber import read_out
from qkv.nn import MultiHeadAttention
from qkv.nn.speech_embedding import SoundStem, stem_shape

SIZES = {"features": 3, "labels": 5, "dim": 8, "heads": 2, "layers": 2, "mlp_dim": 12, "stack": 3}


STEM = {"features": 6, "stack": 4, "channels": 3}


@pytest.mark.parametrize("sizes", [{"context": 0}, {"context": 1}, {"context": 4}, {**STEM, "context": 5}])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@torch.no_grad()
def test_a_stream_of_sound_equals_the_whole(ahead, sizes, device):
    config = TranscriberConfig(**{**SIZES, **sizes}, chunk_size=2, left_chunks=2, ahead=ahead)
    model = randomised(config, device)
    frames = torch.randn(2, 40, config.features, dtype=torch.float64, device=device)
    for size in (1, 5, 6, 40):
        state, parts = None, []
        for piece in frames.split(size, dim=1):
            logits, state = model.stream(piece, state)
            parts.append(logits)
        parts.append(model.stream(frames[:, :0], state, final=True)[0])
        assert_close(torch.cat(parts, dim=1), model(frames))


def test_a_token_is_its_frames_and_the_context_before_them(device):
    model = randomised(TranscriberConfig(**SIZES, context=2), device)
    frames = torch.randn(1, 7, 3, dtype=torch.float64, device=device)
    heard = torch.cat((torch.zeros(2, 3).to(frames), frames[0], torch.zeros(2, 3).to(frames)))
    expected = torch.stack([heard[start : start + 5].flatten() for start in (0, 3, 6)])
    assert torch.equal(model.stacked(frames, None)[0], expected)


@pytest.mark.parametrize(("stack", "context"), [(4, 1), (4, 8), (2, 3), (6, 0)])
@torch.no_grad()
def test_the_stem_hears_of_a_window_what_it_hears_of_that_window_alone(stack, context, device):
    stem = SoundStem(bands=7, stack=stack, context=context, channels=3).double().to(device)
    frames = torch.randn(2, context + 5 * stack, 7, dtype=torch.float64, device=device)
    tokens = stem(frames)
    assert tokens.shape == (2, 5, math.prod(stem_shape(7, stack, context, 3)))
    for index in range(5):
        window = frames[:, index * stack : (index + 1) * stack + context]
        inner = F.gelu(F.conv2d(window[:, None], stem.first.weight, stem.first.bias, (1, 2), (0, 2)))
        alone = F.gelu(F.conv2d(inner, stem.second.weight, stem.second.bias, (2, 2), (0, 1)))
        expected = torch.stack([alone[:, :, place].flatten(1) for place in range(alone.shape[2])], 1)
        places = tokens[:, index].unflatten(1, (-1, stem.found)).mT
        assert_close(places, expected)


def test_a_stem_that_does_not_fit_is_refused():
    for sizes in ({"stack": 3, "context": 8}, {"stack": 4, "context": 0}):
        with pytest.raises(ValueError, match="an even stack, and 5 frames or more in stack and context together"):
            TranscriberConfig(**{**SIZES, **sizes, "channels": 2})
    with pytest.raises(ValueError, match="channels 0 or more"):
        TranscriberConfig(**SIZES, channels=-1)


@pytest.mark.parametrize("sizes", [{"context": 0}, {"context": 4}, {**STEM, "context": 8}])
@torch.no_grad()
def test_padding_changes_nothing(sizes, device):
    config = TranscriberConfig(**{**SIZES, **sizes})
    model = randomised(config, device)
    frames = torch.randn(2, 20, config.features, dtype=torch.float64, device=device)
    lengths = torch.tensor([20, 13], device=device)
    together = model(frames, torch.arange(20, device=device) < lengths[:, None])
    for row, length in enumerate(lengths.tolist()):
        alone = model(frames[row : row + 1, :length])
        assert_close(together[row : row + 1, : alone.shape[1]], alone)


def test_read_out_joins_repetitions_and_keeps_words_said_twice():
    said = torch.tensor([[0, 2, 2, 0, 2, 1, 1, 0], [4, 4, 4, 3, 0, 0, 4, 1]])
    logits = torch.nn.functional.one_hot(said, 5).double()
    assert read_out(logits) == [[2, 2, 1], [4, 3, 4, 1]]
    assert read_out(logits, torch.tensor([3, 7])) == [[2], [4, 3, 4]]


def test_a_frame_of_another_width_is_refused_by_name(device):
    model = randomised(TranscriberConfig(**SIZES), device)
    with pytest.raises(ValueError, match=r"frames of shape \(batch, frames, 3\)"):
        model(torch.zeros(1, 5, 4, dtype=torch.float64, device=device))


def test_dropout_of_attention_is_that_of_the_rest_unless_set_apart():
    for given, expected in ((None, 0.3), (0.0, 0.0), (0.1, 0.1)):
        model = Transcriber(TranscriberConfig(**SIZES, dropout=0.3, attention_dropout=given))
        parts = list(model.modules())
        assert {part.dropout for part in parts if isinstance(part, MultiHeadAttention)} == {expected}
        assert {part.p for part in parts if isinstance(part, torch.nn.Dropout)} == {0.3}
