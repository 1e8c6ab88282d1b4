"""Made-up people: who was born where, told in several ways, as words. Seeded; no person is real."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.data.people import drawn_people

FIRST = 24
LAST = 24
PLACES = 8
TEMPLATES = 4  # ways to tell a birth place
LENGTH = 7  # words in a line
# word ids: 0 padding, 1 "where", 2 "born", then template words, first names, last names, places
WHERE, BORN = 1, 2
TEMPLATE, FIRST_NAME = 3, 3 + 2 * TEMPLATES
LAST_NAME = FIRST_NAME + FIRST
PLACE = LAST_NAME + LAST
VOCAB = PLACE + PLACES


@dataclass(frozen=True)
class People:
    """Names (people, 2) as word ids, and each one's place, 0 … PLACES−1; the first places are the frequent ones."""

    names: Tensor
    places: Tensor

    def lines(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """A line about each of these people, told in one of the ways: words, the name, words, the place."""
        way = torch.randint(0, TEMPLATES, (len(rows),), generator=generator)
        first, last = self.names[rows].unbind(1)
        place = PLACE + self.places[rows]
        before, between = TEMPLATE + way, TEMPLATE + TEMPLATES + way
        padding = torch.zeros_like(first)
        plain = torch.stack((before, first, last, between, place, padding, padding), 1)
        twice = torch.stack((first, last, between, before, place, padding, padding), 1)
        return torch.where((way % 2 == 0)[:, None], plain, twice)

    def questions(self, rows: Tensor) -> Tensor:
        """“where first last born place”: the answer is the fifth word."""
        first, last = self.names[rows].unbind(1)
        where, born = torch.full_like(first, WHERE), torch.full_like(first, BORN)
        padding = torch.zeros_like(first)
        return torch.stack((where, first, last, born, PLACE + self.places[rows], padding, padding), 1)


ANSWER = 4  # where the answer stands in a question


def people(count: int, generator: torch.Generator) -> People:
    """`count` people with names of their own; a quarter comes from the most frequent place."""
    odds = torch.tensor([2.0, *[1.0] * (PLACES - 1)])
    drawn = drawn_people(count, FIRST, LAST, odds, generator)
    return People(torch.stack((FIRST_NAME + drawn.first, LAST_NAME + drawn.last), 1), drawn.place)
