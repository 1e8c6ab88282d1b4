"""Claims about training stability: learning-rate warm-up and residual dropout."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from qkv._figures import Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near
from qkv.claims.experiment import Lab, init_xavier, max_diff, mean_and_range
from qkv.models import GPT, GPTConfig
from qkv.nn.block import Block, BlockConfig, NormOrder

FAMILY = "the transformer"


def residual_dropout(lab: Lab, dim: int, p: float, draws: int) -> ExperimentResult:
    block_class = Block if lab.component is None else lab.component
    config = BlockConfig(dim=dim, heads=2, mlp_dim=dim, dropout=p, attention_dropout=0.0, mlp_dropout=0.0)
    block = lab.build(lambda: block_class(config))
    nn.init.zeros_(block.feed_forward.to_out.weight)  # so that only attention adds to the residual stream
    nn.init.zeros_(block.feed_forward.to_out.bias)
    x = lab.draw(1, 4, dim)
    with lab.inside_layers(), torch.no_grad():
        added = block.attention(block.attention_norm(x))
        in_evaluation = max_diff(block.eval()(x), x + added)
        block.train()
        found = torch.stack([block(x) - x for _ in range(draws)])
    dropped = found.abs() < 1e-12
    kept = max_diff((found * (1 - p))[~dropped], added.expand_as(found)[~dropped]) if bool((~dropped).any()) else 0.0
    share, slack = float(dropped.double().mean()), 5 * (p * (1 - p) / found.numel()) ** 0.5
    deviation = (p / (1 - p)) ** 0.5
    errors = (found.mean(0) - added).abs() / (added.abs() * deviation / draws**0.5)  # in standard errors
    depths = list(range(1, 13))
    return ExperimentResult(
        {
            "share of elements of the sublayer's output that are dropped": share,
            "kept elements − 1/(1 − p) times the sublayer's output": kept,
            "mean over draws, largest error in standard errors": float(errors.max()),
            "in evaluation, difference from x + f(x)": in_evaluation,
            "share of the input that would survive 12 layers if the stream were dropped": (1 - p) ** 12,
        },
        (
            near("elements of what the sublayer adds are dropped, share", share, p, slack + 2**-16),
            at_most("x itself is never dropped: kept elements are x + f(x)/(1 − p), off by", kept, 1e-4),
            at_most("on average f(x) stays, largest error in standard errors", float(errors.max()), 6),
            equal("in evaluation nothing is dropped", in_evaluation),
        ),
        (
            Histogram(
                "what is added to one element, over draws",
                "out − x",
                "draws",
                {f"p = {p:g}": found[:, 0, 0, 0].tolist()},
            ),
            Lines(
                "share of the input that no layer has dropped",
                "layers",
                "share",
                depths,
                {"residual dropout": [1.0] * len(depths), "dropout on the stream": [(1 - p) ** n for n in depths]},
                roles={"residual dropout": "query", "dropout on the stream": "wrong"},
            ),
        ),
        caption=f"Each element that attention adds is 0 in {100 * share:.1f} % of the draws and f/(1 − p) otherwise; "
        f"the input passes unchanged. On the stream, {100 * (1 - p) ** 12:.0f} % of it would survive 12 layers.",
    )


VOCABULARY, LENGTH, BATCH = 16, 12, 32  # of the task: name the token before each token
SHALLOW = 2  # layers of the stack that learns without warm-up


def warm_up(lab: Lab, layers: int, lr: float, warmup: int, steps: int, seeds: int) -> ExperimentResult:
    warmup = warmup if lab.component is None else lab.component
    shallow = f"post-norm, none, {SHALLOW} layers"
    runs: dict[str, tuple[NormOrder, int, int]] = {
        f"post-norm, warm-up {warmup}": ("post", layers, warmup),
        "post-norm, none": ("post", layers, 0),
        "pre-norm, none": ("pre", layers, 0),
        shallow: ("post", SHALLOW, 0),
    }
    curves: dict[str, list[list[float]]] = {name: [] for name in runs}
    with lab.inside_layers():
        for start in range(seeds):
            for name, (order, depth, warm) in runs.items():
                lab.progress(f"{name}, start {start + 1} of {seeds}")
                curves[name].append(train_previous_token(lab, order, depth, lr, warm, steps, start))
    final = {name: mean_and_range([sum(c[-20:]) / len(c[-20:]) for c in found]) for name, found in curves.items()}
    warmed, cold, pre, few = final.values()
    chance = math.log(VOCABULARY)
    return ExperimentResult(
        {**{f"loss, {name}": value for name, value in final.items()}, "loss of a uniform guess": chance},
        (
            at_most("post-norm learns with warm-up: worst loss", warmed["high"], 0.2 * chance),
            at_least("post-norm does not learn without: best loss", cold["low"], 0.5 * chance),
            at_most("pre-norm learns without: worst loss", pre["high"], 0.2 * chance),
            at_least(
                f"{SHALLOW} layers of post-norm do not learn without either: best loss",
                few["low"],
                0.5 * chance,
                "beyond",
            ),
        ),
        (
            Lines(
                "training loss",
                "step",
                "loss",
                list(range(1, steps + 1)),
                {name: found[0] for name, found in curves.items()},
                roles=dict(zip(runs, ("query", "wrong", "key", "other"), strict=True)),
            ),
        ),
        f"the stack is deep: after {steps:,} steps at a rate of {lr:g}, {layers} layers of post-norm have a loss of "
        f"{cold['value']:.2g} without warm-up and {warmed['value']:.2g} with {warmup} steps of it, pre-norm "
        f"{pre['value']:.2g} without; {SHALLOW} layers of post-norm reach {few['value']:.2g} without (a guess has "
        f"{chance:.2g})",
        f"Loss of {layers} layers after {steps:,} steps: {warmed['value']:.2g} post-norm with {warmup} steps of "
        f"warm-up, {cold['value']:.2g} without, {pre['value']:.2g} pre-norm without.",
    )


def train_previous_token(
    lab: Lab, order: NormOrder, layers: int, lr: float, warmup: int, steps: int, start: int
) -> list[float]:
    """Train a GPT to name the token before each token, with the Adam of the 2017 paper; returns the losses."""
    config = GPTConfig(
        vocab_size=VOCABULARY, max_length=LENGTH, dim=32, layers=layers, heads=4, mlp_dim=64, norm_order=order
    )
    model = lab.build(lambda: init_xavier(GPT(config)), start, torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-9)
    generator, losses = torch.Generator().manual_seed(1000 * lab.seed + start), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (min(1.0, (step + 1) / warmup) if warmup else 1.0)
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
        loss = F.cross_entropy(model(tokens)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


CLAIMS = (
    Claim(
        "residual-dropout",
        FAMILY,
        "Residual dropout drops elements of what a sublayer adds, x + dropout(f(x)), never x itself, and in training "
        "only; on average f(x) stays.",
        "holds",
        "",
        residual_dropout,
        (
            Knob("dim", 8, "model dim", (2, 64), step=2),
            Knob("p", 0.1, "dropout", (0.01, 0.9)),
            Knob("draws", 2000, "draws", (100, 20_000)),
        ),
        ("dropout-on-stream", "dropout-in-evaluation"),
        "What a sublayer adds is dropped; the input passes unchanged.",
        cost="seconds",
    ),
    Claim(
        "warm-up",
        FAMILY,
        "A deep post-norm transformer learns after a warm-up of the learning rate, and hardly leaves the loss of a "
        "guess at the same rate without; pre-norm learns at that rate without.",
        "holds-if",
        "the stack is deep",
        warm_up,
        (
            Knob("layers", 10, "layers", (1, 32)),
            Knob("lr", 5e-3, "learning rate of Adam", (1e-5, 0.1)),
            Knob("warmup", 150, "warm-up steps", (0, 1000)),
            Knob("steps", 350, "training steps", (1, 10_000), long=1000),
            Knob("seeds", 2, "random starts", (1, 20), long=5),
        ),
        ("no-warm-up",),
        "Training loss with and without warm-up, post-norm and pre-norm.",
        cost="minutes",
        overturn={"seeds": 1},
    ),
)
