"""Claims about positions: RoPE, ALiBi, T5, Shaw, sinusoidal and learned; shifts and length generalization."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, FigurePanel, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, Number, Predicate, at_least, at_most, equal
from qkv.claims.experiment import Lab, max_diff, mean_and_range, reference_attention, train_model
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig
from qkv.nn import Shaw, T5Bias
from qkv.nn.positions import Alibi, PositionScheme, sinusoidal
from qkv.nn.rope import Rope

FAMILY = "self-attention"
RELATIVE = ("rope", "alibi", "t5", "shaw")
ABSOLUTE = ("learned", "sinusoidal")
VOCAB = 16


def positions(lab: Lab, tokens: int, dim: int, shift: int, steps: int, seeds: int) -> ExperimentResult:
    changes = {
        name: score_change_by_shift(lab, scheme, tokens, dim, shift) for name, scheme in position_schemes().items()
    }
    waves, far = (sinusoidal(torch.arange(tokens) + s, dim, dtype=torch.float64) for s in (0, shift))
    changes["sinusoid, position–position term"] = max_diff(waves @ waves.mT, far @ far.mT)
    float32_change = rope_in_float32(lab, tokens, dim, shift)
    q, k = lab.draw(tokens, dim), lab.draw(tokens, dim)
    rotated = Rope()(q, offset=7), Rope()(k, offset=7)
    reference = reference_attention(*rotated, k)[0]
    same = {name: constant_text_difference(lab, name) for name in (*RELATIVE, *ABSOLUTE)}
    absolute = absolute_changes_by_shift(lab, tokens, dim, shift)
    w_q, w_k = (lab.draw(dim, dim) / dim**0.5 for _ in range(2))
    projected = max_diff(*(rows @ w_q @ w_k.mT @ rows.mT for rows in (waves, far)))
    numbers: dict[str, Number] = {f"{name}: change by a shift of {shift}": value for name, value in changes.items()}
    numbers["the same term after W_Q and W_K: change by that shift"] = projected
    numbers |= {f"{name}, added to the tokens: change by that shift": value for name, value in absolute.items()}
    numbers |= {
        "rope in float32: change of the scores by that shift": float32_change["ours"],
        "rope with float32 angles: change of the scores by that shift": float32_change["angles"],
    }
    numbers |= {f"{name}: difference between the positions of a constant text": value for name, value in same.items()}
    predicates: list[Predicate] = [
        at_most("relative scores do not change by a shift, float64", max(changes.values()), 1e-11),
        at_most("RoPE's scores do not change by a shift in float32 either", float32_change["ours"], 1e-11, "beyond"),
        at_least("absolute positions added to the tokens do change them", min(absolute.values()), 1e-3, "control"),
        at_least("the sinusoids' own term after projections changes by a shift", projected, 1e-3, "control"),
        equal("a constant text looks the same at every position to relative schemes", max(same[n] for n in RELATIVE)),
        at_least("absolute schemes tell the positions of a constant text apart", min(same[n] for n in ABSOLUTE), 1e-3),
        equal(
            "attention on rotated queries equals the triple loop",
            max_diff(lab.attention(*rotated, k), reference),
            "control",
        ),
    ]
    panels: list[FigurePanel] = [_shift_panel(lab, tokens, dim)]
    condition = (
        f"in float64: there a shift of {shift:,} changes nothing by more than {max(changes.values()):.1g}, in float32 "
        f"RoPE's scores by {float32_change['ours']:.1g}, and by {float32_change['angles']:.1g} if its angles are "
        "float32 too"
    )
    if steps:
        with lab.inside_layers():
            found = {task: train_schemes(lab, task, steps, seeds) for task in TASKS}
        for task, by_scheme in found.items():
            numbers |= {f"{task}, {name}: accuracy at the training length": v.same for name, v in by_scheme.items()}
            numbers |= {f"{task}, {name}: accuracy when longer": v.longer for name, v in by_scheme.items()}
            panels.append(
                Bars(
                    f"{task}, longer than in training",
                    "",
                    "accuracy",
                    list(by_scheme),
                    {
                        "training length": [v.same["value"] for v in by_scheme.values()],
                        "longer": [v.longer["value"] for v in by_scheme.values()],
                    },
                    level=(1 / VOCAB, "chance"),
                )
            )
        more, text = judge_fixed_lag(found["fixed lag"])
        predicates += more
        condition += text
    return ExperimentResult(numbers, tuple(predicates), tuple(panels), condition)


LEARNED = 0.95  # the accuracy at the training length from which a longer test says something about a scheme


def judge_fixed_lag(found: "dict[str, LengthAccuracy]") -> tuple[list[Predicate], str]:
    """The predicates of the fixed lag, over the schemes that learned it, and a sentence for the condition."""
    known = {name: v.longer["value"] for name, v in found.items() if v.same["value"] >= LEARNED}
    relative = [known[name] for name in RELATIVE if name in known]
    table = found["learned"]
    predicates = [
        at_least("fixed lag: relative schemes that learned it at the training length", len(relative), 2, "control"),
        at_least("fixed lag: the table learned it at the training length", table.same["value"], LEARNED, "control"),
        at_least("fixed lag: the best relative scheme generalizes", max(relative, default=0.0), 0.8),
        at_most("fixed lag: the learned table does not generalize", table.longer["value"], 0.7),
        at_most("fixed lag: not every relative scheme generalizes, worst", min(relative, default=1.0), 0.8),
    ]
    short, long = TASKS["fixed lag"]
    scores = ", ".join(f"{name} {score:.2f}" for name, score in known.items())
    text = f"; of the schemes that learned a fixed lag at length {short}, the accuracy at {long} is: {scores}"
    unknown = ", ".join(f"{name} ({v.same['value']:.2f})" for name, v in found.items() if name not in known)
    return predicates, text + (f"; not learned, so nothing is said: {unknown}" if unknown else "")


def position_schemes() -> dict[str, PositionScheme]:
    return {"rope": Rope(), "t5": T5Bias(), "alibi": Alibi(), "shaw": Shaw(4)}


def score_change_by_shift(lab: Lab, scheme: PositionScheme, tokens: int, dim: int, shift: int) -> float:
    """The change of one head's weights when every position grows by `shift`."""
    q, k = lab.draw(1, 1, tokens, dim), lab.draw(1, 1, tokens, dim)
    built = lab.build(lambda: SchemeModule(scheme.build(1, dim))).scheme
    weights = []
    for start in (0, shift):
        position_ids = torch.arange(tokens) + start
        table = built.rotation(position_ids, dim, torch.float64)
        bias = built.bias(q, position_ids, position_ids, scale=dim**-0.5)
        rotated = built.rotate(q, table), built.rotate(k, table)
        weights.append(lab.weights(*rotated, bias=None if bias is None else bias.to_dense()).detach())
    return max_diff(*weights)


def absolute_changes_by_shift(lab: Lab, tokens: int, dim: int, shift: int) -> dict[str, float]:
    """The change of one head's weights when every position grows by `shift`, for positions added to the tokens."""
    x, w_q, w_k = lab.draw(tokens, dim), *(lab.draw(dim, dim) / dim**0.5 for _ in range(2))
    rows = [lab.draw(tokens, dim) for _ in range(2)]  # of a learned table, before and after the shift
    waves = [sinusoidal(torch.arange(tokens) + s, dim, dtype=torch.float64) for s in (0, shift)]
    return {
        name: max_diff(*(lab.weights((x + table) @ w_q, (x + table) @ w_k) for table in pair))
        for name, pair in (("sinusoid", waves), ("learned table", rows if shift else rows[:1] * 2))
    }


class SchemeModule(nn.Module):
    """A position scheme as a module, whether it has parameters or not."""

    def __init__(self, scheme: PositionScheme) -> None:
        super().__init__()
        self.scheme = scheme


def rope_in_float32(lab: Lab, tokens: int, dim: int, shift: int) -> dict[str, float]:
    """The change of the scores in float32: with the library's angles (float64, rounded once), and float32 angles."""
    q, k = lab.draw(tokens, dim).float(), lab.draw(tokens, dim).float()
    ours = [Rope()(q, offset=s) @ Rope()(k, offset=s).mT for s in (0, shift)]
    frequencies = (10000.0 ** (-torch.arange(0, dim, 2) / dim)).float()
    naive = []
    for start in (0, shift):
        angles = (torch.arange(tokens) + start).float()[:, None] * frequencies
        turn = torch.polar(torch.ones_like(angles), angles)
        pairs = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn for x in (q, k))
        rotated = [torch.view_as_real(x).flatten(-2) for x in pairs]
        naive.append(rotated[0] @ rotated[1].mT)
    return {"ours": max_diff(*ours), "angles": max_diff(*naive)}


def constant_text_difference(lab: Lab, position: str) -> float:
    """How far the encoder's states of one repeated token differ between positions."""
    config = EncoderConfig(vocab_size=3, max_length=16, dim=16, layers=2, heads=2, position=position)  # type: ignore[arg-type]
    model = lab.build(lambda: Encoder(config)).eval()
    with lab.inside_layers(), torch.no_grad():
        states = model(torch.ones(1, 12, dtype=torch.long))[0]
    return max_diff(states, states[:1])


TASKS = {"fixed lag": (32, 128), "full copy": (8, 16)}  # lengths in training and in the test
LAG = 5


def task_batch(task: str, generator: torch.Generator, count: int, length: int) -> tuple[Tensor, Tensor, slice]:
    """Tokens, the target after each, and the positions that count.

    Fixed lag: the token LAG positions back. Full copy: a sequence, a separator, and the sequence again.
    """
    if task == "full copy":
        text = torch.randint(0, VOCAB, (count, length), generator=generator)
        whole = torch.cat((text, torch.full((count, 1), VOCAB), text), 1)
        return whole[:, :-1], whole[:, 1:], slice(length, None)
    tokens = torch.randint(0, VOCAB, (count, length), generator=generator)
    return tokens, F.pad(tokens[:, :-LAG], (LAG, 0)), slice(LAG, None)


@dataclass(frozen=True)
class LengthAccuracy:
    """The accuracy at the length trained on, and on longer sequences."""

    same: dict[str, float]
    longer: dict[str, float]


def train_schemes(lab: Lab, task: str, steps: int, seeds: int) -> dict[str, LengthAccuracy]:
    """The accuracy of each scheme at the training length and on longer sequences."""
    short, long = TASKS[task]
    found = {}
    for name in (*RELATIVE, *ABSOLUTE):
        lab.progress(f"{task}, {name}")
        scores = []
        for start in range(seeds):
            generator = torch.Generator().manual_seed(1000 * lab.seed + start)
            config = GPTConfig(
                vocab_size=VOCAB + 1,
                max_length=3 * long,
                dim=32,
                layers=2,
                heads=2,
                mlp_dim=64,
                position=name,  # type: ignore[arg-type]
            )
            model = lab.build(lambda config=config: GPT(config), start, torch.float32)
            if name == "sinusoidal":
                model.position_embedding.factor = config.dim**0.5  # token vectors times √dim, as published

            def loss(_: int, model=model, generator=generator) -> Tensor:
                tokens, target, scored = task_batch(task, generator, 24, short)
                return F.cross_entropy(model(tokens)[:, scored].flatten(0, 1), target[:, scored].flatten())

            train_model(model, loss, steps, lr=6e-3)
            scores.append([accuracy(model, *task_batch(task, generator, 64, length)) for length in (short, long)])
        same, longer = zip(*scores, strict=True)
        found[name] = LengthAccuracy(mean_and_range(list(same)), mean_and_range(list(longer)))
    return found


def accuracy(model: nn.Module, tokens: Tensor, target: Tensor, scored: slice) -> float:
    with torch.no_grad():
        return float((model(tokens)[:, scored].argmax(-1) == target[:, scored]).double().mean())


def _shift_panel(lab: Lab, tokens: int, dim: int) -> Lines:
    shifts = [10, 100, 1000, 10_000, 100_000]
    found = [rope_in_float32(lab, tokens, dim, s) for s in shifts]
    exact = [max(score_change_by_shift(lab, Rope(), tokens, dim, s), 1e-17) for s in shifts]
    return Lines(
        "what a shift changes with RoPE",
        "shift",
        "largest change",
        shifts,
        {"float64": exact, "float32": [f["ours"] for f in found], "float32 angles": [f["angles"] for f in found]},
        logx=True,
        logy=True,
        roles={"float64": "query", "float32": "key", "float32 angles": "wrong"},
    )


CLAIMS = (
    Claim(
        "positions",
        FAMILY,
        "RoPE, T5, ALiBi and Shaw depend on distances only: a shift changes no weight. Of the schemes that learned "
        "a fixed lag, some relative ones carry it to longer sequences and others do not; a learned table does not.",
        "holds-if",
        "in float64; in float32 a shift moves RoPE's scores, more so if its angles are float32 too",
        positions,
        (
            Knob("tokens", 12, "tokens", (2, 128)),
            Knob("dim", 16, "head dim", (2, 256), step=2),
            Knob("shift", 10_000, "shift of all positions", (0, 1_000_000)),
            Knob("steps", 300, "training steps of the two tasks; 0 skips them", (0, 50_000), long=2000),
            Knob("seeds", 1, "random starts", (1, 20), long=3),
        ),
        ("no-scale", "wrong-axis", "uniform", "argmax"),
        "Change of RoPE's scores by a shift; accuracy of each scheme on sequences longer than in training.",
        cost="minutes",
        overturn={"steps": 0},
    ),
)
