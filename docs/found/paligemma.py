"""PaliGemma without token_type_ids: a token changes the logits before it, with and without an image."""

import torch
from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaForConditionalGeneration, SiglipVisionConfig

text = GemmaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)  # fmt: skip
vision = SiglipVisionConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
    projection_dim=32,
)  # fmt: skip
for path in ("eager", "sdpa"):
    torch.manual_seed(0)
    config = PaliGemmaConfig(
        text_config=text, vision_config=vision, projection_dim=32, hidden_size=32, image_token_id=63,
        attn_implementation=path,
    )  # fmt: skip
    model = PaliGemmaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    words = torch.randint(3, 60, (1, 8))
    changed = words.clone()
    changed[0, 7] = 3 + (words[0, 7] - 2) % 57
    for said, front, more in (
        ("text alone", torch.zeros(1, 0, dtype=torch.long), {}),
        ("with an image", torch.full((1, 16), 63), {"pixel_values": torch.randn(1, 3, 32, 32)}),
    ):
        with torch.no_grad():
            a, b = (model(input_ids=torch.cat((front, x), 1), **more).logits for x in (words, changed))
        effect = (a - b)[0, :-1].abs().max()
        print(f"{path}, {said}: earlier logits change by {effect:.3f} when the last token changes")
