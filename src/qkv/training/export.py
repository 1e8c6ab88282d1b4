"""A checkpoint as a model's folder: one safetensors file and its config, as `qkv.load` and others read them."""

from pathlib import Path

from qkv.checkpoints import load
from qkv.models import Model, folder
from qkv.training.checkpointing import Store
from qkv.training.manifest import damage
from qkv.training.snapshot import AVERAGE, weights


def restored(source: str | Path, *, average: bool = True) -> Model:
    """The model of a checkpoint, or of a run's newest whole one, with the average of its weights if it has one.

    average=False takes the weights themselves.
    """
    place = checkpoint_of(source)
    model = load(place)
    if not isinstance(model, Model):
        raise ValueError(f"{place} holds a {type(model).__name__}, which is no model of qkv")
    if average and (place / AVERAGE).is_file():
        own = weights(model)
        for name, tensor in folder.read_tensors(place / AVERAGE).items():
            own[name].copy_(tensor)
    return model


def export(source: str | Path, target: str | Path, *, average: bool = True) -> Model:
    """Write the model of a checkpoint into a folder of its own; return it."""
    model = restored(source, average=average)
    model.save(target)
    return model


def checkpoint_of(source: str | Path) -> Path:
    """The checkpoint itself, or the newest whole one of a run's folder."""
    source = Path(source)
    if (source / folder.CONFIG).is_file():
        if (wrong := damage(source)) is not None:
            raise ValueError(f"{source} is not a whole checkpoint: {wrong}")
        return source
    store = Store(source)
    for step in reversed(store.steps()):
        if damage(store.place(step)) is None:
            return store.place(step)
    raise ValueError(f"{source} is neither a checkpoint nor a run's folder with a whole one")
