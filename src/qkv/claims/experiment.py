"""Tools that the experiments share: the attention under test, a reference in plain Python, statistics, training."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.nn import multi_head_attention as attention_layer
from qkv.nn.attention import attention as library_attention

Attention = Callable[..., Any]

_swap = threading.RLock()


class Lab:
    """What an experiment works with: the attention under test, random numbers, and a function for progress messages.

    component: in claims about another component than attention, what replaces it.
    data: in claims that take data, what replaces the bundled data.
    """

    def __init__(
        self,
        seed: int = 0,
        attention: Attention = library_attention,
        component: Any = None,
        progress: Callable[[str], None] = lambda _: None,
        data: str | None = None,
    ) -> None:
        self.seed, self.attention, self.component, self.progress = seed, attention, component, progress
        self.data = data
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, *shape: int) -> Tensor:
        """Draw standard normal numbers in float64."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def orthonormal(self, count: int, dim: int) -> Tensor:
        """Draw `count` orthonormal vectors as rows; count ≤ dim."""
        if count > dim:
            raise ValueError(f"{count} orthonormal vectors need a dimension of at least {count}, got {dim}")
        return torch.linalg.qr(self.draw(dim, dim))[0][:count]

    def weights(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        """The weights of the attention under test."""
        v = options.pop("v", None)
        if v is None:
            v = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-2], -1, -1)
        return self.attention(q, k, v, return_weights=True, **options)[1]

    @contextmanager
    def inside_layers(self, attention: Attention | None = None) -> Iterator[None]:
        """Let the library's layers and models use the attention under test (or a given one)."""
        with _swap:
            before = attention_layer.attention
            attention_layer.attention = self.attention if attention is None else attention
            try:
                yield
            finally:
                attention_layer.attention = before

    def build(self, make: Callable[[], Any], offset: int = 0, dtype: torch.dtype = torch.float64) -> Any:
        """Build a module with parameters from the lab's seed; torch's own generator stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + offset)
            return make().to(dtype)


def confidence_interval(samples: Tensor) -> dict[str, float]:
    """The mean over draws, and two standard errors around it."""
    samples = samples.double().flatten()
    mean = float(samples.mean())
    half = 2 * float(samples.std()) / len(samples) ** 0.5 if len(samples) > 1 else 0.0
    return {"value": mean, "low": mean - half, "high": mean + half}


def mean_and_range(samples: list[float]) -> dict[str, float]:
    """The mean of a few runs, with the lowest and the highest."""
    return {"value": sum(samples) / len(samples), "low": min(samples), "high": max(samples)}


# 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def t_interval(samples: list[float]) -> dict[str, float]:
    """The mean of a few runs and its 95 % interval (Student's t); infinite for a single run."""
    count, mean = len(samples), sum(samples) / len(samples)
    if count == 1:
        return {"value": mean, "low": -math.inf, "high": math.inf}
    quantile = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 2.2
    deviation = math.sqrt(sum((sample - mean) ** 2 for sample in samples) / (count - 1))
    half = quantile * deviation / math.sqrt(count)
    return {"value": mean, "low": mean - half, "high": mean + half}


def max_diff(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite where something is NaN."""
    difference = float((a - b).abs().max())
    return difference if difference == difference else float("inf")


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention as a triple loop in plain Python with exact sums, independent of the library.

    Args:
        q, k, v: of shapes (t, d), (s, d) and (s, e).
        mask: (t, s), True where a query may attend.
    Returns:
        Output (t, e) and weights (t, s).

    >>> out, weights = reference_attention(torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]]))
    >>> out.item(), weights.tolist()
    (2.0, [[0.5, 0.5]])
    """
    queries, keys, values = q.tolist(), k.tolist(), v.tolist()
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out, weights = [], []
    for i, query in enumerate(queries):
        scores = []
        for j, key in enumerate(keys):
            score = factor * math.fsum(a * b for a, b in zip(query, key, strict=True))
            scores.append(score if mask is None or bool(mask[i, j]) else -math.inf)
        row = reference_softmax(scores)
        weights.append(row)
        out.append([math.fsum(w * value[e] for w, value in zip(row, values, strict=True)) for e in range(v.shape[-1])])
    shape = (len(queries), v.shape[-1])
    return torch.tensor(out, dtype=torch.float64).reshape(shape), torch.tensor(weights, dtype=torch.float64)


def reference_softmax(scores: list[float]) -> list[float]:
    """exp(score) / Σ exp(score), shifted by the highest; zeros where all are −∞."""
    highest = max(scores)
    if highest == -math.inf:
        return [0.0] * len(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def influence_map(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """‖∂ out_t / ∂ x_s‖ for every output t and input s: x is (s, c), run(x) is (t, e).

    Each output is projected on one random direction: a path that exists is missed with probability 0.
    """
    x = x.detach().requires_grad_()
    out = run(x)
    direction = torch.randn(out.shape[-1], generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    rows = []
    for t in range(len(out)):
        (gradient,) = torch.autograd.grad(out[t] @ direction, x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros(len(x), dtype=x.dtype) if gradient is None else gradient.norm(dim=-1))
    return torch.stack(rows)


def influence_shades(influence: Tensor) -> list[list[float]]:
    """Influence relative to the largest of its row, with a square root that shows small values in a figure."""
    return (influence / influence.max(-1, keepdim=True).values.clamp(min=1e-300)).sqrt().tolist()


def init_xavier(model: nn.Module) -> nn.Module:
    """Initialize all weight matrices so that variances are kept, as other libraries do."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def train_model(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    *,
    lr: float = 3e-3,
    warmup: int = 20,
    weight_decay: float = 0.0,
    stop_below: float = 0.0,
) -> list[float]:
    """Take `steps` AdamW steps on `loss(step)`, with warm-up and a cosine schedule to 0; returns the losses.

    stop_below: stop once the mean loss of the last 50 steps is below it.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)

    def factor(step: int) -> float:
        progress = torch.tensor(step / max(steps, 1))
        return min(1.0, (step + 1) / warmup) * float(0.5 * (1 + torch.cos(torch.pi * progress)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    model.train()
    for step in range(steps):
        value = loss(step)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
        if step >= 50 and sum(losses[-50:]) / 50 < stop_below:
            break
    model.eval()
    return losses
