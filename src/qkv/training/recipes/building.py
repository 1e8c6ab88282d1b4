"""Models drawn from a seed."""

import copy

import torch

from qkv.data.batches import mixed
from qkv.models import Model
from qkv.models import build as build_model
from qkv.training import World

WEIGHTS = 101  # the stream of randomness that draws first weights


def at_work(model: Model) -> Model:
    """A copy of a model where it is trained: on this process's device, which is a GPU if there is one."""
    world = World.here()
    alone = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return copy.deepcopy(model).to(alone if world.size == 1 else world.device)


def drawn(config: object, seed: int) -> Model:
    """The model that a config describes, its first weights a function of the seed; other randomness stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(mixed(seed, WEIGHTS))
        return build_model(config)
