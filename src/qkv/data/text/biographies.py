"""Synthetic biographies of made-up people, and questions about their birthplaces; seeded, no person is real.

Names of people and places are put together from syllables. `make_biographies` writes text; `make_tokenized_people`
writes seven-word lines as token ids, for models that train in seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from qkv.data.batches import generator_for, randint_inclusive
from qkv.data.text.question_answering import QuestionAnswer
from qkv.data.text.span_corruption import Span

PEOPLE_STREAM, NAME_STREAM, LINE_STREAM = 8, 9, 10  # of randomness


def _words(text: str) -> list[str]:
    return text.split()


STARTS = _words("Ba Bel Cor Da Dre El Fa Gar Ha Il Jo Kel La Mar Ne Or Per Ro Sel Ta Ul Ve Wil Yo Zan")
MIDDLES = ("", "", "", "ba", "da", "di", "ga", "la", "li", "mo", "na", "ni", "ra", "ri", "so", "ta", "vi")
FIRST_NAME_ENDS = _words("dan go ka lan len lin mar mir na nor ra rek ris rn s th vin x")
LAST_NAME_ENDS = _words("bach berg by dale don ell er ford land ler low man mund nik sen ski son vik well wood")
PLACE_ENDS = _words("burg bury dorf feld fors gard grad ham haven holm mouth pol port stad ton ville")
OCCUPATIONS = _words(
    "actor architect baker botanist composer dancer engineer journalist judge painter physician pilot poet printer "
    "sailor sculptor singer surgeon teacher weaver"
)

DOCUMENTS = (
    "{name}. {name} was {a_trade} born in {place} .",
    "{name}. Born in {place}, {last} became {a_trade} and later lived in {other} .",
    "{name}. {name} ({born} {place} - {died} {other}) was {a_trade} .",
    "{name}. A native of {place}, {name} worked as {a_trade} .",
    "{name}. The {trade} {name} grew up in {place}, where {last} was born .",
)
QUESTIONS = (
    "Where was {name} born?",
    "What is the birthplace of {name}?",
    "In which town was {name} born?",
)


class People(NamedTuple):
    """For each person the indices of a first name, a last name and a place; no two people share both names."""

    first: Int64[Tensor, " people"]
    last: Int64[Tensor, " people"]
    place: Int64[Tensor, " people"]


def draw_people(
    count: int, first_names: int, last_names: int, place_weights: Tensor, generator: torch.Generator
) -> People:
    """Draw `count` people with distinct names out of first_names × last_names; places follow `place_weights`.

    >>> people = draw_people(4, 2, 2, torch.tensor([2.0, 1.0]), torch.Generator().manual_seed(0))
    >>> sorted(zip(people.first.tolist(), people.last.tolist()))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if count > first_names * last_names:
        raise ValueError(f"there are {first_names * last_names} names, got count={count}")
    chosen = torch.randperm(first_names * last_names, generator=generator)[:count]
    places = torch.multinomial(place_weights, count, replacement=True, generator=generator)
    return People(chosen // last_names, chosen % last_names, places)


@dataclass(frozen=True)
class Biographies:
    """Documents about everybody, and questions in three parts by person, so that answers must come from documents.

    salient: for each document, where (in characters) the name and the birthplace are.
    """

    documents: tuple[str, ...]
    salient: tuple[tuple[Span, ...], ...]
    train: tuple[QuestionAnswer, ...]
    validation: tuple[QuestionAnswer, ...]
    test: tuple[QuestionAnswer, ...]

    @property
    def text(self) -> str:
        """All documents as one text."""
        return "\n".join(self.documents)


def make_biographies(
    people: int = 2000,
    *,
    places: int = 40,
    lines: int = 2,
    phrasings: int = 1,
    held_out: float = 0.2,
    seed: int = 0,
) -> Biographies:
    """Make up people, write `lines` documents about each in different words, and ask where they were born.

    Args:
        places: number of places; the k-th has weight 1/(k + 3), so a few are common.
        phrasings: number of ways to ask the question.
        held_out: the fraction of people asked about in validation, and as many in test; all have documents.
    """
    if people < 3 or places < 2 or not 1 <= lines <= len(DOCUMENTS) or not 1 <= phrasings <= len(QUESTIONS):
        raise ValueError(
            f"expected at least 3 people, 2 places, 1 to {len(DOCUMENTS)} lines and 1 to {len(QUESTIONS)} phrasings, "
            f"got {people}, {places}, {lines} and {phrasings}"
        )
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out, the fraction for validation and for test, must be below a half, got {held_out}")
    towns, first_names, last_names = make_names(places, seed)
    weights = 1 / (torch.arange(places, dtype=torch.float64) + 3)
    drawn = draw_people(people, len(first_names), len(last_names), weights, generator_for(seed, PEOPLE_STREAM))
    documents, salient = [], []
    asked: list[list[QuestionAnswer]] = []
    for person, (first, last, place) in enumerate(zip(*(column.tolist() for column in drawn), strict=True)):
        name, town = f"{first_names[first]} {last_names[last]}", towns[place]
        written = write_biography(name, town, towns, lines, seed, person)
        documents += written
        salient += [_last_spans(line, (name, town)) for line in written]
        where = f"synthetic person {person}"
        asked.append([QuestionAnswer(q.format(name=name), town, where) for q in QUESTIONS[:phrasings]])
    size = max(int(people * held_out), 1)
    parts = asked[: people - 2 * size], asked[people - 2 * size : people - size], asked[people - size :]
    train, validation, test = (tuple(question for group in part for question in group) for part in parts)
    return Biographies(tuple(documents), tuple(salient), train, validation, test)


def write_biography(name: str, town: str, towns: list[str], lines: int, seed: int, person: int) -> list[str]:
    """Write one person's documents: the same facts in different words, with another town that is not the answer."""
    generator = generator_for(seed, LINE_STREAM, person)
    trade = OCCUPATIONS[randint_inclusive(0, len(OCCUPATIONS) - 1, generator)]
    born = randint_inclusive(1800, 1949, generator)
    others = [other for other in towns if other != town]
    other, died = others[randint_inclusive(0, len(others) - 1, generator)], born + randint_inclusive(30, 89, generator)
    chosen = torch.randperm(len(DOCUMENTS), generator=generator)[:lines].tolist()
    facts = {"name": name, "last": name.split()[-1], "place": town, "other": other, "born": born, "died": died}
    facts |= {"trade": trade, "a_trade": f"an {trade}" if trade[0] in "aeiou" else f"a {trade}"}
    return [DOCUMENTS[number].format(**facts) for number in chosen]


def make_names(places: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    """Towns, first names and last names, all distinct."""

    def combine(ends: list[str], stream: int) -> list[str]:
        words = sorted({start + middle + end for start in STARTS for middle in MIDDLES for end in ends})
        order = torch.randperm(len(words), generator=generator_for(seed, NAME_STREAM, stream)).tolist()
        return [words[i] for i in order]

    towns = combine(PLACE_ENDS, 0)
    if places > len(towns):
        raise ValueError(f"there are {len(towns)} made-up towns, got places={places}")
    return towns[:places], combine(FIRST_NAME_ENDS, 1)[:400], combine(LAST_NAME_ENDS, 2)[:1000]


def _last_spans(line: str, words: tuple[str, ...]) -> tuple[Span, ...]:
    """The last occurrence of each word in a line."""
    return tuple((line.rindex(word), line.rindex(word) + len(word)) for word in words)


# The same as token ids: 0 padding, 1 "where", 2 "born", then template words, first names, last names, places.
NUM_FIRST_NAMES, NUM_LAST_NAMES, NUM_PLACES = 24, 24, 8
NUM_TEMPLATES = 4  # ways to state a birthplace
WHERE_ID, BORN_ID, TEMPLATE_ID = 1, 2, 3
FIRST_NAME_ID = TEMPLATE_ID + 2 * NUM_TEMPLATES
LAST_NAME_ID = FIRST_NAME_ID + NUM_FIRST_NAMES
PLACE_ID = LAST_NAME_ID + NUM_LAST_NAMES
VOCAB_SIZE = PLACE_ID + NUM_PLACES
ANSWER_INDEX = 4  # position of the answer in a question


@dataclass(frozen=True)
class TokenizedPeople:
    """Names (people, 2) as token ids, and each person's place, 0 … NUM_PLACES−1."""

    names: Tensor
    places: Tensor

    def lines(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """A line (rows, 7) about each of these people, in a random template: words, the name, words, the place."""
        template = torch.randint(0, NUM_TEMPLATES, (len(rows),), generator=generator)
        first, last = self.names[rows].unbind(1)
        place = PLACE_ID + self.places[rows]
        before, between = TEMPLATE_ID + template, TEMPLATE_ID + NUM_TEMPLATES + template
        padding = torch.zeros_like(first)
        name_inside = torch.stack((before, first, last, between, place, padding, padding), 1)
        name_first = torch.stack((first, last, between, before, place, padding, padding), 1)
        return torch.where((template % 2 == 0)[:, None], name_inside, name_first)

    def questions(self, rows: Tensor) -> Tensor:
        """“where first last born place” (rows, 7); the answer is at ANSWER_INDEX."""
        first, last = self.names[rows].unbind(1)
        where, born = torch.full_like(first, WHERE_ID), torch.full_like(first, BORN_ID)
        padding = torch.zeros_like(first)
        return torch.stack((where, first, last, born, PLACE_ID + self.places[rows], padding, padding), 1)


def make_tokenized_people(count: int, generator: torch.Generator) -> TokenizedPeople:
    """Draw `count` people with distinct names; the first place is twice as frequent as each of the others."""
    weights = torch.tensor([2.0, *[1.0] * (NUM_PLACES - 1)])
    people = draw_people(count, NUM_FIRST_NAMES, NUM_LAST_NAMES, weights, generator)
    return TokenizedPeople(torch.stack((FIRST_NAME_ID + people.first, LAST_NAME_ID + people.last), 1), people.place)
