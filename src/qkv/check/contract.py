"""Contracts: the properties that are required of an implementation. All others are only described."""

import difflib
from dataclasses import dataclass, fields, replace
from typing import Literal

Kind = Literal["causal", "bidirectional", "window", "prefix", "chunked"]


@dataclass(frozen=True)
class Contract:
    """The properties that are required of an implementation; None means not required.

    Args:
        kind: which tokens a token may attend to.
        window: with kind="window", how many tokens a query sees, itself included.
        scale: the factor on q·k: "head" for d^-½ with d the head dim, or a number.
        softmax: the axis over which weights sum to 1.
        grouped: how query heads share key heads (GQA): "repeated" (0 0 1 1) or "tiled" (0 1 0 1).
        mask: what True means in a mask argument, or "added" for a mask that is added to the scores.
        alignment: where a causal mask sits when there are more keys than queries.
        padding: padding must not change the outputs, wherever it is.
        cache: the implementation has a KV cache, and pieces give the same outputs as the whole.
        position: "relative": only distances between tokens matter. "rotary": relative, by rotating all of the head dim
            of queries and keys (RoPE). "alibi": relative, by a bias with slopes 2^(−8/h), 2^(−16/h), …. "none": the
            order of the tokens does not matter.
        loss: what a position is scored on: the "next" token of its input, or the "same" position of shifted labels.
    """

    kind: Kind | None = None
    window: int | None = None
    scale: Literal["head"] | float | None = None
    softmax: Literal["keys"] | None = None
    grouped: Literal["repeated", "tiled"] | None = None
    mask: Literal["true-attends", "true-masks", "added"] | None = None
    alignment: Literal["bottom-right", "top-left"] | None = None
    padding: bool | None = None
    cache: bool | None = None
    position: Literal["relative", "rotary", "alibi", "none"] | None = None
    loss: Literal["next", "same"] | None = None

    def __post_init__(self) -> None:
        if self.kind == "window" and self.window is None:
            raise ValueError("a contract with kind='window' needs a width: window=128")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 (a token and those before it), got {self.window}")

    @property
    def relative(self) -> bool:
        """Whether only distances between tokens may matter."""
        return self.position in ("relative", "rotary", "alibi")

    @property
    def textbook(self) -> bool:
        """Whether the formula is required: a scale and a softmax over keys."""
        return self.scale is not None and self.softmax is not None

    def scale_for(self, head_dim: int) -> float | None:
        """The required factor on q·k as a number; None if no scale is required."""
        if self.scale is None:
            return None
        return head_dim**-0.5 if self.scale == "head" else float(self.scale)

    def __str__(self) -> str:
        promises = [f"{f.name} {getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None]
        return ", ".join(promises) if promises else "default properties only"


NO_PROMISES = Contract()
TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
ENCODER = Contract(kind="bidirectional", scale="head", softmax="keys")

CONTRACTS = {"none": NO_PROMISES, "textbook": TEXTBOOK, "encoder": ENCODER}


def make_contract(contract: Contract | str | None = None, **promises: object) -> Contract:
    """A contract from a contract, its name or None, with more required properties; causal=True means kind="causal".

    >>> str(make_contract("textbook", padding=True))
    'kind causal, scale head, softmax keys, padding True'
    """
    if contract is None:
        contract = NO_PROMISES
    if isinstance(contract, str):
        if contract not in CONTRACTS:
            raise ValueError(f"contract must be one of {', '.join(CONTRACTS)}; got {contract!r}")
        contract = CONTRACTS[contract]
    if promises.pop("causal", False):
        promises["kind"] = "causal"
    names = [field.name for field in fields(Contract)]
    for name in promises:
        if name not in names:
            near = difflib.get_close_matches(name, ["causal", *names], n=1)
            offered = f"did you mean {near[0]}?" if near else f"properties are causal, {', '.join(names)}"
            raise ValueError(f"a contract has no property {name!r}; {offered}")
    return replace(contract, **{name: value for name, value in promises.items() if value is not None})
