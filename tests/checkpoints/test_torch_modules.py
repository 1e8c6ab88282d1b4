"""PyTorch's own transformers and ours: the same weights, the same numbers."""

from typing import Any

import pytest
import torch
from torch import nn

from qkv.checkpoints import from_torch
from qkv.checkpoints.torch_modules import fill_encoder, fill_seq2seq
from qkv.models import Encoder, EncoderConfig, Seq2Seq, Seq2SeqConfig

WIDTH, HEADS, HIDDEN, VOCAB = 12, 3, 20, 9
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:.*nested tensors is in prototype")


def randomised(module, device):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.to(device, torch.float64).eval()


def assert_close(ours: Any, expected: Any, *, within: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=within, rtol=0.0)


def encoder_layer(order: str = "pre", activation: Any = "relu", **choice: Any):
    first = order == "pre"
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=first, **choice
    )


def flags(*rows, device):
    """True where a token is present: PyTorch's padding masks say the opposite."""
    return torch.tensor([[mark == "x" for mark in row] for row in rows], device=device)


def sinusoids(present):
    """The vectors of 2017, for positions counted over the tokens present, written out."""
    rows = torch.zeros(*present.shape, WIDTH, dtype=torch.float64)
    for row, marks in enumerate(present.tolist()):
        position = -1
        for place, mark in enumerate(marks):
            position += mark
            for feature in range(WIDTH):
                angle = torch.tensor(max(position, 0) / 10000 ** (2 * (feature // 2) / WIDTH), dtype=torch.float64)
                rows[row, place, feature] = angle.sin() if feature % 2 == 0 else angle.cos()
    return rows.to(present.device)


PRESENT = {
    "all": ("xxxxxxx", "xxxxxxx", "xxxxxxx"),
    "left": ("xxxxxxx", "...xxxx", "......x"),
    "right": ("xxxxxxx", "xxxx...", "x......"),
    "holes": ("x.x.x.x", ".xx..x.", "xxxxx.x"),
}


@pytest.mark.parametrize("padding", PRESENT)
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_an_encoder_equals_pytorchs(order, activation, final, padding, device):
    layer = encoder_layer(order, activation)
    theirs = nn.TransformerEncoder(layer, 3, nn.LayerNorm(WIDTH) if final else None, enable_nested_tensor=False)
    theirs = randomised(theirs, device)
    present = flags(*PRESENT[padding], device=device)
    ours = Encoder(
        EncoderConfig(
            vocab_size=VOCAB,
            dim=WIDTH,
            heads=HEADS,
            mlp_dim=HIDDEN,
            layers=3,
            activation=activation,
            norm_order=order,
            final_norm=final,
            scale_embeddings=True,
        )
    )
    randomised(ours, device)
    fill_encoder(ours, theirs)
    tokens = torch.randint(VOCAB, (3, 7), device=device)
    x = ours.tokens.weight[tokens] * WIDTH**0.5 + sinusoids(present)
    expected = theirs(x, src_key_padding_mask=~present)
    assert_close(ours(tokens, present)[present], expected[present])

    direct = from_torch(theirs)
    assert isinstance(direct, Encoder)
    assert_close(direct(x, present)[present], expected[present])


@pytest.mark.parametrize("padding", PRESENT)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_seq2seq_equals_pytorchs_transformer(order, activation, tied, padding, device):
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 3, HIDDEN, 0.0, activation, batch_first=True, norm_first=order == "pre", layer_norm_eps=1e-3
    )
    randomised(theirs, device)
    config = Seq2SeqConfig(
        VOCAB,
        dim=WIDTH,
        heads=HEADS,
        mlp_dim=HIDDEN,
        encoder_layers=2,
        decoder_layers=3,
        activation=activation,
        norm_order=order,
        final_norm=True,
        norm_eps=1e-3,
        tie_embeddings=tied,
    )
    ours = randomised(Seq2Seq(config), device)
    fill_seq2seq(ours, theirs)
    source, target = torch.randint(VOCAB, (3, 7), device=device), torch.randint(VOCAB, (3, 5), device=device)
    heard = flags(*PRESENT[padding], device=device)
    shown = heard[[0, 2, 0], :5] if padding != "left" else heard[:, 2:]
    x = ours.source_tokens.weight[source] * WIDTH**0.5 + sinusoids(heard)
    y = ours.target_tokens.weight[target] * WIDTH**0.5 + sinusoids(shown)
    ahead = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
    hidden = theirs(
        x,
        y,
        tgt_mask=ahead,
        src_key_padding_mask=~heard,
        tgt_key_padding_mask=~shown,
        memory_key_padding_mask=~heard,
    )
    expected = hidden @ ours.head.weight.mT
    assert_close(ours(source, target, heard, shown)[shown], expected[shown])
    assert (ours.head.weight is ours.source_tokens.weight) == tied


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_single_layers_equal_pytorchs(order, bias, activation, device):
    layer = randomised(encoder_layer(order, activation, bias=bias, layer_norm_eps=1e-2), device)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, device=device)
    assert_close(from_torch(layer)(x), layer(x))
    decoder = nn.TransformerDecoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, 1e-2, batch_first=True, norm_first=order == "pre", bias=bias
    )
    randomised(decoder, device)
    memory = torch.randn(2, 4, WIDTH, dtype=torch.float64, device=device)
    ahead = torch.ones(5, 5, dtype=torch.bool, device=device).triu(1)
    expected = decoder(x, memory, tgt_mask=ahead)
    assert_close(from_torch(decoder)(x, memory, mask=~ahead), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_attention_equals_pytorchs(bias, device):
    theirs = randomised(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True), device)
    x, memory = (torch.randn(2, length, WIDTH, dtype=torch.float64, device=device) for length in (5, 7))
    out, weights = from_torch(theirs)(x, memory, return_weights=True)
    expected, their_weights = theirs(x, memory, memory, average_attn_weights=False)
    assert_close(out, expected, within=1e-12)
    assert_close(weights, their_weights, within=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_what_is_brought_in_keeps_its_dtype_and_its_mode(dtype, training, device):
    theirs = encoder_layer().to(device, dtype).train(training)
    ours: Any = from_torch(theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert ours.training is training
    assert ours.attention.to_q.weight.data_ptr() != theirs.self_attn.in_proj_weight.data_ptr()  # a copy


REFUSED = {
    "norms of two epsilons": (
        lambda: nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(WIDTH, eps=0.1), enable_nested_tensor=False),
        r"one epsilon in qkv; got \[1e-05, 0.1\]",
    ),
    "another module": (lambda: nn.Linear(3, 3), "from_torch takes torch.nn's MultiheadAttention.*got Linear"),
    "an activation without an equal": (lambda: encoder_layer(activation=torch.tanh), "activation 'tanh' has no equal"),
    "biases of keys": (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), "add_bias_kv.*no equal"),
    "a zero key": (lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True), "add_zero_attn.*no equal"),
    "other widths": (lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3), "kdim.*no equal"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=list(REFUSED))
def test_what_has_no_equal_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        from_torch(make())


def test_weights_for_another_shape_are_refused(device):
    theirs = nn.Transformer(WIDTH, HEADS, 2, 2, HIDDEN, batch_first=True)
    config = Seq2SeqConfig(
        VOCAB, dim=WIDTH, heads=HEADS, mlp_dim=HIDDEN, encoder_layers=3, decoder_layers=2, final_norm=True
    )
    with pytest.raises(ValueError, match="3 layers cannot take the weights of 2"):
        fill_seq2seq(Seq2Seq(config), theirs)
    plain = Seq2SeqConfig(VOCAB, dim=WIDTH, heads=HEADS, mlp_dim=HIDDEN, encoder_layers=2, decoder_layers=2)
    with pytest.raises(ValueError, match="final_norm"):
        fill_seq2seq(Seq2Seq(plain), theirs)
    encoder = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False)
    sizes: dict[str, Any] = {"vocab": VOCAB, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN}
    with pytest.raises(ValueError, match="3 layers cannot take the weights of 2"):
        fill_encoder(Encoder(EncoderConfig(**sizes, layers=3)), encoder)
    with pytest.raises(ValueError, match="final_norm"):
        fill_encoder(Encoder(EncoderConfig(**sizes, layers=2, final_norm=True)), encoder)
