"""What a claim is, what an experiment is given, and what it hands back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from qkv._figures import Panel
from qkv.claims.predicates import Predicate, Real, Verdict
from qkv.nn import multi_head_attention as attention_layer
from qkv.nn.attention import attention as library_attention

Number = Real | dict[str, float]  # a dict has value, low and high, where chance plays
Cost = Literal["instant", "seconds", "minutes"]
Attention = Callable[..., Any]

_swap = threading.RLock()


@dataclass(frozen=True)
class Knob:
    """A condition of an experiment that a person may change; it is a whole number where its default is one.

    between: the lowest and the highest value that the experiment can be tried with; whole numbers go up by `step`.
    long: its value for a longer run.
    """

    name: str
    default: Real
    help: str
    between: tuple[Real, Real]
    long: Real | None = None
    step: int = 1

    @property
    def whole(self) -> bool:
        return isinstance(self.default, int)

    def checked(self, value: Any, claim: str) -> Real:
        """The value as the experiment takes it; a ValueError says what would fit.

        >>> Knob("m", 10, "keys", (4, 256)).checked(2.5, "copy")
        Traceback (most recent call last):
        ValueError: copy: m (keys) is a whole number from 4 to 256, such as 10; got 2.5
        """
        least, most = self.between
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and least <= value <= most and not (self.whole and (value - least) % self.step):
            return int(value) if self.whole else float(value)
        kind = "a whole number" if self.whole else "a number"
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise ValueError(
            f"{claim}: {self.name} ({self.help}) is {kind} from {least:,g} to {most:,g}{steps}, such as "
            f"{self.default:g}; got {shown}"
        )


@dataclass(frozen=True)
class Measured:
    """What an experiment found: numbers, predicates with their tolerances, and what to draw."""

    numbers: Mapping[str, Number]
    predicates: tuple[Predicate, ...]
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A statement of the theory, the experiment that tries it, and what would overturn it.

    condition: under which the statement holds; for "fails" and "undecided", what is the case instead.
    expected: the verdict that a correct attention gives.
    mutants: names of the wrong implementations (see `qkv.claims.mutants`) that must change the outcome.
    """

    name: str
    family: str
    statement: str
    expected: Verdict
    condition: str
    experiment: Callable[..., Measured]
    knobs: tuple[Knob, ...] = ()
    mutants: tuple[str, ...] = ()
    figure: str = ""
    cost: Cost = "instant"
    overturn: Mapping[str, Any] = field(default_factory=dict)  # knobs under which a mutant already shows


@dataclass(frozen=True)
class ClaimResult:
    """What a run of a claim answers; the first six fields are those of `--json`."""

    name: str
    statement: str
    verdict: Verdict
    condition: str
    numbers: dict[str, Number]
    seed: int
    predicates: tuple[Predicate, ...] = ()
    panels: tuple[Panel, ...] = ()
    figure: str = ""
    expected: Verdict = "holds"
    seconds: float = 0.0
    knobs: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The fields that other programs read."""
        return {
            "name": self.name,
            "statement": self.statement,
            "verdict": self.verdict,
            "condition": self.condition,
            "numbers": self.numbers,
            "seed": self.seed,
        }

    def svg(self) -> str:
        """The picture, as SVG."""
        from qkv._figures import draw

        return draw(self.panels, name=self.name)


class Lab:
    """What an experiment works with: the attention under test, random numbers, and a place for notes.

    part: for claims in which attention plays no part, what stands in for the component under test.
    """

    def __init__(
        self,
        seed: int = 0,
        attention: Attention = library_attention,
        part: Any = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.seed, self.attention, self.part, self.note = seed, attention, part, note
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, *shape: int) -> Tensor:
        """Standard normal numbers in float64."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def orthonormal(self, count: int, width: int) -> Tensor:
        """`count` vectors of length 1 at right angles, as rows; count ≤ width."""
        if count > width:
            raise ValueError(f"{count} vectors at right angles need a width of {count} or more; got {width}")
        return torch.linalg.qr(self.draw(width, width))[0][:count]

    def weights(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        """The weights that the attention under test gives each key."""
        v = options.pop("v", None)
        if v is None:
            v = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-2], -1, -1)
        return self.attention(q, k, v, return_weights=True, **options)[1]

    @contextmanager
    def inside_layers(self, attention: Attention | None = None) -> Iterator[None]:
        """Let the library's layers and models run on the attention under test (or on a given one)."""
        chosen = self.attention if attention is None else attention
        with _swap:
            before = attention_layer.attention
            attention_layer.attention = chosen
            try:
                yield
            finally:
                attention_layer.attention = before

    def build(self, make: Callable[[], Any], offset: int = 0, dtype: torch.dtype = torch.float64) -> Any:
        """A module with parameters drawn from the lab's seed, leaving torch's own generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + offset)
            return make().to(dtype)


def interval(samples: Tensor) -> dict[str, float]:
    """A mean over draws and the range of two standard errors around it."""
    samples = samples.double().flatten()
    mean = float(samples.mean())
    half = 2 * float(samples.std()) / len(samples) ** 0.5 if len(samples) > 1 else 0.0
    return {"value": mean, "low": mean - half, "high": mean + half}


def spread(samples: list[float]) -> dict[str, float]:
    """The mean of a few runs, with the lowest and the highest."""
    return {"value": sum(samples) / len(samples), "low": min(samples), "high": max(samples)}


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference; infinite where something is not a number."""
    difference = float((ours - theirs).abs().max())
    return difference if difference == difference else float("inf")
