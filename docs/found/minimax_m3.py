"""MiniMaxM3SparseForConditionalGeneration: the patches of an image attend to those of other images in the batch."""

import torch
from transformers import MiniMaxM3VLConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLVisionModel

vision = type(MiniMaxM3VLConfig().vision_config)(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, patch_size=8
)
torch.manual_seed(0)
model = MiniMaxM3VLVisionModel(vision).eval()
for parameter in model.parameters():
    if parameter.ndim > 1:
        torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)

size = vision.num_channels * vision.temporal_patch_size * 8 * 8
first, second, other = (torch.randn(16, size) for _ in range(3))
grid = torch.tensor([[1, 4, 4]] * 2)
with torch.no_grad():
    alone = model(first, grid[:1]).last_hidden_state[0]
    beside = [model(torch.cat((first, x)), grid).last_hidden_state[0, :16] for x in (second, other)]
for said, features in (("beside a second image", beside[0]), ("beside another one", beside[1])):
    print(f"features of the first image {said}: they differ by {float((features - alone).abs().max()):.3f}")
