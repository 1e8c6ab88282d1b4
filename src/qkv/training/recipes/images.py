"""Vision: a ViT, or a baseline in its place, learns to tell pictures apart."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.data.augment import Augment
from qkv.data.image_batches import ImageBatches
from qkv.data.images import Images, ImageSplits, Normalisation
from qkv.models import CNNConfig, MLPConfig, ViTConfig
from qkv.training import Optimiser, Saving, Schedule, Settings
from qkv.training.objectives import classification
from qkv.training.recipes.building import drawn
from qkv.training.recipes.definition import Recipe, Stage, System, Task
from qkv.training.recipes.measure import epoch_of, judging, measured

JUDGED = 500  # pictures in a batch that is only looked at
SHOWN = 24  # pictures in a report


@dataclass(frozen=True)
class PictureData:
    """Where pictures come from and how they are changed.

    path: an .npz, a folder of folders, a folder of parquet files, CIFAR's .bin files; "digits" are those that ship.
    validation: the share of the training pictures that is kept from training, where the data has no such part.
    names: what the classes are called, where the data only counts them.
    skip_bad: leave out pictures that cannot be read, and say which, instead of refusing the data.
    """

    path: str = "digits"
    batch: int = 128
    validation: float = 0.1
    smoothing: float = 0.0
    names: tuple[str, ...] = ()
    skip_bad: bool = False
    augment: Augment = field(default_factory=Augment)


def build(recipe: Recipe) -> Task:
    """Read the pictures, build the model for their size and classes."""
    data: PictureData = recipe.data
    splits = opened(data, recipe.seed)
    channels, height, width = splits.train.shape
    if height != width:
        raise ValueError(f"pictures are square here; {data.path} has {height} × {width}")
    config = replace(recipe.model, image=height, channels=channels, classes=len(splits.classes))
    normalisation = Normalisation.of(splits.train)
    objective = classification(smoothing=data.smoothing)
    plain = classification()
    train = ImageBatches(
        splits.train, data.batch, seed=recipe.seed, normalisation=normalisation, augment=data.augment, whole=True
    )
    validation = _in_order(splits.validation, normalisation)
    test = None if splits.test is None else _in_order(splits.test, normalisation)
    return Task(
        recipe=replace(recipe, model=config),
        model=drawn(config, recipe.seed),
        stages=(Stage("train", train, objective, lambda model: measured(model, validation, plain)),),
        test=lambda model: {} if test is None else measured(model, test, plain) | _confusion(model, test),
        samples=lambda model: _samples(model, splits.validation, validation),
        purpose=lambda _: {
            "task": "classify",
            "classes": list(splits.classes),
            "mean": list(normalisation.mean),
            "deviation": list(normalisation.deviation),
        },
        notes=splits.notes,
        files={"preprocessor_config.json": _preprocessing(normalisation)},
    )


def _preprocessing(normalisation: Normalisation) -> bytes:
    """How pixels become numbers, as other tools read it."""
    return json.dumps({"image_mean": normalisation.mean, "image_std": normalisation.deviation}).encode()


def opened(data: PictureData, seed: int) -> ImageSplits:
    """The pictures that the settings name."""
    if data.path == "digits":
        from qkv.data.digit_images import digits

        return digits()
    from qkv.data.load_images import load_images

    bad: Literal["refuse", "skip"] = "skip" if data.skip_bad else "refuse"
    return load_images(data.path, validation=data.validation, seed=seed, bad_items=bad).called(data.names)


def _in_order(images: Images, normalisation: Normalisation) -> ImageBatches:
    return ImageBatches(images, JUDGED, normalisation=normalisation, shuffled=False)


def _confusion(model: nn.Module, batches: ImageBatches) -> dict[str, Any]:
    """How often pictures of one class (row) were taken for another (column)."""
    classes = len(batches.images.classes)
    if classes > 20:
        return {}
    with judging(model) as device:
        pairs = [(batch["targets"], model(batch["images"]).argmax(-1)) for batch in epoch_of(batches, device)]
    true, said = (torch.cat(part).cpu() for part in zip(*pairs, strict=True))
    counts = torch.bincount(true * classes + said, minlength=classes**2).view(classes, classes)
    return {"confusion": counts.tolist(), "classes": list(batches.images.classes)}


def _samples(model: nn.Module, images: Images, batches: ImageBatches) -> list[dict[str, Any]]:
    """Pictures with what the model takes them for, the most doubtful first."""
    with judging(model) as device:
        chances = torch.cat([model(batch["images"]).softmax(-1) for batch in epoch_of(batches, device)]).cpu()
    sure, said = chances.max(-1)
    order = (sure + (said == images.labels) * 2).argsort()[:SHOWN]
    return [
        {
            "picture": data_uri(images.pixels[row]),
            "is": images.classes[int(images.labels[row])],
            "taken for": images.classes[int(said[row])],
            "sure": round(float(sure[row]), 3),
        }
        for row in order.tolist()
    ]


def data_uri(pixels: Tensor) -> str:
    """A picture (c, h, w) of bytes as the address of a PNG that carries itself."""
    from PIL import Image

    c = pixels.shape[0]
    array = pixels[0].numpy() if c == 1 else pixels[:3].permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _settings(steps: int, lr: float, *, warmup: int, decay: float = 0.05, muon: float | None = None) -> Settings:
    matrices: dict[str, Any] = {} if muon is None else {"name": "muon", "muon_lr": muon}
    return Settings(
        steps=steps,
        optimiser=Optimiser(lr=lr, weight_decay=decay, **matrices),
        schedule=Schedule(warmup=warmup),
        saving=Saving(evaluate_every=max(steps // 10, 1), checkpoint_every=max(steps // 10, 1), best="accuracy"),
    )


DIGITS = System(
    name="vit-digits",
    summary="A small ViT on real handwritten digits (8×8) that ship with qkv: about a minute.",
    data=PictureData(batch=64, augment=Augment(crop=1, mix="mixup")),
    models={
        "vit": ViTConfig(image_size=8, patch_size=2, channels=1, dim=64, layers=3, heads=4),
        "cnn": CNNConfig(image_size=8, channels=1, widths=(32, 64)),
        "mlp": MLPConfig(image_size=8, channels=1, hidden_sizes=(256, 256), dropout=0.1),
    },
    stages={"train": _settings(1200, 3e-3, warmup=60, muon=0.02)},
    build=build,
    fills=("image", "channels", "classes"),
)

_COURSE = {
    "data.batch": 256,
    "data.augment": {"crop": 4, "flip": True, "mix": "either"},
    "train.steps": 17_600,  # 100 epochs of 45,000 pictures
    "train.clip": "none",
    # the course's Adam adds the decay to the gradient; here it is decoupled
    "train.optimiser": {"name": "adamw", "lr": 1e-3, "weight_decay": 1e-4},
    "train.schedule": {"warmup": 0},
    "train.saving": {"evaluate_every": 1760, "checkpoint_every": 1760},
    "model.pooling": "cls",
    "model.patch_size": 4,
    "model.dim": 256,
    "model.layers": 6,
    "model.heads": 8,
    "model.mlp_dim": 512,
    "model.dropout": 0.01,
    "model.final_norm": False,
}


_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _cifar(name: str, classes: int, summary: str) -> System:
    return System(
        name=name,
        summary=summary,
        data=PictureData(
            path="cifar10" if classes == 10 else "cifar100",
            batch=128,
            names=_CIFAR10 if classes == 10 else (),
            augment=Augment(crop=4, flip=True),
        ),
        models={
            "vit": ViTConfig(
                image_size=32,
                patch_size=4,
                num_classes=classes,
                dim=128,
                layers=4,
                heads=4,
                mlp_dim=256,
                pooling="mean",
            ),
            "cnn": CNNConfig(image_size=32, num_classes=classes),
            "mlp": MLPConfig(image_size=32, num_classes=classes, hidden_sizes=(1024, 1024), dropout=0.1),
        },
        stages={"train": _settings(7_000, 3e-3, warmup=200, muon=0.02)},
        presets={"course": _COURSE},
        build=build,
        fills=("image", "channels", "classes"),
    )


CIFAR10 = _cifar("vit-cifar10", 10, "A ViT on CIFAR-10; --data says where it is (an .npz, or CIFAR's .bin files).")
CIFAR100 = _cifar("vit-cifar100", 100, "A ViT on CIFAR-100; --preset course is the course's model and recipe exactly.")
