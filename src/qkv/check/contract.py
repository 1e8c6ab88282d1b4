"""What an implementation promises. What is promised is judged, what is not is described."""

from dataclasses import dataclass, fields, replace
from typing import Literal

Kind = Literal["causal", "bidirectional", "window", "prefix", "chunked"]


@dataclass(frozen=True)
class Contract:
    """The promises; None is none.

    kind: who sees whom. window: how many tokens a query of a causal window sees, itself included.
    scale: what q·k is multiplied by: "head" is d^-½ of a head's width; or a number.
    softmax: the axis that weights sum to one over.
    grouped: how heads of queries share heads of keys: "repeated" (0 0 1 1) or "tiled" (0 1 0 1).
    mask: what True means in a mask that is handed in, or that it is added.
    alignment: where a causal mask stands if there are more keys than queries.
    padding: whether padding, wherever it stands, must not matter.
    loss: what a place is asked for: the "next" token of those handed in, or the "same" place of shifted labels.
    cache: whether it can be called piece by piece with the same result.
    position: "relative" if only distances between tokens may matter, not where they stand; "rotary": relative, by
        turning all widths of queries and keys; "alibi": relative, by a bias whose slopes are 2^(−8/h), 2^(−16/h), …;
        "none": the order of the tokens must not matter at all.
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
            raise ValueError("a contract of kind 'window' says how wide it is: window=…")

    @property
    def relative(self) -> bool:
        """Whether only distances between tokens may matter."""
        return self.position in ("relative", "rotary", "alibi")

    @property
    def textbook(self) -> bool:
        """Whether the formula is promised: a scale and a softmax over keys."""
        return self.scale is not None and self.softmax is not None

    def __str__(self) -> str:
        said = [f"{f.name} {getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None]
        return ", ".join(said) if said else "nothing promised"


NOTHING = Contract()

# The plain textbook: causal, 1/√d, softmax over keys.
COURSE = Contract(kind="causal", scale="head", softmax="keys")

CONTRACTS = {
    "none": NOTHING,
    "course": COURSE,
    "encoder": Contract(kind="bidirectional", scale="head", softmax="keys"),
}


def named_contract(name: str, **promises: object) -> Contract:
    """A contract by its name, with further promises."""
    if name not in CONTRACTS:
        raise ValueError(f"contracts are {', '.join(CONTRACTS)}; got {name!r}")
    return replace(CONTRACTS[name], **{key: value for key, value in promises.items() if value is not None})
