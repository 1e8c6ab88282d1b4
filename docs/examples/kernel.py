"""Causal attention block by block, with a running softmax, as fused kernels do it; with one mistake: can you see it?"""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, block: int = 4) -> Tensor:
    """softmax(q·kᵀ/√d) v for (b, h, t, d), without ever holding the whole matrix of weights."""
    t, s = q.shape[-2], k.shape[-2]
    largest = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(largest), torch.zeros_like(q)
    for start in range(0, s, block):
        keys, values = k[..., start : start + block, :], v[..., start : start + block, :]
        scores = q @ keys.transpose(-2, -1) * q.shape[-1] ** -0.5
        if is_causal:
            place = torch.arange(start, start + keys.shape[-2])
            scores = scores.masked_fill(place > torch.arange(t)[:, None], -torch.inf)
        higher = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, fade = torch.exp(scores - higher), torch.exp(largest - higher)
        total, out, largest = total * fade + weights.sum(-1, keepdim=True), out * fade + weights @ values, higher
    return out / total
