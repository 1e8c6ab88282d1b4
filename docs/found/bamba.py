"""Bamba with a KV cache: positions do not continue, so a step differs from the whole; with position_ids it does not."""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "num_key_value_heads": 4}
config = BambaConfig(**sizes, **mamba, attn_layer_indices=[1], initializer_range=0.2, pad_token_id=0)
model = BambaForCausalLM(config).eval()
tokens = torch.randint(3, 64, (1, 12))
with torch.no_grad():
    whole = model(tokens, use_cache=False).logits
    for given in (False, True):
        cache = model(tokens[:, :9], use_cache=True).past_key_values
        positions = {"position_ids": torch.tensor([[9]])} if given else {}
        step = model(tokens[:, 9:10], past_key_values=cache, use_cache=True, **positions).logits
        off = float((step - whole[:, 9:10]).abs().max())
        print(f"position_ids {'given' if given else 'omitted'}: step 9 differs by {off:.2f}")
