"""ProphetNetForCausalLM leaks future tokens, and its logits depend on the sequence length."""

import torch
from transformers import ProphetNetConfig, ProphetNetForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_decoder_layers": 2, "decoder_ffn_dim": 64, "is_decoder": True}
model = ProphetNetForCausalLM(ProphetNetConfig(**sizes, num_decoder_attention_heads=4, init_std=0.2)).eval()
tokens = torch.randint(3, 64, (1, 12))
with torch.no_grad():
    whole = model(tokens).logits
    for position in (2, 3, 4, 5):
        other = tokens.clone()
        other[0, position] = (tokens[0, position] + 1) % 64
        change = (model(other).logits - whole).abs().amax(-1)[0, :position]
        print(f"token {position} changes: earlier outputs change by", [round(float(x), 3) for x in change])
    cut = (model(tokens[:, :8]).logits - whole[:, :8]).abs().max()
print(f"the first 8 tokens alone give logits that differ by {float(cut):.3f}")
