"""The same ViT and GPT built by other libraries: transformers, torch.nn.TransformerEncoder, x-transformers, plain code.

Every builder takes a `ModelSize` and returns a module from images or tokens to logits, or raises ImportError if its
library is not installed. "plain PyTorch" is the straightforward code that many people write: one projection for
queries, keys and values, and PyTorch's fused attention.

Axes: b batch · t tokens · c model dim.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models import GPT, GPTConfig, ViT, ViTConfig

VOCAB_SIZE, MAX_LENGTH, NUM_CLASSES, IMAGE_SIZE = 256, 128, 10, 32


@dataclass(frozen=True)
class ModelSize:
    """The size of a benchmark model; its feed-forward networks are four times as wide. batch: items in a batch."""

    dim: int
    layers: int
    heads: int
    batch: int


Builder = Callable[[ModelSize], nn.Module]


class LogitsOnly(nn.Module):
    """A Hugging Face model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


class ImageClassifier(nn.Module):
    """A ViT around any encoder: patches, class token, positions, and a classifier of the class token."""

    def __init__(self, encoder: nn.Module, dim: int, patch: int = 4) -> None:
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

    def __init__(self, encoder: nn.Module, dim: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB_SIZE, dim), nn.Embedding(MAX_LENGTH, dim)
        self.encoder, self.head = encoder, nn.Linear(dim, VOCAB_SIZE, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.tokens(tokens) + self.positions(places)))


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder, pre-norm."""

    def __init__(self, size: ModelSize, *, causal: bool) -> None:
        super().__init__()
        dim = size.dim
        layer = nn.TransformerEncoderLayer(dim, size.heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, size.layers, nn.LayerNorm(dim), enable_nested_tensor=False)
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


def plain_encoder(size: ModelSize, *, causal: bool) -> nn.Module:
    blocks = (PlainBlock(size.dim, size.heads, causal=causal) for _ in range(size.layers))
    return nn.Sequential(*blocks, nn.LayerNorm(size.dim))


def import_transformers() -> Any:
    """The library, without progress bars and warnings."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def hf_vit(size: ModelSize) -> nn.Module:
    transformers = import_transformers()
    config = transformers.ViTConfig(
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.dim,
        image_size=IMAGE_SIZE,
        patch_size=4,
        num_labels=NUM_CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return LogitsOnly(transformers.ViTForImageClassification(config))


def hf_gpt(
    layers: int, dim: int, heads: int, vocab_size: int = VOCAB_SIZE, max_length: int = MAX_LENGTH, **options: Any
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


def x_transformers_vit(size: ModelSize) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Encoder, ViTransformerWrapper

    head_dim = size.dim // size.heads
    encoder = Encoder(dim=size.dim, depth=size.layers, heads=size.heads, attn_dim_head=head_dim, attn_flash=True)
    return ViTransformerWrapper(image_size=IMAGE_SIZE, patch_size=4, num_classes=NUM_CLASSES, attn_layers=encoder)


def x_transformers_gpt(size: ModelSize) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from x_transformers import Decoder, TransformerWrapper

    head_dim = size.dim // size.heads
    decoder = Decoder(dim=size.dim, depth=size.layers, heads=size.heads, attn_dim_head=head_dim, attn_flash=True)
    return TransformerWrapper(num_tokens=VOCAB_SIZE, max_seq_len=MAX_LENGTH, attn_layers=decoder)


class WholeLastBlock(nn.Module):
    """qkv's ViT with all tokens of its last block computed in training too, as other libraries do."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.head(self.model.hidden_states(images)[:, 0])


def qkv_vit(size: ModelSize) -> ViT:
    config = ViTConfig(image_size=IMAGE_SIZE, num_classes=NUM_CLASSES)
    return ViT(replace(config, dim=size.dim, layers=size.layers, heads=size.heads, mlp_dim=4 * size.dim))


def qkv_gpt(size: ModelSize) -> GPT:
    config = GPTConfig(vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH)
    return GPT(replace(config, dim=size.dim, layers=size.layers, heads=size.heads, mlp_dim=4 * size.dim))


def wrapped_hf_gpt(size: ModelSize) -> nn.Module:
    return LogitsOnly(hf_gpt(size.layers, size.dim, size.heads, tie_word_embeddings=False, use_cache=False))


VITS: dict[str, Builder] = {
    "qkv": qkv_vit,
    "qkv, whole last block": lambda size: WholeLastBlock(qkv_vit(size)),
    "transformers": hf_vit,
    "torch.nn.TransformerEncoder": lambda size: ImageClassifier(TorchEncoder(size, causal=False), size.dim),
    "x-transformers": x_transformers_vit,
    "plain PyTorch": lambda size: ImageClassifier(plain_encoder(size, causal=False), size.dim),
}
GPTS: dict[str, Builder] = {
    "qkv": qkv_gpt,
    "transformers": wrapped_hf_gpt,
    "torch.nn.TransformerEncoder": lambda size: TextModel(TorchEncoder(size, causal=True), size.dim),
    "x-transformers": x_transformers_gpt,
    "plain PyTorch": lambda size: TextModel(plain_encoder(size, causal=True), size.dim),
}


def build_available(builders: Mapping[str, Builder], size: ModelSize) -> tuple[dict[str, nn.Module], tuple[str, ...]]:
    """The models whose libraries are installed, all with the same seed, and the names of the missing libraries."""
    models, missing = {}, []
    for name, build in builders.items():
        torch.manual_seed(0)
        try:
            models[name] = build(size)
        except ImportError:
            missing.append(name)
    return models, tuple(missing)
