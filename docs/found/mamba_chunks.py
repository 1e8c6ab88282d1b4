"""Mamba, FalconMamba, Jamba: a chunk of several tokens after a cached prefill ignores the end of the prefill."""

import torch
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.2, "pad_token_id": 0}
jamba = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64, "num_experts": 1}
layers = {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts_per_tok": 1}
for config, kind, name in (
    (MambaConfig(**sizes), MambaForCausalLM, "cache_params"),
    (FalconMambaConfig(**sizes), FalconMambaForCausalLM, "cache_params"),
    (JambaConfig(**sizes, **jamba, **layers), JambaForCausalLM, "past_key_values"),
):
    torch.manual_seed(0)
    model, tokens = kind(config).eval(), torch.randint(3, 64, (1, 12))
    for size in (1, 4):
        with torch.no_grad():
            whole, begun = model(tokens).logits, model(tokens[:, :4], use_cache=True)
            outs = [begun.logits]
            for piece in tokens[:, 4:].split(size, dim=1):
                begun = model(piece, use_cache=True, **{name: begun[name]})
                outs.append(begun.logits)
        off = (torch.cat(outs, 1) - whole).abs().max() / whole.abs().max()
        print(f"{kind.__name__}: chunks of {size} after 4 tokens differ by {float(off):.2g}")
