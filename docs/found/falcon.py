"""Falcon under sdpa loses its causal mask when attention weights are asked for: the future is seen."""

import torch
from transformers import FalconConfig, FalconForCausalLM

torch.manual_seed(0)
config = FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2)
model = FalconForCausalLM(config).eval()
tokens = torch.randint(0, 64, (1, 8))
other = tokens.clone()
other[0, 7] = (tokens[0, 7] + 1) % 64
for asked in (False, True):
    with torch.no_grad():
        a, b = (model(x, output_attentions=asked).logits for x in (tokens, other))
    print(
        f"output_attentions={asked}: changing token 7 moved outputs 0 to 6 by {float((a - b)[:, :7].abs().max()):.3f}"
    )
