"""Whole models on tokens with one mistake each.

Axes: b batch · t tokens · c model width · v vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.check.contract import Contract
from qkv.check.mutants.mutant import mutant

MODEL = Contract(kind="causal", cache=True)
TRAINED = Contract(kind="causal", loss="next")


class PlainBlock(nn.Module):
    """Pre-norm attention and MLP around nn.functional's kernel, with a cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, allowed: Tensor | None, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.out(out.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x)), torch.stack((k, v))


class PlainModel(nn.Module):
    """A language model with learned positions, tied weights, a cache, its own loss and packed documents."""

    def __init__(
        self, vocab_size: int = 64, width: int = 32, heads: int = 4, layers: int = 2, length: int = 64
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
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
        x = self.tokens(idx) + self.places(self.counted(idx, start, document_ids))
        kept = []
        for number, block in enumerate(self.blocks):
            allowed = self.allowed(idx.shape[1], start, document_ids, number)
            x, state = self.called(block, x, allowed, None if cache is None else cache[number])
            kept.append(state)
        logits = self.head(self.norm(x))
        return logits, kept if labels is None else self.loss(logits, labels)

    def counted(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        places = torch.arange(start, start + idx.shape[1]).expand_as(idx)
        if documents is None:
            return places
        first = (documents[:, :, None] == documents[:, None, :]).int().argmax(-1)
        return places - first

    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        past = torch.ones(t, start + t, dtype=torch.bool).tril(start)
        return past if documents is None else past & (documents[:, None, :, None] == documents[:, None, None, :])

    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.checkpointing and self.training:
            return checkpoint(block, x, allowed, past, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return block(x, allowed, past)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@mutant("model: the second layer has no mask", "no mask", MODEL)
class SecondUnmasked(PlainModel):
    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        found = super().allowed(t, start, documents, number)
        return torch.ones_like(found) if number == 1 else found


@mutant("model: a mask one too wide in the first layer", "mask off by one", MODEL)
class FirstTooWide(PlainModel):
    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        return torch.ones(t, start + t, dtype=torch.bool).tril(start + (number == 0))


@mutant("model: learned positions without the cache's offset", "positions with cache", MODEL)
class NoOffset(PlainModel):
    def counted(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().counted(idx, 0, documents)


@mutant("model: positions counted from the end", "positions", MODEL)
class FromTheEnd(PlainModel):
    def counted(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().counted(idx, start, documents).flip(-1)


@mutant("model: mask skipped with a cache", "mask with cache", MODEL)
class SkippedWithCache(PlainModel):
    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        found = super().allowed(t, start, documents, number)
        return torch.ones_like(found) if start else found


@mutant("model: checkpointing drops the mask", "paths differ", MODEL)
class CheckpointedUnmasked(PlainModel):
    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().called(block, x, None if self.checkpointing and self.training else allowed, past)


@mutant("model: no mask in training", "paths differ", MODEL)
class TrainedUnmasked(PlainModel):
    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        found = super().allowed(t, start, documents, number)
        return torch.ones_like(found) if self.training else found


@mutant("model: another path without gradients", "paths differ", MODEL)
class OtherWithoutGradients(PlainModel):
    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = super().called(block, x, allowed, past)
        return (out if torch.is_grad_enabled() else 1.01 * out), state


@mutant("model: untied after loading", "untied", MODEL)
class Untied(PlainModel):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        result = super().load_state_dict(state_dict, strict, assign)
        self.head.weight = nn.Parameter(state_dict["head.weight"].clone())
        return result


@mutant("model: dropout of tokens in eval", "random in eval", MODEL)
class DroppedTokens(PlainModel):
    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().called(block, F.dropout(x, 0.1), allowed, past)


@mutant("model: packing begins positions anew only", "packing", MODEL)
class PackedUnmasked(PlainModel):
    def allowed(self, t: int, start: int, documents: Tensor | None, number: int) -> Tensor:
        return super().allowed(t, start, None, number)


@mutant("model: packing masks only", "packing", MODEL)
class PackedPlaces(PlainModel):
    def counted(self, idx: Tensor, start: int, documents: Tensor | None) -> Tensor:
        return super().counted(idx, start, None)


@mutant("model: labels shifted twice", "loss shift", TRAINED)
class ShiftedTwice(PlainModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits[:, :-1], labels[:, 1:])


@mutant("model: labels not shifted", "loss shift", TRAINED)
class NotShifted(PlainModel):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@mutant("model: mean of the sequence in the MLP", "leak", MODEL)
class MeanInside(PlainModel):
    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().called(block, x + 0.05 * x.mean(1, keepdim=True), allowed, past)


@mutant("model: normalised over the batch", "batch mixed", MODEL)
class NormalisedBatch(PlainModel):
    def called(self, block: nn.Module, x: Tensor, allowed: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().called(block, x - 0.5 * x.mean(0, keepdim=True), allowed, past)
