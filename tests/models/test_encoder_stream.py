"""Encoder.stream gives the same hidden states as one call on the whole input."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_cases import POSITIONS, SMALL, assert_close, inputs, make_random_model, tokens_like

from qkv.models import EncoderConfig

LAYERS = {**SMALL, "layers": 2, "heads": 2, "max_length": 64}


def streamed(model, given, sizes, *, final_alone=False):
    """The outputs of a stream fed in pieces of these sizes, and how many came with each piece."""
    outs, state = [], None
    pieces = given.split([*sizes, given.shape[1] - sum(sizes)], dim=1)
    if final_alone:  # the end is told with an empty piece
        pieces = [*pieces, given[:, :0]]
    for piece in pieces[:-1]:
        out, state = model.stream(piece, state)
        outs.append(out)
    out, state = model.stream(pieces[-1], state, final=True)
    return torch.cat([*outs, out], dim=1), [part.shape[1] for part in [*outs, out]]


CHUNKED = {
    **{f"{name}": {"position": place, "chunk_size": 3, "left_chunks": 1} for name, place in POSITIONS.items()},
    "all before": {"chunk_size": 3, "left_chunks": None, "position": "rope"},
    "none before": {"chunk_size": 4, "left_chunks": 0, "position": "shaw"},
    "two before": {"chunk_size": 2, "left_chunks": 2, "position": "learned"},
    "chunks of one": {"chunk_size": 1, "left_chunks": 3, "position": "t5"},
    "one chunk for all": {"chunk_size": 50, "left_chunks": 0},
    "post-norm": {
        "chunk_size": 3,
        "left_chunks": 1,
        "norm_order": "post",
        "norm": "rms",
        "activation": "swiglu",
        "scale_embeddings": True,
    },
    "one ahead": {"chunk_size": 3, "left_chunks": 1, "lookahead_chunks": 1, "position": "rope"},
    "two ahead, all before": {"chunk_size": 2, "left_chunks": None, "lookahead_chunks": 2, "position": "t5"},
    "three ahead, none before": {"chunk_size": 2, "left_chunks": 0, "lookahead_chunks": 3, "norm_order": "post"},
    "one ahead, learned": {"chunk_size": 4, "left_chunks": 2, "lookahead_chunks": 1, "position": "learned"},
    "far ahead": {"chunk_size": 3, "left_chunks": 1, "lookahead_chunks": 9, "position": "shaw"},
    "vectors": {"chunk_size": 3, "left_chunks": 1, "vocab_size": None, "features": 5},
    "vectors, all before": {
        "chunk_size": 2,
        "left_chunks": None,
        "vocab_size": None,
        "features": 5,
        "position": "alibi",
    },
}


@pytest.mark.parametrize("choice", CHUNKED.values(), ids=list(CHUNKED))
@torch.no_grad()
def test_encoder_stream_equals_one_call(choice, device, unchecked):
    config = EncoderConfig(**{**LAYERS, **choice})
    model = make_random_model(config, device)
    (given,) = inputs(config, device, batch=3, length=17)
    whole = model(given)
    for sizes in ([], [1] * 16, [2] * 8, [5, 0, 1, 7, 0, 3], [16]):
        parts, _ = streamed(model, given, sizes)
        assert_close(parts, whole, note=str(sizes))
    parts, _ = streamed(model, given, [8], final_alone=True)
    assert_close(parts, whole)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the device is the same for every example
)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    rest=st.integers(0, 5),
    chunk=st.integers(1, 5),
    left_chunks=st.none() | st.integers(0, 3),
    ahead=st.integers(0, 2),
)
@torch.no_grad()
def test_encoder_stream_takes_pieces_of_any_size(sizes, rest, chunk, left_chunks, ahead, device):
    config = EncoderConfig(
        vocab_size=7,
        dim=4,
        heads=2,
        layers=2,
        mlp_dim=6,
        chunk_size=chunk,
        left_chunks=left_chunks,
        lookahead_chunks=ahead,
    )
    model = make_random_model(config, device)
    tokens = tokens_like(2, sum(sizes) + rest, device=device, vocab_size=7)
    parts, _ = streamed(model, tokens, sizes)
    assert_close(parts, model(tokens))


@torch.no_grad()
def test_encoder_stream_with_lookahead_waits_for_so_many_chunks(device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=2, left_chunks=1, lookahead_chunks=1), device)
    tokens = tokens_like(1, 12, device=device)
    _, counts = streamed(model, tokens, [2, 2, 1, 3])
    assert counts == [0, 2, 0, 4, 6]
    whole = model(tokens)
    for changed in range(12):
        other = tokens.clone()
        other[:, changed] = (tokens[:, changed] + 1) % model.config.vocab_size
        moved = (model(other) != whole).any(-1)[0].nonzero().flatten().tolist()
        assert min(moved) == max((changed // 2 - 1) * 2, 0)  # the chunk before its own is the first to see it


@torch.no_grad()
def test_encoder_stream_returns_a_chunk_as_soon_as_it_is_complete(device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=4, left_chunks=1), device)
    _, counts = streamed(model, tokens_like(1, 14, device=device), [3, 1, 0, 5, 2])
    assert counts == [0, 4, 0, 4, 0, 6]


@pytest.mark.parametrize("left_chunks", [None, 0, 2])
@torch.no_grad()
def test_encoder_stream_can_be_continued_twice_from_one_state(left_chunks, device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=3, left_chunks=left_chunks, position="rope"), device)
    begin, first, second = (tokens_like(2, length, device=device) for length in (7, 8, 5))
    _, state = model.stream(begin)
    once, after = model.stream(first, state)
    model.stream(second, after, final=True)
    model.stream(second, state, final=True)
    again, _ = model.stream(first, state)
    assert torch.equal(once, again)
    assert_close(once, model(torch.cat((begin, first), dim=1))[:, 6:15])


@torch.no_grad()
def test_encoder_stream_caches_no_more_than_it_can_see(device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=3, left_chunks=2), device)
    state = None
    for _ in range(12):
        _, state = model.stream(tokens_like(2, 4, device=device), state)
        assert max(state.first.length, state.rest.length) <= 6
        assert state.waiting.shape[1] < 3


@torch.no_grad()
def test_encoder_stream_takes_empty_pieces(device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=3, left_chunks=1), device)
    tokens = tokens_like(2, 6, device=device)
    out, state = model.stream(tokens[:, :0])
    assert out.shape == (2, 0, 8)
    middle, state = model.stream(tokens, state)
    last, _ = model.stream(tokens[:, :0], state, final=True)
    assert last.shape == (2, 0, 8)
    assert_close(middle, model(tokens))


def test_encoder_stream_rejects_input_after_final(device):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=3), device)
    _, state = model.stream(tokens_like(1, 5, device=device), final=True)
    with pytest.raises(ValueError, match="closed by final=True"):
        model.stream(tokens_like(1, 5, device=device), state)


def test_encoder_stream_needs_a_chunk_size(device):
    model = make_random_model(EncoderConfig(**LAYERS), device)
    with pytest.raises(ValueError, match="chunk_size="):
        model.stream(tokens_like(1, 5, device=device))


@torch.no_grad()
def test_encoder_stream_state_survives_a_rejected_piece(device, unchecked):
    model = make_random_model(EncoderConfig(**LAYERS, chunk_size=3, left_chunks=1), device)
    tokens = tokens_like(2, 9, device=device)
    begin, state = model.stream(tokens[:, :4])
    for wrong in (torch.full((2, 3), 99), torch.full((2, 1), 99), torch.zeros(3, 3).long(), torch.zeros(2, 3)):
        with pytest.raises(ValueError):
            model.stream(wrong.to(device), state)
    rest, _ = model.stream(tokens[:, 4:], state, final=True)
    assert_close(torch.cat((begin, rest), dim=1), model(tokens))
