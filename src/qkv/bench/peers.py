"""The same two architectures as others build them: a ViT 128 wide with 6 layers, a GPT 256 wide with 4.

Axes: b batch · t tokens · c model width.

Every function returns a module from pictures or tokens to logits, or raises ImportError where its library is not
installed. "written afresh" is the straightforward code that many people write: one projection for queries, keys and
values, and PyTorch's fused attention.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import GPT, GPTConfig, ViT, ViTConfig

VOCAB, LENGTH, CLASSES, SIDE = 256, 128, 10, 32
Maker = Callable[[], nn.Module]


class Logits(nn.Module):
    """A Hugging Face model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


class Pictures(nn.Module):
    """A ViT around any encoder: patches, class token, positions, and the class read from the class token."""

    def __init__(self, encoder: nn.Module, width: int = 128, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (SIDE // patch) ** 2 + 1, width) * 0.02)
        self.encoder, self.head = encoder, nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class Text(nn.Module):
    """A GPT around any causal encoder."""

    def __init__(self, encoder: nn.Module, width: int = 256) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(LENGTH, width)
        self.encoder, self.head = encoder, nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.tokens(tokens) + self.positions(places)))


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder, pre-norm."""

    def __init__(self, width: int, layers: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.encoder(x, mask=mask, is_causal=self.causal)


class FreshBlock(nn.Module):
    """A pre-norm block as most people write it."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        split = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(c, dim=2))
        attended = F.scaled_dot_product_attention(*split, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def fresh_encoder(width: int, layers: int, heads: int, *, causal: bool) -> nn.Module:
    return nn.Sequential(*(FreshBlock(width, heads, causal=causal) for _ in range(layers)), nn.LayerNorm(width))


def hugging_face() -> Any:
    """The library, without its bars and remarks."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def hf_vit() -> nn.Module:
    transformers = hugging_face()
    config = transformers.ViTConfig(
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=SIDE,
        patch_size=4,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return Logits(transformers.ViTForImageClassification(config))


def hf_gpt(layers: int = 4, width: int = 256, heads: int = 8, vocab: int = VOCAB, length: int = LENGTH, **options):
    """GPT-2 without dropout; its own GELU (the tanh approximation)."""
    transformers = hugging_face()
    config = transformers.GPT2Config(
        vocab_size=vocab,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
        **options,
    )
    return transformers.GPT2LMHeadModel(config)


def x_vit() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Encoder, ViTransformerWrapper

    encoder = Encoder(dim=128, depth=6, heads=4, attn_dim_head=32, attn_flash=True)
    return ViTransformerWrapper(image_size=SIDE, patch_size=4, num_classes=CLASSES, attn_layers=encoder)


def x_gpt() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Decoder, TransformerWrapper

    decoder = Decoder(dim=256, depth=4, heads=8, attn_dim_head=32, attn_flash=True)
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=LENGTH, attn_layers=decoder)


VITS: dict[str, Maker] = {
    "qkv": lambda: ViT(ViTConfig(image_size=SIDE, num_classes=CLASSES)),
    "transformers": hf_vit,
    "torch.nn.TransformerEncoder": lambda: Pictures(TorchEncoder(128, 6, 4, causal=False)),
    "x-transformers": x_vit,
    "written afresh": lambda: Pictures(fresh_encoder(128, 6, 4, causal=False)),
}
GPTS: dict[str, Maker] = {
    "qkv": lambda: GPT(GPTConfig(vocab_size=VOCAB, max_length=LENGTH)),
    "transformers": lambda: Logits(hf_gpt(tie_word_embeddings=False, use_cache=False)),
    "torch.nn.TransformerEncoder": lambda: Text(TorchEncoder(256, 4, 8, causal=True)),
    "x-transformers": x_gpt,
    "written afresh": lambda: Text(fresh_encoder(256, 4, 8, causal=True)),
}


def available(makers: dict[str, Maker]) -> tuple[dict[str, nn.Module], tuple[str, ...]]:
    """The models whose libraries are installed, all from one seed; and the names of the others."""
    models, absent = {}, []
    for name, make in makers.items():
        torch.manual_seed(0)
        try:
            models[name] = make()
        except ImportError:
            absent.append(name)
    return models, tuple(absent)
