"""torch.nn.MultiheadAttention gives NaN for a row that is all padding; TransformerEncoder's fast path spreads it."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
x = torch.randn(2, 5, 8)
layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
padded = torch.zeros(2, 5, dtype=torch.bool)
padded[1] = True
out = layer(x, x, x, key_padding_mask=padded)[0]
print("MultiheadAttention, one row all padding: NaN in its outputs:", bool(out[1].isnan().any()))

encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
later = nn.Transformer.generate_square_subsequent_mask(5).isinf()
padded[1] = torch.tensor([True, True, False, False, False])
for gradients in (True, False):
    with torch.set_grad_enabled(gradients):
        out = encoder(x, mask=later, src_key_padding_mask=padded)
    words = "with gradients" if gradients else "no gradients"
    print(f"TransformerEncoder, left padding, {words}: NaN at real tokens:", bool(out[1, 2:].isnan().any()))
