"""FSMT's decoder has no causal mask when use_cache is on, its default: a whole target sees its own future."""

import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration

torch.manual_seed(0)
sizes = {"src_vocab_size": 64, "tgt_vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
model = FSMTForConditionalGeneration(FSMTConfig(langs=["en", "de"], **sizes, **heads, init_std=0.2)).eval()
source, target = torch.randint(3, 64, (1, 10)), torch.randint(3, 64, (1, 8))
other = target.clone()
other[0, 7] = (target[0, 7] + 1) % 64
for use_cache in (None, False):
    with torch.no_grad():
        a, b = (model(source, decoder_input_ids=y, use_cache=use_cache).logits for y in (target, other))
    change = float((a - b)[:, :7].abs().max())
    print(f"use_cache={use_cache}: outputs 0 to 6 change by {change:.3f} when target 7 changes")
