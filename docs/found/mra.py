"""Without its CUDA kernel MRA's attention returns zeros: no token sees any other, and there is no warning."""

import torch
from transformers import MraConfig, MraModel

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = MraModel(MraConfig(**sizes, max_position_embeddings=64)).eval()
tokens = torch.randint(3, 64, (1, 64))
other = torch.randint(3, 64, (1, 64))
other[0, 5] = tokens[0, 5]
with torch.no_grad():
    change = (model(tokens).last_hidden_state - model(other).last_hidden_state).abs().amax(-1)[0]
print(f"all tokens but token 5 change: output 5 changes by {float(change[5])}, output 6 by {float(change[6]):.3f}")
