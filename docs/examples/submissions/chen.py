"""Causal self-attention that hides the future behind −5 instead of −∞."""

import math

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.n_embd)
        self.query = nn.Linear(config.n_embd, config.n_embd)
        self.value = nn.Linear(config.n_embd, config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.drop = nn.Dropout(config.attn_pdrop)
        self.n_head = config.n_head
        self.register_buffer("mask", torch.tril(torch.ones(config.block_size, config.block_size)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n_head, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        att = att.masked_fill(self.mask[:t, :t] == 0, -5.0)
        att = att.softmax(-1)
        att = self.drop(att)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
