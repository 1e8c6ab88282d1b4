"""The same ViT and GPT built by other libraries: transformers, torch.nn.TransformerEncoder, x-transformers, plain code.

The ViT has dimension 128 and 6 layers, the GPT dimension 256 and 4 layers. Every builder returns a module from images
or tokens to logits, or raises ImportError if its library is not installed. "plain PyTorch" is the straightforward code
that many people write: one projection for queries, keys and values, and PyTorch's fused attention.

Axes: b batch · t tokens · c model dim.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import GPT, GPTConfig, ViT, ViTConfig

VOCAB_SIZE, MAX_LENGTH, NUM_CLASSES, IMAGE_SIZE = 256, 128, 10, 32
Builder = Callable[[], nn.Module]


class LogitsOnly(nn.Module):
    """A Hugging Face model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


class ImageClassifier(nn.Module):
    """A ViT around any encoder: patches, class token, positions, and a classifier of the class token."""

    def __init__(self, encoder: nn.Module, dim: int = 128, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, (IMAGE_SIZE // patch) ** 2 + 1, dim) * 0.02)
        self.encoder, self.head = encoder, nn.Linear(dim, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class TextModel(nn.Module):
    """A GPT around any causal encoder."""

    def __init__(self, encoder: nn.Module, dim: int = 256) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB_SIZE, dim), nn.Embedding(MAX_LENGTH, dim)
        self.encoder, self.head = encoder, nn.Linear(dim, VOCAB_SIZE, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.tokens(tokens) + self.positions(places)))


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder, pre-norm."""

    def __init__(self, dim: int, layers: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.encoder(x, mask=mask, is_causal=self.causal)


class PlainBlock(nn.Module):
    """A pre-norm block as most people write it."""

    def __init__(self, dim: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        split = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm_1(x)).split(c, dim=2))
        attended = F.scaled_dot_product_attention(*split, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def plain_encoder(dim: int, layers: int, heads: int, *, causal: bool) -> nn.Module:
    return nn.Sequential(*(PlainBlock(dim, heads, causal=causal) for _ in range(layers)), nn.LayerNorm(dim))


def import_transformers() -> Any:
    """The library, without progress bars and warnings."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def hf_vit() -> nn.Module:
    transformers = import_transformers()
    config = transformers.ViTConfig(
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        image_size=IMAGE_SIZE,
        patch_size=4,
        num_labels=NUM_CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return LogitsOnly(transformers.ViTForImageClassification(config))


def hf_gpt(
    layers: int = 4,
    dim: int = 256,
    heads: int = 8,
    vocab_size: int = VOCAB_SIZE,
    max_length: int = MAX_LENGTH,
    **options: Any,
) -> Any:
    """GPT-2 without dropout; its own GELU (the tanh approximation)."""
    transformers = import_transformers()
    config = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=max_length,
        n_embd=dim,
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


def x_transformers_vit() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Encoder, ViTransformerWrapper

    encoder = Encoder(dim=128, depth=6, heads=4, attn_dim_head=32, attn_flash=True)
    return ViTransformerWrapper(image_size=IMAGE_SIZE, patch_size=4, num_classes=NUM_CLASSES, attn_layers=encoder)


def x_transformers_gpt() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Decoder, TransformerWrapper

    decoder = Decoder(dim=256, depth=4, heads=8, attn_dim_head=32, attn_flash=True)
    return TransformerWrapper(num_tokens=VOCAB_SIZE, max_seq_len=MAX_LENGTH, attn_layers=decoder)


VITS: dict[str, Builder] = {
    "qkv": lambda: ViT(ViTConfig(image_size=IMAGE_SIZE, num_classes=NUM_CLASSES)),
    "transformers": hf_vit,
    "torch.nn.TransformerEncoder": lambda: ImageClassifier(TorchEncoder(128, 6, 4, causal=False)),
    "x-transformers": x_transformers_vit,
    "plain PyTorch": lambda: ImageClassifier(plain_encoder(128, 6, 4, causal=False)),
}
GPTS: dict[str, Builder] = {
    "qkv": lambda: GPT(GPTConfig(vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)),
    "transformers": lambda: LogitsOnly(hf_gpt(tie_word_embeddings=False, use_cache=False)),
    "torch.nn.TransformerEncoder": lambda: TextModel(TorchEncoder(256, 4, 8, causal=True)),
    "x-transformers": x_transformers_gpt,
    "plain PyTorch": lambda: TextModel(plain_encoder(256, 4, 8, causal=True)),
}


def build_available(builders: dict[str, Builder]) -> tuple[dict[str, nn.Module], tuple[str, ...]]:
    """The models whose libraries are installed, all with the same seed, and the names of the missing libraries."""
    models, missing = {}, []
    for name, build in builders.items():
        torch.manual_seed(0)
        try:
            models[name] = build()
        except ImportError:
            missing.append(name)
    return models, tuple(missing)
