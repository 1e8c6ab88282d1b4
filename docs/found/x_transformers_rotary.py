"""In a model cast to bfloat16, x-transformers rounds rotary positions to bfloat16: beyond 256 they are all even."""

import torch
from x_transformers.x_transformers import RotaryEmbedding

positions = torch.arange(300)
exact, _ = RotaryEmbedding(16)(positions)
cast, _ = RotaryEmbedding(16).to(torch.bfloat16)(positions)
for position in (10, 256, 298):
    step = float((cast[0, position + 1] - cast[0, position]).abs().max())
    error = float((cast[0, position + 1].float() - exact[0, position + 1]).abs().max())
    print(f"positions {position} and {position + 1}: angles differ by {step:.2f} (right: 1.00), error {error:.2f}")
