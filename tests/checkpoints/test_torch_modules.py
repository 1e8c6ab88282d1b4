"""from_torch: qkv modules with the weights of torch.nn modules give the same outputs."""

from typing import Any

import pytest
import torch
from torch import nn

from qkv.checkpoints import from_torch
from qkv.checkpoints.torch_modules import fill_encoder, fill_seq2seq
from qkv.models import Encoder, EncoderConfig, Seq2Seq, Seq2SeqConfig

DIM, HEADS, MLP_DIM, VOCAB_SIZE = 12, 3, 20, 9
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:.*nested tensors is in prototype")


def randomize(module, device):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.to(device, torch.float64).eval()


def assert_close(ours: Any, expected: Any, *, within: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=within, rtol=0.0)


def encoder_layer(order: str = "pre", activation: Any = "relu", **choice: Any):
    first = order == "pre"
    return nn.TransformerEncoderLayer(
        DIM, HEADS, MLP_DIM, 0.0, activation, batch_first=True, norm_first=first, **choice
    )


def make_token_mask(*rows, device):
    """token_mask from strings of x (a real token) and . (padding); PyTorch's padding masks are the opposite."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows], device=device)


def sinusoids(token_mask):
    """Sinusoidal position vectors written out, with positions counted over the real tokens."""
    rows = torch.zeros(*token_mask.shape, DIM, dtype=torch.float64)
    for row, marks in enumerate(token_mask.tolist()):
        position = -1
        for place, mark in enumerate(marks):
            position += mark
            for feature in range(DIM):
                angle = torch.tensor(max(position, 0) / 10000 ** (2 * (feature // 2) / DIM), dtype=torch.float64)
                rows[row, place, feature] = angle.sin() if feature % 2 == 0 else angle.cos()
    return rows.to(token_mask.device)


TOKEN_MASKS = {
    "all": ("xxxxxxx", "xxxxxxx", "xxxxxxx"),
    "left": ("xxxxxxx", "...xxxx", "......x"),
    "right": ("xxxxxxx", "xxxx...", "x......"),
    "holes": ("x.x.x.x", ".xx..x.", "xxxxx.x"),
}


@pytest.mark.parametrize("padding", TOKEN_MASKS)
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_from_torch_encoder_equals_pytorch(order, activation, final, padding, device):
    layer = encoder_layer(order, activation)
    theirs = nn.TransformerEncoder(layer, 3, nn.LayerNorm(DIM) if final else None, enable_nested_tensor=False)
    theirs = randomize(theirs, device)
    token_mask = make_token_mask(*TOKEN_MASKS[padding], device=device)
    ours = Encoder(
        EncoderConfig(
            vocab_size=VOCAB_SIZE,
            dim=DIM,
            heads=HEADS,
            mlp_dim=MLP_DIM,
            layers=3,
            activation=activation,
            norm_order=order,
            final_norm=final,
            scale_embeddings=True,
        )
    )
    randomize(ours, device)
    fill_encoder(ours, theirs)
    tokens = torch.randint(VOCAB_SIZE, (3, 7), device=device)
    x = ours.tokens.weight[tokens] * DIM**0.5 + sinusoids(token_mask)
    expected = theirs(x, src_key_padding_mask=~token_mask)
    assert_close(ours(tokens, token_mask)[token_mask], expected[token_mask])

    direct = from_torch(theirs)
    assert isinstance(direct, Encoder)
    assert_close(direct(x, token_mask)[token_mask], expected[token_mask])


@pytest.mark.parametrize("padding", TOKEN_MASKS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_fill_seq2seq_equals_torch_nn_transformer(order, activation, tied, padding, device):
    theirs = nn.Transformer(
        DIM, HEADS, 2, 3, MLP_DIM, 0.0, activation, batch_first=True, norm_first=order == "pre", layer_norm_eps=1e-3
    )
    randomize(theirs, device)
    config = Seq2SeqConfig(
        VOCAB_SIZE,
        dim=DIM,
        heads=HEADS,
        mlp_dim=MLP_DIM,
        encoder_layers=2,
        decoder_layers=3,
        activation=activation,
        norm_order=order,
        final_norm=True,
        norm_eps=1e-3,
        tie_embeddings=tied,
    )
    ours = randomize(Seq2Seq(config), device)
    fill_seq2seq(ours, theirs)
    source, target = torch.randint(VOCAB_SIZE, (3, 7), device=device), torch.randint(VOCAB_SIZE, (3, 5), device=device)
    source_mask = make_token_mask(*TOKEN_MASKS[padding], device=device)
    target_mask = source_mask[[0, 2, 0], :5] if padding != "left" else source_mask[:, 2:]
    x = ours.source_tokens.weight[source] * DIM**0.5 + sinusoids(source_mask)
    y = ours.target_tokens.weight[target] * DIM**0.5 + sinusoids(target_mask)
    future = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
    hidden = theirs(
        x,
        y,
        tgt_mask=future,
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~target_mask,
        memory_key_padding_mask=~source_mask,
    )
    expected = hidden @ ours.head.weight.mT
    assert_close(ours(source, target, source_mask, target_mask)[target_mask], expected[target_mask])
    assert (ours.head.weight is ours.source_tokens.weight) == tied


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_from_torch_layers_equal_pytorch(order, bias, activation, device):
    layer = randomize(encoder_layer(order, activation, bias=bias, layer_norm_eps=1e-2), device)
    x = torch.randn(2, 5, DIM, dtype=torch.float64, device=device)
    assert_close(from_torch(layer)(x), layer(x))
    decoder = nn.TransformerDecoderLayer(
        DIM, HEADS, MLP_DIM, 0.0, activation, 1e-2, batch_first=True, norm_first=order == "pre", bias=bias
    )
    randomize(decoder, device)
    memory = torch.randn(2, 4, DIM, dtype=torch.float64, device=device)
    future = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
    expected = decoder(x, memory, tgt_mask=future)
    assert_close(from_torch(decoder)(x, memory, mask=~future), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_from_torch_attention_equals_pytorch(bias, device):
    theirs = randomize(nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True), device)
    x, memory = (torch.randn(2, length, DIM, dtype=torch.float64, device=device) for length in (5, 7))
    out, weights = from_torch(theirs)(x, memory, return_weights=True)
    expected, their_weights = theirs(x, memory, memory, average_attn_weights=False)
    assert_close(out, expected, within=1e-12)
    assert_close(weights, their_weights, within=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_from_torch_keeps_dtype_and_mode(dtype, training, device):
    theirs = encoder_layer().to(device, dtype).train(training)
    ours: Any = from_torch(theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert ours.training is training
    assert ours.attention.to_q.weight.data_ptr() != theirs.self_attn.in_proj_weight.data_ptr()  # a copy


UNSUPPORTED = {
    "norms of two epsilons": (
        lambda: nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(DIM, eps=0.1), enable_nested_tensor=False),
        r"one norm_eps, got \[1e-05, 0.1\]",
    ),
    "another module": (lambda: nn.Linear(3, 3), "from_torch converts torch.nn's MultiheadAttention.*got Linear"),
    "an activation without an equal": (
        lambda: encoder_layer(activation=torch.tanh),
        "activation 'tanh' is not supported",
    ),
    "biases of keys": (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), "add_bias_kv.*not supported"),
    "a zero key": (lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True), "add_zero_attn.*not supported"),
    "other widths": (lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3), "kdim.*not supported"),
}


@pytest.mark.parametrize(("make", "words"), UNSUPPORTED.values(), ids=list(UNSUPPORTED))
def test_from_torch_names_what_it_does_not_support(make, words):
    with pytest.raises(ValueError, match=words):
        from_torch(make())


def test_fill_refuses_weights_of_another_shape(device):
    theirs = nn.Transformer(DIM, HEADS, 2, 2, MLP_DIM, batch_first=True)
    config = Seq2SeqConfig(
        VOCAB_SIZE, dim=DIM, heads=HEADS, mlp_dim=MLP_DIM, encoder_layers=3, decoder_layers=2, final_norm=True
    )
    with pytest.raises(ValueError, match="3 layers cannot take the weights of 2"):
        fill_seq2seq(Seq2Seq(config), theirs)
    plain = Seq2SeqConfig(VOCAB_SIZE, dim=DIM, heads=HEADS, mlp_dim=MLP_DIM, encoder_layers=2, decoder_layers=2)
    with pytest.raises(ValueError, match="final_norm"):
        fill_seq2seq(Seq2Seq(plain), theirs)
    encoder = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False)
    sizes: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "dim": DIM, "heads": HEADS, "mlp_dim": MLP_DIM}
    with pytest.raises(ValueError, match="3 layers cannot take the weights of 2"):
        fill_encoder(Encoder(EncoderConfig(**sizes, layers=3)), encoder)
    with pytest.raises(ValueError, match="final_norm"):
        fill_encoder(Encoder(EncoderConfig(**sizes, layers=2, final_norm=True)), encoder)
