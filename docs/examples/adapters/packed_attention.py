"""A kernel that takes queries, keys and values interleaved in one tensor (b, t, h, d, 3), and its adapter."""

import torch


def kernel(inputs, causal_from):
    """A query at position i sees keys up to i if i ≥ causal_from, and else all of them."""
    q, k, v = (x.transpose(1, 2) for x in inputs.unbind(-1))
    t = q.shape[2]
    seen = torch.ones(t, t, dtype=torch.bool).tril() | (torch.arange(t) < causal_from)[:, None]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def call(target, q, k, v, causal):
    packed = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=-1)
    return target(packed, 0 if causal else packed.shape[1]).transpose(1, 2)
