"""A Perceiver on a set of points given as two tensors, and its adapter: the output has no row for each input."""

import torch
from torch import nn

DIM = 20


class PointPerceiver(nn.Module):
    def __init__(self, dim=32, latents=6):
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(latents, dim))
        self.embed = nn.Linear(DIM, dim)
        self.read = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.think = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, *, coordinates, features):
        points = self.embed(torch.cat((coordinates, features), -1))
        latents = self.latents.expand(len(points), -1, -1)
        latents = latents + self.read(latents, points, points, need_weights=False)[0]
        return latents + self.think(latents, latents, latents, need_weights=False)[0]


def call(target, x):
    return target(coordinates=x[..., :3], features=x[..., 3:])
