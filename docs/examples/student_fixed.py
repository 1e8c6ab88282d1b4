"""Causal self-attention as a student might write it, with both mistakes of student.py put right."""

import math

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head
        self.register_buffer("mask", torch.tril(torch.ones(config.block_size, config.block_size)))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = q @ k.transpose(-2, -1) / math.sqrt(c // self.n_head)
        att = torch.softmax(att.masked_fill(self.mask[:t, :t] == 0, -torch.inf), dim=-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))
