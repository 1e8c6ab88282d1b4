"""All claims by name, and `run`, which runs one.

To add a claim, see CONTRIBUTING.md: `python -m qkv.claims.catalog` makes its name known to qkv.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from qkv.claims import (
    attention_function,
    blocks,
    convolution,
    cost,
    data_regimes,
    encoder_decoder,
    head_variance,
    knowledge,
    multi_head,
    perturbation,
    positions,
    rnn_comparison,
    selection,
    self_attention,
    similarities,
    stability,
    streaming,
    synthesizer,
    vision,
    worked_example,
)
from qkv.claims.catalog import find_by_name
from qkv.claims.claim import Claim, ClaimResult, ExperimentResult, Real, Verdict, decide, explain
from qkv.claims.experiment import Attention, Lab, library_attention

MODULES = (
    attention_function,
    selection,
    perturbation,
    head_variance,
    multi_head,
    self_attention,
    convolution,
    positions,
    streaming,
    synthesizer,
    cost,
    blocks,
    stability,
    rnn_comparison,
    similarities,
    encoder_decoder,
    vision,
    data_regimes,
    knowledge,
    worked_example,
)
FAMILIES = ("attention as a function", "heads", "self-attention", "the transformer", "vision", "knowledge", "worked")
MAX_SEED = 2**31 - 1

_claims = sorted((claim for module in MODULES for claim in module.CLAIMS), key=lambda c: FAMILIES.index(c.family))
CLAIMS: dict[str, Claim] = {claim.name: claim for claim in _claims}


def find_claim(name: str) -> Claim:
    """Return the claim of that name; a ValueError names the nearest."""
    return find_by_name(name, CLAIMS)


def claim_names(families: Iterable[str] = ()) -> list[str]:
    """The names of all claims, or of those of some families."""
    chosen = set(families)
    return [claim.name for claim in CLAIMS.values() if not chosen or claim.family in chosen]


def run(
    name: str,
    seed: int = 0,
    *,
    attention: Attention = library_attention,
    component: Any = None,
    data: str | None = None,
    long: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    **knobs: Real,
) -> ClaimResult:
    """Run the experiment of one claim and return its verdict and numbers.

    Args:
        name: one of `qkv.claims.CLAIMS`.
        attention: the attention under test, with the signature of `qkv.attention`.
        component: in claims about another component, what replaces it.
        data: in claims that take data (`Claim.takes_data`), a name or path instead of the bundled data.
        long: train longer, where the claim trains.
        progress: called with a message where a run takes long.
        knobs: conditions of the experiment, by name; the claim's defaults if omitted.

    >>> run("average").verdict
    'holds'
    >>> round(run("average").numbers["weight with 1/√d"], 3)
    0.376
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be an integer from 0 to {MAX_SEED}, got {seed}")
    claim = find_claim(name)
    values = knob_values(claim, knobs, long=long)
    check_takes_data(claim, data)
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):  # seed the global generator for the experiment only
        torch.manual_seed(seed)
        measured = claim.experiment(Lab(seed, attention, component, progress, data), **values)
    verdict = decide(measured.predicates)
    return ClaimResult(
        name=claim.name,
        statement=claim.statement,
        verdict=verdict,
        condition=_condition(claim, measured, verdict),
        numbers={key: _as_float(number) for key, number in measured.numbers.items()},
        seed=seed,
        predicates=measured.predicates,
        panels=measured.panels,
        figure=_caption(claim, measured, verdict, values, attention is library_attention and component is None),
        expected=claim.expected,
        seconds=time.perf_counter() - started,
        knobs=values,
    )


def check_takes_data(claim: Claim, data: str | None) -> None:
    """Raise a ValueError that names the claims which take data, if this one is given some and does not."""
    if data is not None and not claim.takes_data:
        others = ", ".join(other.name for other in CLAIMS.values() if other.takes_data)
        raise ValueError(f"{claim.name} makes its own data; data={data!r} is for {others}")


def _condition(claim: Claim, measured: ExperimentResult, verdict: Verdict) -> str:
    """The condition of this run, from its measurements; for an unexpected verdict, what was measured."""
    if verdict != claim.expected:
        return explain(measured.predicates)
    return measured.condition or claim.condition


def _caption(
    claim: Claim, measured: ExperimentResult, verdict: Verdict, values: dict[str, Any], is_library: bool
) -> str:
    """The caption of the figure of this run; for an unexpected verdict also the conditions and what decided it.

    is_library: whether qkv's own implementation was tested, and not another one.
    """
    if verdict == claim.expected:
        return measured.caption or claim.figure
    conditions = [] if is_library else ["another implementation than qkv's"]
    conditions += [f"{name} = {value:g}" for name, value in values.items()]
    where = f" with {', '.join(conditions)}" if conditions else ""
    decided = f"{verdict.capitalize()}{where}: {explain(measured.predicates)}."
    return f"{measured.caption} {decided}".strip()


def knob_values(claim: Claim, knobs: dict[str, Any], *, long: bool = False) -> dict[str, Any]:
    """The values of all knobs of the claim: the given ones, checked, and the defaults of the others."""
    known = {knob.name: knob for knob in claim.knobs}
    for name in knobs:
        if name not in known:
            names = ", ".join(f"{knob.name} ({knob.help}; {knob.default:g})" for knob in claim.knobs) or "none"
            raise ValueError(f"{claim.name} has no knob {name!r}; its knobs: {names}")
    defaults = {k.name: k.long if long and k.long is not None else k.default for k in claim.knobs}
    return {name: knob.validate(knobs.get(name, defaults[name]), claim.name) for name, knob in known.items()}


def _as_float(number: Any) -> Any:
    if isinstance(number, dict) and number["low"] == number["high"]:
        return float(number["value"])  # one run has no range
    if isinstance(number, dict):
        return {key: float(value) for key, value in number.items()}
    return float(number)
