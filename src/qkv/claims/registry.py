"""All claims, by name; and how one is run."""

import difflib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from qkv.claims import (
    choice,
    convolution,
    cost,
    depth,
    encoder_decoder,
    feed_forward,
    function,
    heads,
    heads_layer,
    knowledge,
    perturbation,
    places,
    streaming,
    symmetry,
    synthesizer,
    two_uses,
    versus,
    vision,
    vision_trained,
    worked,
)
from qkv.claims.claim import Claim, ClaimResult, Lab, library_attention
from qkv.claims.predicates import Real, reason, verdict

FAMILIES = (
    function,
    choice,
    perturbation,
    heads,
    heads_layer,
    symmetry,
    convolution,
    places,
    streaming,
    synthesizer,
    cost,
    feed_forward,
    depth,
    encoder_decoder,
    versus,
    two_uses,
    vision,
    vision_trained,
    knowledge,
    worked,
)
SEEDS = 2**31  # seeds are below
CLAIMS: dict[str, Claim] = {claim.name: claim for family in FAMILIES for claim in family.CLAIMS}


def find(name: str) -> Claim:
    """The claim of that name; a ValueError names the nearest."""
    if name in CLAIMS:
        return CLAIMS[name]
    close = difflib.get_close_matches(name, CLAIMS, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(CLAIMS)}."
    raise ValueError(f"there is no claim {name!r}; {meant}")


def run(
    name: str,
    seed: int = 0,
    *,
    attention: Callable[..., Any] = library_attention,
    part: Any = None,
    long: bool = False,
    note: Callable[[str], None] = lambda _: None,
    **knobs: Real,
) -> ClaimResult:
    """Run one claim's experiment and say what it found.

    attention: the attention under test. part: what stands in for another component, in claims that test one.
    knobs: conditions of the experiment, by name; those of the claim if not given. long: its longer training.

    >>> run("average").verdict
    'holds'
    >>> round(run("average").numbers["weight with 1/√d"], 3)
    0.376
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"a seed is a whole number from 0 to {SEEDS - 1}; got {seed}")
    claim = find(name)
    setting = settings(claim, knobs, long=long)
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):  # what an experiment draws on the side is seeded, and nobody else's
        torch.manual_seed(seed)
        measured = claim.experiment(Lab(seed, attention, part, note), **setting)
    found = verdict(measured.predicates)
    said = claim.condition if found == claim.expected else reason(measured.predicates)
    return ClaimResult(
        name=claim.name,
        statement=claim.statement,
        verdict=found,
        condition=said,
        numbers={key: _plain(number) for key, number in measured.numbers.items()},
        seed=seed,
        predicates=measured.predicates,
        panels=measured.panels,
        figure=claim.figure,
        expected=claim.expected,
        seconds=time.perf_counter() - began,
        knobs=setting,
    )


def settings(claim: Claim, knobs: dict[str, Any], *, long: bool = False) -> dict[str, Any]:
    """The claim's knobs, with those given in place of their defaults."""
    known = {knob.name: knob for knob in claim.knobs}
    for name in knobs:
        if name not in known:
            there = ", ".join(f"{knob.name} ({knob.help}; {knob.default:g})" for knob in claim.knobs) or "none"
            raise ValueError(f"{claim.name} has no knob {name!r}; there are: {there}")
    defaults = {k.name: k.long if long and k.long is not None else k.default for k in claim.knobs}
    return {name: knob.checked(knobs.get(name, defaults[name]), claim.name) for name, knob in known.items()}


def names(families: Iterable[str] = ()) -> list[str]:
    """All claims' names, or those of some families."""
    chosen = set(families)
    return [claim.name for claim in CLAIMS.values() if not chosen or claim.family in chosen]


def _plain(number: Any) -> Any:
    if isinstance(number, dict):
        return {key: float(value) for key, value in number.items()}
    return float(number)
