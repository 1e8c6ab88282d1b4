"""Models drawn from a seed."""

import torch

from qkv.data.batches import mixed
from qkv.models import Model
from qkv.models import build as build_model

WEIGHTS = 101  # the stream of randomness that draws first weights


def drawn(config: object, seed: int) -> Model:
    """The model that a config describes, its first weights a function of the seed; other randomness stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(mixed(seed, WEIGHTS))
        return build_model(config)
