"""Promises as the page offers them: the choices, a contract from what was chosen, and the words that say the same."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_args, get_type_hints

HELP = {
    "kind": "who sees whom",
    "window": "with kind window: how many tokens a query sees",
    "scale": "what q·k is multiplied by: head for 1/√d, or a number",
    "softmax": "the axis that weights sum to one over",
    "grouped": "how heads of queries share heads of keys",
    "mask": "what True means in a mask that is handed in",
    "alignment": "where a causal mask stands if there are more keys",
    "padding": "padding must not matter",
    "cache": "its cache agrees with the whole",
    "position": "what positions may do",
    "loss": "what a place is asked for",
}
HIDDEN = ("softmax",)  # which the command line has no word for: it comes with a named contract


def choices() -> dict[str, Any]:
    """The named contracts, and each further promise with what it may be."""
    from qkv.check import CONTRACTS

    named = [{"name": name, "words": str(contract)} for name, contract in CONTRACTS.items()]
    promises = [
        {"name": name, "help": HELP[name], "kind": kind, "choices": words}
        for name, (kind, words) in _kinds().items()
        if name not in HIDDEN
    ]
    return {"contracts": named, "promises": promises}


def _kinds() -> dict[str, tuple[str, list[str]]]:
    """Each promise: a choice among words, a flag, or a number."""
    from qkv.check import Contract

    found = {}
    hints = get_type_hints(Contract)
    for part in fields(Contract):
        words = [word for option in get_args(hints[part.name]) for word in get_args(option)]
        words = words or [word for word in get_args(hints[part.name]) if isinstance(word, str)]
        options = get_args(hints[part.name])
        kind = "flag" if bool in options else "number" if int in options or float in options else "choice"
        found[part.name] = (kind, words)
    return found


def promised(chosen: Any) -> dict[str, Any]:
    """The promises of a contract, by name, from what the page sends: {"name": "course", "kind": "causal", …}."""
    from qkv.check import CONTRACTS, Contract, named_contract

    if not isinstance(chosen, dict):
        raise ValueError('a contract is an object such as {"name": "course"}')
    name = chosen.get("name", "none")
    if name not in CONTRACTS:
        raise ValueError(f"contracts are {', '.join(CONTRACTS)}; got {name!r}")
    kinds = _kinds()
    more = {}
    for part, said in chosen.items():
        if part == "name" or said in (None, "", False):
            continue
        if part not in kinds or part in HIDDEN:
            raise ValueError(f"a contract promises {', '.join(HELP)}; got {part!r}")
        more[part] = _said(part, said, *kinds[part])
    contract = named_contract(name, **more)
    return {part.name: getattr(contract, part.name) for part in fields(Contract)}


def _said(part: str, said: Any, kind: str, words: list[str]) -> Any:
    if kind == "flag" and said is True:
        return True
    if isinstance(said, str) and said in words:
        return said
    if kind == "number" and not isinstance(said, bool):
        try:
            number = float(said)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if part == "window" and number.is_integer() and 1 <= number <= 10**6:
            return int(number)
        if part != "window" and math.isfinite(number):
            return number
    allowed = ", ".join(words) if words else "true" if kind == "flag" else "a number"
    raise ValueError(f"{part} is {allowed}{' or a number' if words and kind == 'number' else ''}; got {said!r}")


def _shortest(contract: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The named contract that leaves least to be said."""
    from qkv.check import CONTRACTS

    best = "none", {part: said for part, said in contract.items() if said is not None}
    for name, known in CONTRACTS.items():
        held = {part: getattr(known, part) for part in contract}
        if all(contract[part] is not None for part, said in held.items() if said is not None):
            rest = {part: said for part, said in contract.items() if said != held[part]}
            if len(rest) < len(best[1]):
                best = name, rest
    return best


def words_of(contract: dict[str, Any]) -> list[str]:
    """The options of `qkv check` that promise the same."""
    name, rest = _shortest(contract)
    words = [] if name == "none" else ["--contract", name]
    for part, said in rest.items():
        words += [f"--{part}"] if said is True else [f"--{part}", str(said)]
    return words


def python_of(contract: dict[str, Any]) -> str:
    """The argument of `qkv.check.run` that promises the same, with the comma before it."""
    name, rest = _shortest(contract)
    if name == "none" and not rest:
        return ""
    given = "".join(f", {part}={said!r}" for part, said in rest.items())
    return f', check.named_contract("{name}"{given})'
