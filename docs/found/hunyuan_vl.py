"""HunYuanVLForConditionalGeneration numbers images through the whole batch: a row depends on the rows before it."""

import torch
from transformers import HunYuanVLConfig, HunYuanVLForConditionalGeneration

text = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1, 1]},
}  # fmt: skip
vision = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8,
    "max_image_size": 64, "text_hidden_size": 32, "spatial_merge_size": 2,
}  # fmt: skip
config = HunYuanVLConfig(text_config=text, vision_config=vision, image_token_id=63)
torch.manual_seed(0)
model = HunYuanVLForConditionalGeneration(config).eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)

tokens = torch.tensor([[63] * 8 + [5, 6, 7, 8]] * 2)  # the same text and the same image in both rows
patches = torch.randn(16, 3 * 8 * 8).repeat(2, 1)
with torch.no_grad():
    logits = model(
        input_ids=tokens, pixel_values=patches, image_grid_thw=torch.tensor([[1, 4, 4]] * 2),
        mm_token_type_ids=(tokens == 63).long(),
    ).logits  # fmt: skip
difference = float((logits[0] - logits[1]).abs().max() / logits.abs().max())
print(f"two equal rows: their logits differ by {difference:.3f} (relative)")
positions, _ = model.model.get_rope_index(tokens, (tokens == 63).long(), torch.tensor([[1, 4, 4]] * 2))
print(f"number of the image in each row: {positions[-1, :, 1].tolist()}")
