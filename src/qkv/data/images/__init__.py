"""Image data: sources (`load`, `image_files`, `npz`, `cifar_mnist`), `augmentation`, and batches (`dataset`)."""

from qkv.data.images.augmentation import ImageAugment
from qkv.data.images.dataset import ImageBatches, Images, ImageSplits, Normalization, split_images
from qkv.data.images.image_files import read_image
from qkv.data.images.load import load_digits, load_images

__all__ = [
    "ImageAugment",
    "ImageBatches",
    "ImageSplits",
    "Images",
    "Normalization",
    "load_digits",
    "load_images",
    "read_image",
    "split_images",
]
