"""Wrong language models with one mistake each.

Axes: b batch · t tokens · c model dim · v vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.check.contract import Contract
from qkv.check.mutants.suite import mutant

MODEL = Contract(kind="causal", cache=True)
TRAINED = Contract(kind="causal", loss="next")


class PlainModelBlock(nn.Module):
    """Pre-norm attention and MLP around nn.functional's kernel, with a KV cache."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, mask: Tensor | None, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(out.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x)), torch.stack((k, v))


class PlainModel(nn.Module):
    """A language model with learned positions, tied embeddings, a KV cache, its own loss and packed documents."""

    def __init__(
        self, vocab_size: int = 64, dim: int = 32, heads: int = 4, layers: int = 2, max_length: int = 64
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.tokens, self.positions = nn.Embedding(vocab_size, dim), nn.Embedding(max_length, dim)
        self.blocks = nn.ModuleList(PlainModelBlock(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointing = False

    def forward(
        self,
        idx: Tensor,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, Any]:
        start = 0 if cache is None else cache[0].shape[3]
        x = self.tokens(idx) + self.positions(self.position_ids(idx, start, document_ids))
        kept = []
        for number, block in enumerate(self.blocks):
            mask = self.make_mask(idx.shape[1], start, document_ids, number)
            x, state = self.run_block(block, x, mask, None if cache is None else cache[number])
            kept.append(state)
        logits = self.head(self.norm(x))
        return logits, kept if labels is None else self.loss(logits, labels)

    def position_ids(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        positions = torch.arange(start, start + idx.shape[1]).expand_as(idx)
        if documents is None:
            return positions
        first = (documents[:, :, None] == documents[:, None, :]).int().argmax(-1)
        return positions - first

    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        past = torch.ones(t, start + t, dtype=torch.bool).tril(start)
        return past if documents is None else past & (documents[:, None, :, None] == documents[:, None, None, :])

    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.checkpointing and self.training:
            return checkpoint(block, x, mask, past, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return block(x, mask, past)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@mutant("model: the second layer has no mask", "no mask", MODEL)
class ModelSecondUnmasked(PlainModel):
    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        mask = super().make_mask(t, start, documents, number)
        return torch.ones_like(mask) if number == 1 else mask


@mutant("model: a mask one too wide in the first layer", "mask off by one", MODEL)
class ModelFirstTooWide(PlainModel):
    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        return torch.ones(t, start + t, dtype=torch.bool).tril(start + (number == 0))


@mutant("model: learned positions without the cache's offset", "positions with cache", MODEL)
class ModelNoOffset(PlainModel):
    def position_ids(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().position_ids(idx, 0, documents)


@mutant("model: positions counted from the end", "positions", MODEL)
class ModelFromTheEnd(PlainModel):
    def position_ids(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().position_ids(idx, start, documents).flip(-1)


@mutant("model: mask skipped with a cache", "mask with cache", MODEL)
class ModelSkippedWithCache(PlainModel):
    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        mask = super().make_mask(t, start, documents, number)
        return torch.ones_like(mask) if start else mask


@mutant("model: checkpointing drops the mask", "paths differ", MODEL)
class ModelCheckpointedUnmasked(PlainModel):
    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().run_block(block, x, None if self.checkpointing and self.training else mask, past)


@mutant("model: no mask in training", "no mask", MODEL)
class ModelTrainedUnmasked(PlainModel):
    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        mask = super().make_mask(t, start, documents, number)
        return torch.ones_like(mask) if self.training else mask


@mutant("model: another path without gradients", "paths differ", MODEL)
class ModelOtherWithoutGradients(PlainModel):
    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = super().run_block(block, x, mask, past)
        return (out if torch.is_grad_enabled() else 1.01 * out), state


@mutant("model: untied after loading", "untied", MODEL)
class ModelUntied(PlainModel):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        result = super().load_state_dict(state_dict, strict, assign)
        self.head.weight = nn.Parameter(state_dict["head.weight"].clone())
        return result


@mutant("model: dropout of tokens in eval", "random in eval", MODEL)
class ModelDroppedTokens(PlainModel):
    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().run_block(block, F.dropout(x, 0.1), mask, past)


@mutant("model: packing begins positions anew only", "packing", MODEL)
class ModelPackedUnmasked(PlainModel):
    def make_mask(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        return super().make_mask(t, start, None, number)


@mutant("model: packing masks only", "packing", MODEL)
class ModelPackedPlaces(PlainModel):
    def position_ids(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().position_ids(idx, start, None)


@mutant("model: labels shifted twice", "loss shift", TRAINED)
class ModelShiftedTwice(PlainModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits[:, :-1], labels[:, 1:])


@mutant("model: labels not shifted", "loss shift", TRAINED)
class ModelNotShifted(PlainModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@mutant("model: mean of the sequence in the MLP", "leak", MODEL)
class ModelMeanInside(PlainModel):
    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().run_block(block, x + 0.05 * x.mean(1, keepdim=True), mask, past)


@mutant("model: normalized over the batch", "batch mixed", MODEL)
class ModelNormalizedBatch(PlainModel):
    def run_block(self, block: nn.Module, x: Tensor, mask: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().run_block(block, x - 0.5 * x.mean(0, keepdim=True), mask, past)
