"""Variable-length batches: the tokens of all rows one after the other, with the ends of the rows; and the adapter."""

import torch

DIM = 32


class RaggedAttention(torch.nn.Module):
    """Causal attention on tokens (n, c); row r has the tokens from ends[r] to ends[r + 1]."""

    def __init__(self, dim=DIM, heads=4):
        super().__init__()
        self.heads, self.project, self.out = heads, torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)

    def forward(self, tokens, ends):
        n = len(tokens)
        q, k, v = self.project(tokens).view(n, 3, self.heads, -1).permute(1, 2, 0, 3)
        row = torch.bucketize(torch.arange(n), ends[1:], right=True)
        seen = (row[:, None] == row) & torch.ones(n, n, dtype=torch.bool).tril()
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def call(target, x, token_mask):
    real = torch.ones(x.shape[:2], dtype=torch.bool) if token_mask is None else token_mask
    ends = torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0))
    out = x.new_zeros(x.shape)
    out[real] = target(x[real], ends)
    return out
