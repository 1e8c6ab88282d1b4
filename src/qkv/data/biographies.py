"""Made-up biographies and questions about them, so that learning facts from text can be tried anywhere. Seeded.

Names of people and places are put together from syllables: none is meant to be anybody's or anywhere's.
"""

from dataclasses import dataclass

import torch

from qkv.data.batches import drawn, generator_for
from qkv.data.people import drawn_people
from qkv.data.questions import Question
from qkv.data.spans import Span

PEOPLE, WORDS, LINES = 8, 9, 10  # streams of randomness


def words(text: str) -> list[str]:
    return text.split()


STARTS = words("Ba Bel Cor Da Dre El Fa Gar Ha Il Jo Kel La Mar Ne Or Per Ro Sel Ta Ul Ve Wil Yo Zan")
MIDDLES = ("", "", "", "ba", "da", "di", "ga", "la", "li", "mo", "na", "ni", "ra", "ri", "so", "ta", "vi")
NAME_ENDS = words("dan go ka lan len lin mar mir na nor ra rek ris rn s th vin x")
FAMILY_ENDS = words("bach berg by dale don ell er ford land ler low man mund nik sen ski son vik well wood")
PLACE_ENDS = words("burg bury dorf feld fors gard grad ham haven holm mouth pol port stad ton ville")
TRADES = words(
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


@dataclass(frozen=True)
class Biographies:
    """Lines about everybody, and questions about them in three parts, so that answers must come from the lines.

    salient: for each line, where (in characters) the name and the birthplace stand.
    """

    documents: tuple[str, ...]
    salient: tuple[tuple[Span, ...], ...]
    train: tuple[Question, ...]
    validation: tuple[Question, ...]
    test: tuple[Question, ...]

    @property
    def text(self) -> str:
        """All lines as one text."""
        return "\n".join(self.documents)


def biographies(
    people: int = 2000,
    *,
    places: int = 40,
    lines: int = 2,
    phrasings: int = 1,
    held_out: float = 0.2,
    seed: int = 0,
) -> Biographies:
    """Make people up, tell of each in `lines` lines of different phrasings, and ask where they were born.

    places: how many there are; the k-th is about 1/(k + 3) as frequent, so that a few are common.
    phrasings: in how many ways questions are put.
    held_out: the share of people asked about for validation, and as many for test; everybody has lines.
    """
    if people < 3 or places < 2 or not 1 <= lines <= len(DOCUMENTS) or not 1 <= phrasings <= len(QUESTIONS):
        raise ValueError(
            f"expected 3 people or more, 2 places or more, 1 to {len(DOCUMENTS)} lines and 1 to {len(QUESTIONS)} "
            f"phrasings; got {people}, {places}, {lines} and {phrasings}"
        )
    if not 0 < held_out < 0.5:
        raise ValueError(f"held_out is a share below a half, for validation and for test each; got {held_out}")
    towns, first, last = made_up_names(places, seed)
    odds = 1 / (torch.arange(places, dtype=torch.float64) + 3)
    persons = drawn_people(people, len(first), len(last), odds, generator_for(seed, PEOPLE))
    documents, salient = [], []
    asked: list[list[Question]] = []
    for person, (a, b, place) in enumerate(zip(*(column.tolist() for column in persons), strict=True)):
        name, town = f"{first[a]} {last[b]}", towns[place]
        told = told_lines(name, last[b], town, towns, lines, seed, person)
        documents += told
        salient += [_where(line, (name, town)) for line in told]
        where = f"made-up person {person}"
        asked.append([Question(q.format(name=name), town, where) for q in QUESTIONS[:phrasings]])
    apart = max(int(people * held_out), 1)
    parts = asked[: people - 2 * apart], asked[people - 2 * apart : people - apart], asked[people - apart :]
    train, validation, test = (tuple(question for group in part for question in group) for part in parts)
    return Biographies(tuple(documents), tuple(salient), train, validation, test)


def told_lines(name: str, last: str, town: str, towns: list[str], lines: int, seed: int, person: int) -> list[str]:
    """What is told of one person: different phrasings of one truth, beside another town that is not the answer."""
    generator = generator_for(seed, LINES, person)
    trade, born = TRADES[drawn(0, len(TRADES) - 1, generator)], drawn(1800, 1949, generator)
    others = [other for other in towns if other != town]
    other, died = others[drawn(0, len(others) - 1, generator)], born + drawn(30, 89, generator)
    ways = torch.randperm(len(DOCUMENTS), generator=generator)[:lines].tolist()
    facts = {"name": name, "last": last, "place": town, "other": other, "born": born, "died": died}
    facts |= {"trade": trade, "a_trade": f"an {trade}" if trade[0] in "aeiou" else f"a {trade}"}
    return [DOCUMENTS[way].format(**facts) for way in ways]


def made_up_names(places: int, seed: int) -> tuple[list[str], list[str], list[str]]:
    """Towns, first names and family names, all different."""

    def all_of(ends: list[str], middles: tuple[str, ...], salt: int) -> list[str]:
        words = sorted({start + middle + end for start in STARTS for middle in middles for end in ends})
        order = torch.randperm(len(words), generator=generator_for(seed, WORDS, salt)).tolist()
        return [words[i] for i in order]

    towns = all_of(PLACE_ENDS, MIDDLES, 0)
    if places > len(towns):
        raise ValueError(f"there are {len(towns)} made-up towns; got places={places}")
    return towns[:places], all_of(NAME_ENDS, MIDDLES, 1)[:400], all_of(FAMILY_ENDS, MIDDLES, 2)[:1000]


def _where(line: str, words: tuple[str, ...]) -> tuple[Span, ...]:
    """Where words stand in a line, at their last place each."""
    return tuple((line.rindex(word), line.rindex(word) + len(word)) for word in words)
