"""Falcon under sdpa drops its causal mask when attention weights are requested: future tokens leak."""

import torch
from transformers import FalconConfig, FalconForCausalLM

torch.manual_seed(0)
config = FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2)
model = FalconForCausalLM(config).eval()
tokens = torch.randint(0, 64, (1, 8))
other = tokens.clone()
other[0, 7] = (tokens[0, 7] + 1) % 64
for requested in (False, True):
    with torch.no_grad():
        a, b = (model(x, output_attentions=requested).logits for x in (tokens, other))
    change = float((a - b)[:, :7].abs().max())
    print(f"output_attentions={requested}: outputs 0 to 6 change by {change:.3f} when token 7 changes")
