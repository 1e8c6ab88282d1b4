"""The effect of a change on what a model answers.

Axes: b batch · t tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from qkv.interp.intervention.edits import Address, Beta, Head, Pattern
from qkv.interp.intervention.intervene import Patch, change
from qkv.interp.outcome import Measure, answer, divergence, question
from qkv.interp.result import Result
from qkv.interp.run import Inputs, scores_of


@dataclass(frozen=True, eq=False)
class Effect(Result):
    """What a change does to a model's answers.

    kind: "tokens" where there is an answer at each place, "class" where there is one for the input, "measure" where
        the caller measured.
    loss_before, loss_after: the mean cross-entropy over the places that count; None where no right answer is known.
    kl: KL(before ‖ after) in nats, the mean; kl_at: at each place (of the first row).
    top_before, top_after: the likeliest token at each place (of the first row), or the class.
    probability_before, probability_after: of the answers that were likeliest before.
    flipped: the share of answers whose likeliest changed.
    """

    kind: str
    loss_before: float | None
    loss_after: float | None
    kl: float | None = None
    kl_at: tuple[float, ...] = ()
    top_before: tuple[int, ...] = ()
    top_after: tuple[int, ...] = ()
    probability_before: tuple[float, ...] = ()
    probability_after: tuple[float, ...] = ()
    flipped: float | None = None

    @property
    def increase(self) -> float | None:
        """How much the loss grew."""
        if self.loss_before is None or self.loss_after is None:
            return None
        return self.loss_after - self.loss_before


def effect(
    model: nn.Module,
    inputs: Inputs,
    *,
    beta: Beta | None = None,
    silence: Iterable[tuple[Address, Head]] = (),
    cut: Iterable[tuple[Address, Head, int, int]] = (),
    pattern: Mapping[tuple[Address, Head], Pattern] | None = None,
    patch: Mapping[str, Patch] | None = None,
    targets: Tensor | None = None,
    positions: Sequence[int] | None = None,
    measure: Measure | None = None,
) -> Effect:
    """The effect of a change, said as to `qkv.interp.change`, on logits, loss and likeliest answers.

    targets: the right answers, (b, t) tokens (−100 where none is known) or (b,) classes; of a text that is read
        causally, the next token if not given.
    positions: the places whose loss counts; all if not given.
    measure: what to measure instead, of what the model returns, where it returns no logits; higher is worse.

    >>> import torch, qkv
    >>> _ = torch.manual_seed(0)
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> quiet = effect(model, torch.randint(0, 65, (1, 6)), silence=[(0, 2)])
    >>> quiet.kind, len(quiet.kl_at), quiet.kl > 0
    ('tokens', 6, True)
    """
    asked, before = question(model, inputs, targets, None if positions is None else tuple(positions))
    with change(model, beta=beta, silence=silence, cut=cut, pattern=pattern, patch=patch):
        after = answer(model, inputs)
    if measure is not None:
        return Effect("measure", float(measure(before)), float(measure(after)))
    old, new = scores_of(model, before), scores_of(model, after)
    losses = [asked.losses(logits) for logits in (old, new)]
    apart = divergence(old, new)
    top_before, top_after = (logits[:1].argmax(-1).flatten() for logits in (old, new))
    chances = [logits[:1].double().softmax(-1).flatten(0, -2) for logits in (old, new)]
    picked = [chance.gather(-1, top_before[:, None]).squeeze(-1) for chance in chances]
    return Effect(
        kind="tokens" if old.ndim == 3 else "class",
        loss_before=None if losses[0] is None else asked.at(losses[0]),
        loss_after=None if losses[1] is None else asked.at(losses[1]),
        kl=asked.at(apart),
        kl_at=tuple(apart[:1].flatten().tolist()),
        top_before=tuple(top_before.tolist()),
        top_after=tuple(top_after.tolist()),
        probability_before=tuple(picked[0].tolist()),
        probability_after=tuple(picked[1].tolist()),
        flipped=float((old.argmax(-1) != new.argmax(-1)).double().mean()),
    )
