"""Made-up people: who has which name and was born where. Seeded; no person is real."""

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor


class Drawn(NamedTuple):
    """For each person the numbers of a first name, a last name and a place; no two share both names."""

    first: Int64[Tensor, " people"]
    last: Int64[Tensor, " people"]
    place: Int64[Tensor, " people"]


def drawn_people(count: int, first: int, last: int, odds: Tensor, generator: torch.Generator) -> Drawn:
    """`count` people with names of their own out of `first` × `last`; places are drawn by their `odds`.

    >>> people = drawn_people(4, 2, 2, torch.tensor([2.0, 1.0]), torch.Generator().manual_seed(0))
    >>> sorted(zip(people.first.tolist(), people.last.tolist()))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if count > first * last:
        raise ValueError(f"there are {first * last} names; got count={count}")
    chosen = torch.randperm(first * last, generator=generator)[:count]
    places = torch.multinomial(odds, count, replacement=True, generator=generator)
    return Drawn(chosen // last, chosen % last, places)
