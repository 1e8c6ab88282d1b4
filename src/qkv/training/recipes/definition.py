"""What a trainable system is, and what a recipe for it is: data, model and numbers, from defaults and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from qkv._config import from_plain, to_plain
from qkv.data.batches import Batches
from qkv.models import Model
from qkv.training import Objective, Settings
from qkv.training.recipes.plain import Table, changed, with_nothing


@dataclass(frozen=True)
class Recipe:
    """What a run does, as data; it goes to recipe.toml and back.

    system: which trainable system. data: its settings of data. kind: which of its models; model: that one's config.
    stages: the loop's settings of each part of the run, in order.
    """

    system: str
    seed: int
    data: Any
    kind: str
    model: Any
    stages: Mapping[str, Settings]

    def to_table(self) -> Table:
        """As TOML holds it."""
        stages = {name: _without_seed(settings.as_dict()) for name, settings in self.stages.items()}
        model = {"kind": self.kind, **to_plain(self.model)}
        return {"recipe": self.system, "seed": self.seed, "data": to_plain(self.data), "model": model, **stages}


@dataclass(frozen=True)
class Stage:
    """A part of a run: what is learned from, and what for.

    batches: what is learned from; where that is made by the model that the stage begins with, a stand-in of the same
        size, by which the speed is measured.
    validate: numbers on data kept from training, watched on the way; None watches nothing.
    prepare: what the model that the stage begins with says beforehand, as JSON; it is kept in the run's folder, so that
        a run that goes on learns from the same. prepared: the batches that this makes.
    """

    name: str
    batches: Batches
    objective: Objective
    validate: Callable[[nn.Module], dict[str, float]] | None = None
    prepare: Callable[[nn.Module], Any] | None = None
    prepared: Callable[[Any], Batches] | None = None


@dataclass(frozen=True)
class Task:
    """A recipe with its data read and its model built.

    recipe: as it was, with what the data decides (vocabulary, classes) filled in.
    test: numbers on data that is touched once, at the end.
    samples: what the model does, for people: rows of a table with named columns.
    purpose: what `qkv use` has to know beside the trained model: its task, labels, normalisation; JSON.
    notes: what was guessed or left out when the data was read. files: what travels with the model (its tokenizer).
    """

    recipe: Recipe
    model: Model
    stages: tuple[Stage, ...]
    test: Callable[[nn.Module], dict[str, Any]]
    samples: Callable[[nn.Module], list[dict[str, Any]]]
    purpose: Callable[[nn.Module], dict[str, Any]]
    notes: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """A trainable system: its defaults, the models that can stand in for one another, its presets, and how it is built.

    data: settings of the data; `path` in it is where a person's own data is. models: the first is the default.
    presets: named changes. build: reads the data and builds the model.
    habits: by model, changes that it comes with under every preset, such as another optimiser for a baseline.
    fills: the settings of its models that the data decides, such as the vocabulary.
    shares: the stages that a recipe carries out, each with its part of a run's minutes or steps; all alike by default.
    """

    name: str
    summary: str
    data: Any
    models: Mapping[str, Any]
    stages: Mapping[str, Settings]
    build: Callable[[Recipe], Task]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    habits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fills: tuple[str, ...] = ()
    shares: Callable[[Recipe], Mapping[str, float]] = lambda recipe: dict.fromkeys(
        recipe.stages, 1 / len(recipe.stages)
    )

    def recipe(
        self,
        *changes: Mapping[str, Any],
        preset: str | None = None,
        model: str | None = None,
        seed: int | None = None,
    ) -> Recipe:
        """The defaults with a preset and with changes, later ones last; names are dotted or nested."""
        if preset is not None and preset not in self.presets:
            offered = ", ".join(self.presets) or "none"
            raise ValueError(f"{self.name} has no preset {preset!r}; it has {offered}")
        layers = [self.presets[preset] if preset else {}, *(_flat(change) for change in changes)]
        kind = model or next((layer["model.kind"] for layer in reversed(layers) if "model.kind" in layer), None)
        kind = kind or next(iter(self.models))
        if kind not in self.models:
            raise ValueError(f"{self.name} has no model {kind!r}; it has {', '.join(self.models)}")
        table = Recipe(self.name, 0, self.data, kind, self.models[kind], self.stages).to_table()
        if kind != next(iter(self.models)):  # a preset's sizes are those of the system's own model
            layers[0] = {name: value for name, value in layers[0].items() if not name.startswith("model.")}
        for layer in (self.habits.get(kind, {}), *layers):
            kept = {name: value for name, value in layer.items() if name not in ("model.kind", "recipe")}
            table = changed(table, kept, where=f"the settings of {self.name}")
        return self.read(table, seed)

    def read(self, table: Table, seed: int | None = None) -> Recipe:
        """The recipe that a table describes, each value checked."""
        model = dict(table["model"])
        kind = model.pop("kind")
        config, where = type(self.models[kind]), f"recipe {self.name}"
        seed = table["seed"] if seed is None else seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"{where}: seed is a whole number, 0 or more; got {seed!r}")
        return Recipe(
            system=self.name,
            seed=seed,
            data=from_plain(type(self.data), with_nothing(type(self.data), table["data"]), f"{where}, data"),
            kind=kind,
            model=from_plain(config, with_nothing(config, model), f"{where}, model"),
            stages={
                name: replace(Settings.from_dict(with_nothing(Settings, table[name]), f"{where}, {name}"), seed=seed)
                for name in self.stages
            },
        )


def _without_seed(settings: Table) -> Table:
    return {name: value for name, value in settings.items() if name != "seed"}


def _flat(change: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as dotted names, one level down: what stands in a file and what stands on a command line agree."""
    flat: dict[str, Any] = {}
    for name, value in change.items():
        if isinstance(value, Mapping) and "." not in name:
            flat.update({f"{name}.{inner}": item for inner, item in value.items()})
        else:
            flat[name] = value
    return flat
