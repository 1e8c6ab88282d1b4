"""Embeddings of tokens, positions and image patches."""

import pytest
import torch
from reference import close

from qkv.models import GPTConfig
from qkv.nn import LearnedPositions, LearnedPositions2D, PatchEmbedding, Positions, SinusoidalPositions, TokenEmbedding
from qkv.nn.block import BlockConfig
from qkv.nn.embeddings import PositionEmbedding, get_position
from qkv.nn.positions import Alibi, sinusoidal
from qkv.nn.rope import Rope
from qkv.positions import Shaw, T5Bias


@pytest.mark.parametrize(("height", "dim", "patch"), [(8, 12, 4), (6, 6, 3), (5, 5, 1), (4, 4, 4)])
def test_patch_embedding_by_convolution_equals_cut_patches(randn, device, height, dim, patch):
    convolved = PatchEmbedding(3, patch, 7).double().to(device)
    unfolded = PatchEmbedding(3, patch, 7, unfold=True).double().to(device)
    unfolded.load_state_dict(convolved.state_dict())
    images = randn(2, 3, height, dim)
    out = convolved(images)
    close(unfolded(images), out)
    assert out.shape == (2, (height // patch) * (dim // patch), 7)
    kernel, bias = convolved.convolution.weight, convolved.convolution.bias
    assert bias is not None
    for token in range(out.shape[1]):  # row by row, as a page is read
        top, left = token // (dim // patch) * patch, token % (dim // patch) * patch
        piece = images[:, :, top : top + patch, left : left + patch]
        close(out[:, token], torch.einsum("bcij,ocij->bo", piece, kernel) + bias)


def test_token_embedding_returns_rows_of_its_table(device):
    table = TokenEmbedding(5, 3).to(device)
    tokens = torch.tensor([[4, 0], [2, 2]], device=device)
    for dtype in (torch.int64, torch.int32):
        assert torch.equal(table(tokens.to(dtype)), table.weight[tokens])
    assert table(tokens[:, :0]).shape == (2, 0, 3)


def test_learned_positions_returns_rows_of_its_table(device):
    table = LearnedPositions(4, 3).to(device)
    positions = torch.tensor([[0, 3], [1, 1]], device=device)
    assert torch.equal(table(positions), table.weight[positions])
    assert torch.equal(table(positions[0]), table.weight[positions[0]])


def test_learned_positions_2d_add_a_row_and_a_column(device):
    grid = LearnedPositions2D(2, 3, 5).to(device)
    for token, vector in enumerate(grid()):
        assert torch.equal(vector, grid.rows[token // 3, 0] + grid.columns[0, token % 3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_sinusoidal_positions_have_the_module_dtype(device, dtype):
    module = SinusoidalPositions(6).to(device, dtype)
    positions = torch.tensor([[0, 700]], device=device)
    assert torch.equal(module(positions), sinusoidal(positions, 6, dtype=dtype))
    assert not module.state_dict()


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", ["learned", "sinusoidal", "none", "rope"])
def test_position_embedding_adds_absolute_positions(randn, device, name, scale):
    place = PositionEmbedding(get_position(name, causal=True), 9, 16, scale_embeddings=scale).double().to(device)
    x, positions = randn(2, 4, 16), Positions(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]], device=device))
    expected = x * 4 if scale else x
    if name == "learned":
        assert isinstance(place.positions, LearnedPositions)
        expected = expected + place.positions.weight[positions.queries]
    if name == "sinusoidal":
        expected = expected + sinusoidal(positions.queries, 16, dtype=torch.float64)
    close(place(x, positions), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_get_position_finds_schemes_by_name(causal):
    made = {name: get_position(name, causal=causal) for name in ("rope", "alibi", "t5", "shaw")}  # pyright: ignore[reportArgumentType]
    assert made == {"rope": Rope(), "alibi": Alibi(), "t5": T5Bias(bidirectional=not causal), "shaw": Shaw()}
    assert get_position(Rope(base=7.0), causal=causal) == Rope(base=7.0)
    assert BlockConfig.from_model_config(GPTConfig(vocab_size=3, position="learned")).position is None
    assert BlockConfig.from_model_config(GPTConfig(vocab_size=3, position=Rope())).position == Rope()


T = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenEmbedding(0, 3), "at least 1, got vocab_size=0, dim=3"),
        (lambda: TokenEmbedding(5, 3)(T[0]), r"tokens must be \(batch, tokens\), got shape \(3,\)"),
        (lambda: TokenEmbedding(5, 3)(T.float()), r"integers \(int64 or int32\), got torch.float32"),
        (lambda: TokenEmbedding(5, 3)(T + 5), "tokens must be from 0 to 4 .the vocabulary., got 5 to 5"),
        (lambda: TokenEmbedding(5, 3)(T - 1), "from 0 to 4.*got -1 to -1"),
        (lambda: LearnedPositions(0, 3), "at least 1, got max_length=0"),
        (
            lambda: LearnedPositions(4, 3)(torch.arange(6)),
            "learned 4 positions, got a sequence of 6 tokens; shorten it",
        ),
        (lambda: PatchEmbedding(3, 0, 7), "at least 1, got 3, 0 and 7"),
        (
            lambda: PatchEmbedding(3, 4, 7)(torch.zeros(1, 3, 8, 6)),
            r"8×6 cannot be cut into patches of 4×4; try patch_size in.*\[1, 2\]",
        ),
        (lambda: PatchEmbedding(3, 4, 7)(torch.zeros(1, 1, 8, 8)), r"\(b, 3, height, width\), got \(1, 1, 8, 8\)"),
        (lambda: PatchEmbedding(3, 4, 7)(torch.zeros(3, 8, 8)), r"\(b, 3, height, width\), got \(3, 8, 8\)"),
    ],
)
def test_embeddings_reject_what_they_have_no_vector_for(make, message):
    with pytest.raises(ValueError, match=message):
        make()
