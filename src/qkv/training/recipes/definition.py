"""What a recipe is: its definition (defaults, models, presets), the resolved config, the built task and its stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from qkv._config import Table, from_toml, override, to_dict
from qkv.data.batches import Batches, mix_seed
from qkv.models import Model, build
from qkv.models.base import check_fits
from qkv.training.config import TrainConfig
from qkv.training.device import training_device
from qkv.training.distributed import World
from qkv.training.objectives import Objective

T = TypeVar("T")
WEIGHTS = 101  # the random stream that initial weights are drawn from
PICKED_ON_TEST = "best epoch picked on the test set, as in the notebook"  # of NYU DL HW4


@dataclass(frozen=True)
class RecipeConfig:
    """The resolved config of a run, as data; it is written to recipe.toml and read back.

    recipe: name of the recipe. data: its data config. model_kind: which of its models; model: the config of that one.
    stages: the TrainConfig of each stage of the run, in order.
    """

    recipe: str
    seed: int
    data: Any
    model_kind: str
    model: Any
    stages: Mapping[str, TrainConfig]

    def to_table(self) -> Table:
        """Convert to the nested tables of recipe.toml."""
        stages = {name: config.to_dict() for name, config in self.stages.items()}
        for stage in stages.values():
            del stage["seed"]  # the recipe's
        model = {"kind": self.model_kind, **to_dict(self.model)}
        return {"recipe": self.recipe, "seed": self.seed, "data": to_dict(self.data), "model": model, **stages}


@dataclass(frozen=True)
class Stage:
    """A part of a run, such as pretraining or fine-tuning.

    batches: the training data. If the model of the previous stage makes it (`prepare`), these are stand-in batches of
        the same size, for measuring the speed.
    validate: metrics on held-out data, computed during training; None for none.
    prepare: what the model at the start of the stage produces first, as JSON (pseudo-labels, for example). It is saved
        in the run directory, so that a resumed run learns from the same. prepared: makes the batches from it.
    evaluated_on: the data of `validate`; "test" if the best epoch is picked on the test set.
    """

    name: str
    batches: Batches
    objective: Objective
    validate: Callable[[nn.Module], dict[str, float]] | None = None
    prepare: Callable[[nn.Module], Any] | None = None
    prepared: Callable[[Any], Batches] | None = None
    evaluated_on: Literal["validation", "test"] = "validation"


@dataclass(frozen=True)
class Task:
    """A resolved config with its data loaded and its model built.

    config: the resolved config, with what the data decides (vocabulary size, classes) filled in.
    test: metrics on data that is used once, at the end.
    samples: example inputs and outputs of the model: rows of a table with named columns.
    purpose: what `qkv use` needs besides the trained model: its task, labels, normalization; JSON.
    notes: what was guessed or left out while loading the data. files: what belongs to the model (its tokenizer).
    """

    config: RecipeConfig
    model: Model
    stages: tuple[Stage, ...]
    test: Callable[[nn.Module], dict[str, Any]]
    samples: Callable[[nn.Module], list[dict[str, Any]]]
    purpose: Callable[[nn.Module], dict[str, Any]]
    notes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    def stage_folder(self, run_folder: Path, stage: Stage) -> Path:
        """Return the directory of a stage's metrics and checkpoints: that of the run, or one for each of several."""
        return run_folder if len(self.stages) == 1 else run_folder / stage.name


def sample_evenly(items: list[T], limit: int | None) -> list[T]:
    """Return at most `limit` items, evenly spaced over the list; None for all.

    >>> sample_evenly(list(range(10)), 4)
    [0, 2, 5, 7]
    """
    if limit is None or len(items) <= limit:
        return items
    return [items[index * len(items) // limit] for index in range(limit)]


def equal_shares(config: RecipeConfig) -> dict[str, float]:
    """Give every stage the same share of a run."""
    return dict.fromkeys(config.stages, 1 / len(config.stages))


@dataclass(frozen=True)
class RecipeDefinition:
    """A recipe: default configs, the models to choose from, presets, and how a task is built.

    data: config of the data; its `path` is where the user's own data is. models: the first is the default.
    build: loads the data and builds the model; with a limit, validation and test use a sample of so many items.
    presets: named overrides.
    model_overrides: overrides that come with a model under every preset, such as another optimizer for a baseline.
    data_fields: fields of the model config that the data decides, such as the vocabulary size.
    stage_shares: the stages that a config runs, each with its share of the run's minutes or steps.
    """

    name: str
    summary: str
    data: Any
    models: Mapping[str, Any]
    stages: Mapping[str, TrainConfig]
    build: Callable[[RecipeConfig, int | None], Task]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model_overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data_fields: tuple[str, ...] = ()
    stage_shares: Callable[[RecipeConfig], Mapping[str, float]] = equal_shares

    def resolve(
        self,
        *overrides: Mapping[str, Any],
        preset: str | None = None,
        model: str | None = None,
        seed: int | None = None,
    ) -> RecipeConfig:
        """Apply a preset and overrides to the defaults, later ones last. Names are dotted or nested.

        >>> from qkv.training.recipes import get_recipe
        >>> get_recipe("vit-digits").resolve({"train.steps": 500}, model="cnn").stages["train"].steps
        500
        """
        if preset is not None and preset not in self.presets:
            offered = ", ".join(self.presets) or "none"
            raise ValueError(f"{self.name} has no preset {preset!r}; it has {offered}")
        layers = [self.presets[preset] if preset else {}, *(_flatten_once(override) for override in overrides)]
        default = next(iter(self.models))
        kind = model or next((layer["model.kind"] for layer in reversed(layers) if "model.kind" in layer), default)
        if kind not in self.models:
            raise ValueError(f"{self.name} has no model {kind!r}; it has {', '.join(self.models)}")
        if kind != default:  # the sizes in a preset belong to the default model
            layers[0] = {name: value for name, value in layers[0].items() if not name.startswith("model.")}
        table = RecipeConfig(self.name, 0, self.data, kind, self.models[kind], self.stages).to_table()
        for layer in (self.model_overrides.get(kind, {}), *layers):
            kept = {name: value for name, value in layer.items() if name not in ("model.kind", "recipe")}
            table = override(table, kept, self.name)
        return self.from_table(table, seed)

    def from_table(self, table: Table, seed: int | None = None) -> RecipeConfig:
        """Read a config from the tables of recipe.toml; each value is checked."""
        where = f"recipe {self.name}"
        for name in ("data", "model", *self.stages):
            if not isinstance(table.get(name), dict):
                raise ValueError(
                    f"{where}: it must have a table [{name}]; `qkv train {self.name} --show` prints a whole recipe"
                )
        model = dict(table["model"])
        kind = model.pop("kind", None)
        if not isinstance(kind, str) or kind not in self.models:
            raise ValueError(f"{where}: model.kind must be one of {', '.join(self.models)}; got {kind!r}")
        seed = table.get("seed", 0) if seed is None else seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"{where}: seed must be a whole number, 0 or more; got {seed!r}")

        def read(config_class: type, part: Table, name: str) -> Any:
            return from_toml(config_class, part, f"{where}, {name}")

        return RecipeConfig(
            recipe=self.name,
            seed=seed,
            data=read(type(self.data), table["data"], "data"),
            model_kind=kind,
            model=read(type(self.models[kind]), model, "model"),
            stages={name: replace(read(TrainConfig, table[name], name), seed=seed) for name in self.stages},
        )


def build_model(config: object, seed: int) -> Model:
    """Build a model with initial weights that follow from the seed; the global random state stays as it was."""
    check_fits(config)
    with torch.random.fork_rng():
        torch.manual_seed(mix_seed(seed, WEIGHTS))
        return build(config)


def copy_to_device(model: Model) -> Model:
    """Copy a model to the device it is trained on."""
    world = World.current()
    device = training_device() if world.size == 1 else world.device
    return copy.deepcopy(model).to(device)


def _flatten_once(override: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the tables of a file into dotted names, one level down, as they are on the command line."""
    flat: dict[str, Any] = {}
    for name, value in override.items():
        if isinstance(value, Mapping) and "." not in name:
            flat.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            flat[name] = value
    return flat
