"""Pictures as batches: in an order that follows from (seed, epoch), changed as (seed, epoch, index) says.

Axes: b batch · c channels · h rows · w columns · k classes.
"""

import torch

from qkv.data.augment import Augment
from qkv.data.batches import Batch, generator_for
from qkv.data.images import Images, Normalisation
from qkv.data.order import batch_rows, epoch_order

AUGMENT = 3  # the stream of randomness that changes pictures


class ImageBatches:
    """`images` (b, c, h, w) float32 and `targets`: classes (b,), or shares of classes (b, k) where pictures are mixed.

    size: pictures in a batch; the last of an epoch is smaller unless `whole` leaves it out.
    normalisation: that of the training data, for every part.
    augment: how pictures are changed; None, as for validation, leaves them.
    """

    def __init__(
        self,
        images: Images,
        size: int,
        *,
        seed: int = 0,
        normalisation: Normalisation | None = None,
        augment: Augment | None = None,
        shuffled: bool = True,
        whole: bool = False,
    ) -> None:
        if size < 1 or (whole and len(images) < size):
            raise ValueError(f"a batch holds from 1 to {len(images)} pictures; got size={size}")
        self.images, self.size, self.seed = images, size, seed
        self.normalisation = Normalisation.of(images) if normalisation is None else normalisation
        self.augment, self.shuffled, self.whole = augment, shuffled, whole

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        return len(self.images) // self.size if self.whole else -(-len(self.images) // self.size)

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at that place."""
        order = epoch_order(len(self.images), self.seed, epoch, shuffled=self.shuffled)
        rows = batch_rows(order, self.size, index)
        pixels, targets = self.images.pixels[rows], self.images.labels[rows]
        if self.augment is None:
            return {"images": self.normalisation(pixels.to(torch.float32) / 255), "targets": targets}
        generator = generator_for(self.seed, AUGMENT, epoch, index)
        pictures = self.augment.shapes(pixels, generator)
        pictures = self.normalisation(pictures.to(torch.float32) / 255)
        pictures, targets = self.augment.mixes(pictures, targets, len(self.images.classes), generator)
        return {"images": pictures, "targets": targets}
