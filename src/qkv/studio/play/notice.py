"""One sentence on what is to be noticed in a query's weights."""

from __future__ import annotations

import numpy as np

from qkv.byhand.writing import plain, readable
from qkv.studio.play.cells import exact
from qkv.studio.play.given import Given
from qkv.studio.play.numbers import Numbers

COPIES = 0.9  # a weight from which attention all but copies
EVEN = 0.02  # how far weights may be apart and still be called even


def notice(given: Given, found: Numbers) -> str:
    """What a person should see now.

    The query and the head are the chosen ones; beyond the last, the last is meant.
    """
    query = min(given.query, given.queries - 1)
    head = min(given.head, given.heads - 1)
    weights, seen = found.weights[head][query], np.flatnonzero(found.allowed[query])
    who = given.query_name(query)
    of = f" in head {head + 1}" if given.heads > 1 else ""
    if not len(seen):
        return f"{who} may attend to nothing{of}: its weights and its output are 0."
    if len(seen) == 1:
        return f"{who} may see only {given.key_name(int(seen[0]))}{of}: whatever the scores say, it copies its value."
    order = seen[np.argsort(-weights[seen], kind="stable")]
    best, second = (given.key_name(int(place)) for place in order[:2])
    if given.hard:
        return f"Hard choice: {who} takes the value of {best} alone{of}, the limit of an ever larger β."
    share, next_share = (float(weights[place]) for place in order[:2])
    start = f"{beta_text(given, found)}: "
    if share - float(weights[order[-1]]) <= EVEN:
        among = "every weight" if len(seen) == given.keys else "every weight that is allowed"
        return f"{start}{among} of {who} is about 1/{len(seen)}{of}: attention averages."
    if share >= COPIES:
        return f"{start}{who} gives {percent(share)} of its weight to {best}{of}: attention copies."
    if share + next_share >= COPIES and share - next_share <= EVEN:
        return f"{start}{who} shares its weight evenly between {best} and {second}{of}: the output lies halfway."
    return (
        f"{start}{who} gives {percent(share)} to {best} and {percent(next_share)} to {second}{of}: "
        "a larger β sharpens, a smaller one evens out."
    )


def percent(share: float) -> str:
    """A share as people say it: never 100 % where something is left.

    >>> percent(0.984), percent(0.99999), percent(1.0)
    ('98 %', '99.9 %', '100 %')
    """
    if share < 0.995:
        return f"{100 * share:.0f} %"
    return "100 %" if share == 1.0 else f"{min(100 * share, 99.9):.1f} %"


def beta_text(given: Given, found: Numbers) -> str:
    """β as it was given, or 1/√d."""
    if given.beta == "":
        return f"β = 1/√{given.width // given.heads}"
    number = exact(given.beta)
    text = plain(number)
    short = readable(number) and len(text) <= 12
    return f"β = {given.beta if len(given.beta) <= 12 else text if short else f'{found.beta:.4g}'}"
