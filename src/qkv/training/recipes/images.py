"""Recipes vit-digits, vit-cifar10, vit-cifar100: image classification with a ViT, or a CNN or MLP baseline."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv._config import to_dict
from qkv.data.images.augmentation import ImageAugment
from qkv.data.images.cifar_mnist import CIFAR100_CLASSES
from qkv.data.images.dataset import ImageBatches, Images, ImageSplits, Normalization, PatchDropout
from qkv.data.images.load import load_digits, load_images
from qkv.models import PRESETS, CNNConfig, MLPConfig, ViTConfig
from qkv.training.config import CheckpointConfig, TrainConfig
from qkv.training.evaluation import eval_mode, evaluate_all, first_epoch
from qkv.training.objectives import classification
from qkv.training.optimizers import OptimizerConfig
from qkv.training.recipes.definition import (
    PICKED_ON_TEST,
    RecipeConfig,
    RecipeDefinition,
    Stage,
    Task,
    build_model,
    sample_evenly,
)
from qkv.training.schedules import ScheduleConfig

EVAL_BATCH_SIZE = 500
NUM_SAMPLES = 24  # images in a report


@dataclass(frozen=True)
class ImageData:
    """Where images come from and how they are augmented.

    path: an .npz file, a folder of class folders, a folder of parquet files, or CIFAR's .bin files; "digits" are the
        bundled digits.
    drop_last: leave out the last batch of an epoch if it is smaller.
    validation_fraction: share of the training images that is held out, where the data has no validation split. With 0
        all are trained on, the test set is evaluated during training, and the best epoch is picked on it.
    patch_dropout: share of an image's patches that a ViT does not see in training, in a share
        `patch_dropout_batches` of the batches; see `PatchDropout`.
    class_names: names of the classes, where the data only has numbers.
    skip_bad_items: leave out images that cannot be read, with a note, instead of failing.
    """

    path: str = "digits"
    batch_size: int = 128
    drop_last: bool = True
    validation_fraction: float = 0.1
    label_smoothing: float = 0.0
    patch_dropout: float = 0.0
    patch_dropout_batches: float = 0.75
    class_names: tuple[str, ...] = ()
    skip_bad_items: bool = False
    augment: ImageAugment = field(default_factory=ImageAugment)


def build(config: RecipeConfig, limit: int | None = None) -> Task:
    """Load the images and build the model for their size and classes."""
    data: ImageData = config.data
    splits = load_splits(data, config.seed)
    channels, height, width = splits.train.shape
    if height != width:
        raise ValueError(f"images must be square; those of {data.path} are {height} × {width}")
    config = replace(
        config,
        model=replace(config.model, image_size=height, channels=channels, num_classes=len(splits.classes)),
    )
    normalization = Normalization.from_images(splits.train)

    def in_order(images: Images) -> ImageBatches:
        kept = torch.tensor(sample_evenly(list(range(len(images))), limit), dtype=torch.long)
        return ImageBatches(images.take(kept), EVAL_BATCH_SIZE, normalization=normalization, shuffle=False)

    train = ImageBatches(
        splits.train,
        data.batch_size,
        seed=config.seed,
        normalization=normalization,
        augment=data.augment,
        drop_last=data.drop_last,
    )
    if isinstance(config.model, ViTConfig) and data.patch_dropout:
        train = PatchDropout(train, config.model.num_patches, data.patch_dropout, data.patch_dropout_batches)
    validation = in_order(splits.validation)
    test = None if splits.test is None else in_order(splits.test)
    cross_entropy = classification()
    objective = classification(label_smoothing=data.label_smoothing)

    def evaluate_test(model: nn.Module) -> dict[str, Any]:
        return {} if test is None else evaluate_all(model, test, cross_entropy) | _confusion(model, test)

    preprocessor = {"image_mean": normalization.mean, "image_std": normalization.std}  # as Hugging Face names them
    return Task(
        config=config,
        model=build_model(config.model, config.seed),
        stages=(
            Stage(
                "train",
                train,
                objective,
                lambda model: evaluate_all(model, validation, cross_entropy),
                evaluated_on="test" if splits.validates_on_test else "validation",
            ),
        ),
        test=evaluate_test,
        samples=lambda model: _samples(model, splits.validation, validation),
        purpose=lambda _: {
            "task": "classify",
            "classes": list(splits.classes),
            "mean": list(normalization.mean),
            "std": list(normalization.std),
        },
        notes=(*splits.notes, PICKED_ON_TEST) if splits.validates_on_test else splits.notes,
        files={"preprocessor_config.json": json.dumps(preprocessor).encode()},
    )


def load_splits(data: ImageData, seed: int) -> ImageSplits:
    """Load the images of a data config."""
    if data.path == "digits":
        return load_digits()
    bad_items: Literal["error", "skip"] = "skip" if data.skip_bad_items else "error"
    splits = load_images(data.path, validation=data.validation_fraction, seed=seed, bad_items=bad_items)
    return splits.with_class_names(data.class_names)


def _confusion(model: nn.Module, batches: ImageBatches) -> dict[str, Any]:
    """Count the images of each class (row) by predicted class (column)."""
    classes = len(batches.images.classes)
    if classes > 20:
        return {}
    with eval_mode(model) as device:
        pairs = [(batch["targets"], model(batch["images"]).argmax(-1)) for batch in first_epoch(batches, device)]
    true, predicted = (torch.cat(part).cpu() for part in zip(*pairs, strict=True))
    counts = torch.bincount(true * classes + predicted, minlength=classes**2).view(classes, classes)
    return {"confusion": counts.tolist(), "classes": list(batches.images.classes)}


def _samples(model: nn.Module, images: Images, batches: ImageBatches) -> list[dict[str, Any]]:
    """Return images with their label and prediction; wrong ones first, then the least confident."""
    with eval_mode(model) as device:
        probabilities = torch.cat([model(batch["images"]).softmax(-1) for batch in first_epoch(batches, device)]).cpu()
    confidence, predicted = probabilities.max(-1)
    order = (confidence + (predicted == images.labels) * 2).argsort()[:NUM_SAMPLES]
    return [
        {
            "image": png_data_uri(images.pixels[row]),
            "label": images.classes[int(images.labels[row])],
            "prediction": images.classes[int(predicted[row])],
            "confidence": round(float(confidence[row]), 3),
        }
        for row in order.tolist()
    ]


def png_data_uri(pixels: Tensor) -> str:
    """Encode an image (c, h, w) of bytes as a PNG in a data URI."""
    from PIL import Image

    array = pixels[0].numpy() if pixels.shape[0] == 1 else pixels[:3].permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _train_config(steps: int, warmup_steps: int) -> TrainConfig:
    every = max(steps // 10, 1)
    return TrainConfig(
        steps=steps,
        optimizer=OptimizerConfig(name="muon", lr=3e-3, muon_lr=0.02, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_steps=warmup_steps),
        checkpoint=CheckpointConfig(evaluate_every=every, checkpoint_every=every, best_metric="accuracy"),
    )


_DATA_FIELDS = ("image_size", "channels", "num_classes")
DIGITS = RecipeDefinition(
    name="vit-digits",
    summary="A small ViT on bundled handwritten digits (8×8): about a minute.",
    data=ImageData(batch_size=64, augment=ImageAugment(crop=1, mix="mixup")),
    models={
        "vit": ViTConfig(image_size=8, patch_size=2, channels=1, dim=64, layers=3, heads=4),
        "cnn": CNNConfig(image_size=8, channels=1, stage_channels=(32, 64)),
        "mlp": MLPConfig(image_size=8, channels=1, hidden_sizes=(256, 256), dropout=0.1),
    },
    stages={"train": _train_config(1200, warmup_steps=60)},
    build=build,
    data_fields=_DATA_FIELDS,
)

_NYU_VIT: dict[str, Any] = to_dict(PRESETS["nyu-hw4-vit"])
_NYU_VIT_IN_STEPS = {  # the model and training of NYU Deep Learning homework 4, with a validation split
    "data.batch_size": 256,
    "data.label_smoothing": 0.0,
    "data.patch_dropout": 0.0,
    "data.augment": {"crop": 4, "flip": True, "mix": "either"},
    "train.steps": 17_600,  # 100 epochs of 45,000 images
    "train.grad_clip": "none",
    # the homework's Adam adds the decay to the gradient; here it is decoupled
    "train.optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-4},
    "train.schedule": {"kind": "cosine", "warmup_steps": 0, "decay_steps": "none"},
    "train.checkpoint": {"evaluate_every": 1760, "checkpoint_every": 1760},
    **{f"model.{name}": value for name, value in _NYU_VIT.items() if name not in _DATA_FIELDS},
}
NYU_EPOCHS, _NYU_EPOCH_STEPS = 100, 196  # 50,000 images in batches of 256, the last one of 80
_NYU_HW4 = {  # NYU Deep Learning, homework 4, as published: all images, the best epoch picked on the test set
    **_NYU_VIT_IN_STEPS,
    "data.validation_fraction": 0.0,
    "data.drop_last": False,
    "train.steps": NYU_EPOCHS * _NYU_EPOCH_STEPS,
    "train.optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 1e-4},
    "train.schedule": {
        **_NYU_VIT_IN_STEPS["train.schedule"],
        "total_steps": NYU_EPOCHS * _NYU_EPOCH_STEPS,
    },
    "train.checkpoint": {"evaluate_every": _NYU_EPOCH_STEPS, "checkpoint_every": _NYU_EPOCH_STEPS},
}
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


_SMALL_VIT = ViTConfig(image_size=32, patch_size=4, dim=128, layers=4, heads=4, mlp_dim=256, pooling="mean")


def _cifar(
    vit: ViTConfig, data: ImageData, train: TrainConfig, presets: Mapping[str, Mapping[str, Any]], summary: str
) -> RecipeDefinition:
    num_classes = len(data.class_names)
    return RecipeDefinition(
        name=f"vit-cifar{num_classes}",
        summary=summary,
        data=replace(data, path=f"cifar{num_classes}"),
        models={
            "vit": replace(vit, num_classes=num_classes),
            "cnn": CNNConfig(image_size=32, num_classes=num_classes),
            "mlp": MLPConfig(image_size=32, num_classes=num_classes, hidden_sizes=(1024, 1024), dropout=0.1),
        },
        stages={"train": train},
        presets=presets,
        build=build,
        data_fields=_DATA_FIELDS,
    )


_LONG = {  # 57 epochs of a larger one with mixed images
    "model.dim": 192,
    "model.heads": 6,
    "model.mlp_dim": 768,
    "data.batch_size": 256,
    "data.augment": {"crop": 4, "flip": True, "mix": "either", "mix_alpha": 0.5},
    "train.steps": 10_000,
    "train.optimizer": {"muon_lr": 0.025},
    "train.schedule": {"warmup_steps": 300},
    "train.checkpoint": {"evaluate_every": 500, "checkpoint_every": 250},
}
CIFAR10 = _cifar(
    _SMALL_VIT,
    ImageData(class_names=_CIFAR10_CLASSES, augment=ImageAugment(crop=4, flip=True)),
    _train_config(7_000, warmup_steps=200),
    {"nyu-hw4": _NYU_VIT_IN_STEPS},
    "A ViT on CIFAR-10, downloaded or from --data (an .npz file, or CIFAR's .bin files).",
)
CIFAR100 = _cifar(
    replace(_SMALL_VIT, layers=6),
    ImageData(
        class_names=CIFAR100_CLASSES,
        augment=ImageAugment(crop=4, flip=True),
        label_smoothing=0.1,
        patch_dropout=0.5,  # in three of four batches: half the cost, and no two epochs show the same image
    ),
    replace(_train_config(9_000, warmup_steps=200), schedule=ScheduleConfig(kind="linear", warmup_steps=200)),
    {"nyu-hw4": _NYU_HW4, "long": _LONG},
    "A ViT on CIFAR-100; --preset nyu-hw4 is the model and training of NYU Deep Learning homework 4.",
)
