"""From frames of sound to tokens.

Axes: b batch · n frames · f bands · t tokens.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class SoundStem(nn.Module):
    """Two convolutions over time and bands, then windows of what they find: one for every `stack` frames.

    What is found a band higher is found by the same weights, so a voice that lies higher is nearly the same voice.
    A token's window is its own `stack` frames and `context` frames before them: it equals the convolutions of that
    piece alone, so that streams can be cut anywhere. Both convolutions halve the bands, the second the frames, too.

    >>> import torch
    >>> SoundStem(bands=40, stack=4, context=8, channels=16)(torch.randn(2, 8 + 20, 40)).shape
    torch.Size([2, 5, 1280])
    """

    def __init__(self, bands: int, stack: int, context: int, channels: int) -> None:
        super().__init__()
        self.stack, (self.found, _) = stack, stem_shape(bands, stack, context, channels)
        self.first = nn.Conv2d(1, channels, (3, 5), stride=(1, 2), padding=(0, 2))
        self.second = nn.Conv2d(channels, 2 * channels, (3, 3), stride=(2, 2), padding=(0, 1))

    def forward(self, frames: Float[Tensor, "b n f"]) -> Float[Tensor, "b t stem"]:
        """frames: the context, then `stack` frames for each token."""
        found = F.gelu(self.second(F.gelu(self.first(frames[:, None]))))
        return found.permute(0, 2, 1, 3).flatten(2).unfold(1, self.found, self.stack // 2).flatten(2)


def stem_shape(bands: int, stack: int, context: int, channels: int) -> tuple[int, int]:
    """How many places of the second convolution make a token, and how wide a place is.

    >>> stem_shape(bands=40, stack=4, context=8, channels=16)
    (4, 320)
    """
    if channels < 1 or stack < 2 or stack % 2 or stack + context < 5:
        raise ValueError(
            f"convolutions need 1 channel or more, an even stack, and 5 frames or more in stack and context together; "
            f"got channels={channels}, stack={stack}, context={context}; a model with channels=0 has no convolutions"
        )
    return (stack + context - 5) // 2 + 1, 2 * channels * -(-bands // 4)
