"""Positions: what a shift changes, and which scheme carries a task to longer texts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Lines, Panel
from qkv.claims.claim import Claim, Knob, Lab, Measured, Number, gap, spread
from qkv.claims.predicates import Predicate, at_least, at_most, equal
from qkv.claims.reference import by_loops
from qkv.claims.training import train
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig
from qkv.nn import Shaw, T5Bias
from qkv.nn.positions import Alibi, Relative, sinusoidal
from qkv.nn.rope import Rope

FAMILY = "self-attention"
RELATIVE = ("rope", "alibi", "t5", "shaw")
ABSOLUTE = ("learned", "sinusoidal")
VOCAB = 16


def positions(lab: Lab, tokens: int, width: int, shift: int, steps: int, seeds: int) -> Measured:
    moved = {name: shifted_scores(lab, scheme, tokens, width, shift) for name, scheme in schemes().items()}
    waves, far = (sinusoidal(torch.arange(tokens) + s, width, dtype=torch.float64) for s in (0, shift))
    moved["sinusoid, position–position term"] = gap(waves @ waves.mT, far @ far.mT)
    single = rope_in_float32(lab, tokens, width, shift)
    q, k = lab.draw(tokens, width), lab.draw(tokens, width)
    turned = Rope()(q, offset=7), Rope()(k, offset=7)
    loops = by_loops(*turned, k)[0]
    same = {name: constant_text(lab, name) for name in (*RELATIVE, *ABSOLUTE)}
    numbers: dict[str, Number] = {f"{name}: change by a shift of {shift}": value for name, value in moved.items()}
    numbers |= {"rope in float32: the same": single["ours"], "rope with float32 angles: the same": single["angles"]}
    numbers |= {f"{name}: places of a constant text told apart by": value for name, value in same.items()}
    predicates: list[Predicate] = [
        at_most("relative scores do not change by a shift, float64", max(moved.values()), 1e-11),
        at_most("nor in float32", single["ours"], 1e-11, "beyond"),
        equal("a constant text looks the same at every place to relative schemes", max(same[n] for n in RELATIVE)),
        at_least("absolute ones tell its places apart", min(same[n] for n in ABSOLUTE), 1e-3),
        equal("attention on turned queries equals the triple loop", gap(lab.attention(*turned, k), loops), "control"),
    ]
    panels: list[Panel] = [_shift_panel(lab, tokens, width)]
    if steps:
        with lab.inside_layers():
            found = {task: learn(lab, task, steps, seeds, numbers) for task in TASKS}
        for task, by_scheme in found.items():
            numbers |= {f"{task}, {name}: accuracy when longer": value for name, value in by_scheme.items()}
            heights = [value["value"] for value in by_scheme.values()]
            panels.append(
                Bars(
                    f"{task}, longer than trained",
                    "",
                    "accuracy",
                    list(by_scheme),
                    {"accuracy": heights},
                    level=(1 / VOCAB, "chance"),
                )
            )
        lag = {name: value["value"] for name, value in found["fixed lag"].items()}
        best, worst, learned = max(lag[n] for n in RELATIVE), min(lag[n] for n in RELATIVE), lag["learned"]
        predicates += [
            at_least("fixed lag: the best relative scheme carries over", best, 0.8),
            at_most("fixed lag: a learned table does not", learned, 0.7),
            at_most("fixed lag: not every relative scheme does", worst, 0.8),
        ]
    return Measured(numbers, tuple(predicates), tuple(panels))


def schemes() -> dict[str, Relative]:
    return {"rope": Rope(), "t5": T5Bias(), "alibi": Alibi(), "shaw": Shaw(4)}


def shifted_scores(lab: Lab, scheme: Relative, tokens: int, width: int, shift: int) -> float:
    """How far the weights of one head move when every position grows by `shift`."""
    q, k = lab.draw(1, 1, tokens, width), lab.draw(1, 1, tokens, width)
    built = lab.build(lambda: Holder(scheme.build(1, width))).scheme
    weights = []
    for start in (0, shift):
        places = torch.arange(tokens) + start
        table = built.rotation(places, width, torch.float64)
        bias = built.bias(q, places, places, scale=width**-0.5)
        turned = built.turn(q, table), built.turn(k, table)
        weights.append(lab.weights(*turned, bias=None if bias is None else bias.dense()).detach())
    return gap(*weights)


class Holder(nn.Module):
    """A scheme as a module, whether it has parameters or not."""

    def __init__(self, scheme: Relative) -> None:
        super().__init__()
        self.scheme = scheme


def rope_in_float32(lab: Lab, tokens: int, width: int, shift: int) -> dict[str, float]:
    """How far scores move in float32: with the library's angles (float64, rounded once), and with float32 angles."""
    q, k = lab.draw(tokens, width).float(), lab.draw(tokens, width).float()
    ours = [Rope()(q, offset=s) @ Rope()(k, offset=s).mT for s in (0, shift)]
    frequencies = (10000.0 ** (-torch.arange(0, width, 2) / width)).float()
    naive = []
    for start in (0, shift):
        angles = (torch.arange(tokens) + start).float()[:, None] * frequencies
        turn = torch.polar(torch.ones_like(angles), angles)
        pairs = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn for x in (q, k))
        turned = [torch.view_as_real(x).flatten(-2) for x in pairs]
        naive.append(turned[0] @ turned[1].mT)
    return {"ours": gap(*ours), "angles": gap(*naive)}


def constant_text(lab: Lab, position: str) -> float:
    """How far the encoder's states of one token repeated differ from place to place."""
    config = EncoderConfig(vocab_size=3, max_length=16, dim=16, layers=2, heads=2, position=position)  # type: ignore[arg-type]
    model = lab.build(lambda: Encoder(config)).eval()
    with lab.inside_layers(), torch.no_grad():
        states = model(torch.ones(1, 12, dtype=torch.long))[0]
    return gap(states, states[:1])


TASKS = {"fixed lag": (32, 128), "full copy": (8, 16)}  # lengths trained on and tested on
LAG = 5


def task_batch(task: str, generator: torch.Generator, count: int, length: int) -> tuple[Tensor, Tensor, slice]:
    """Tokens, what is wanted after each, and where it counts.

    Fixed lag: the token LAG places back. Full copy: a text, a bar, and the text again.
    """
    if task == "full copy":
        text = torch.randint(0, VOCAB, (count, length), generator=generator)
        whole = torch.cat((text, torch.full((count, 1), VOCAB), text), 1)
        return whole[:, :-1], whole[:, 1:], slice(length, None)
    tokens = torch.randint(0, VOCAB, (count, length), generator=generator)
    return tokens, F.pad(tokens[:, :-LAG], (LAG, 0)), slice(LAG, None)


def learn(lab: Lab, task: str, steps: int, seeds: int, trained: dict[str, Number]) -> dict[str, dict[str, float]]:
    """The accuracy of each scheme on texts longer than those it was trained on; `trained` is told that on those."""
    short, long = TASKS[task]
    found = {}
    for name in (*RELATIVE, *ABSOLUTE):
        lab.note(f"{task}, {name}")
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

            def loss(_: int, model=model, generator=generator) -> Tensor:
                tokens, wanted, scored = task_batch(task, generator, 24, short)
                return F.cross_entropy(model(tokens)[:, scored].flatten(0, 1), wanted[:, scored].flatten())

            train(model, loss, steps, rate=6e-3)
            scores.append([accuracy(model, *task_batch(task, generator, 64, length)) for length in (short, long)])
        found[name] = spread([longer for _, longer in scores])
        trained[f"{task}, {name}: accuracy at the length trained on"] = spread([same for same, _ in scores])
    return found


def accuracy(model: nn.Module, tokens: Tensor, wanted: Tensor, scored: slice) -> float:
    with torch.no_grad():
        return float((model(tokens)[:, scored].argmax(-1) == wanted[:, scored]).double().mean())


def _shift_panel(lab: Lab, tokens: int, width: int) -> Lines:
    shifts = [10, 100, 1000, 10_000, 100_000]
    found = [rope_in_float32(lab, tokens, width, s) for s in shifts]
    exact = [max(shifted_scores(lab, Rope(), tokens, width, s), 1e-17) for s in shifts]
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
        "RoPE, T5, ALiBi and Shaw see only distances: a shift changes nothing. Which scheme carries a task to longer "
        "texts depends on the task.",
        "holds-if",
        "in float64; in float32 a shift of 10,000 moves RoPE's scores, much more so if its angles are float32 too",
        positions,
        (
            Knob("tokens", 12, "tokens", (2, 128)),
            Knob("width", 16, "width of the head", (2, 256), step=2),
            Knob("shift", 10_000, "shift of all positions", (0, 1_000_000)),
            Knob("steps", 200, "training steps of the two tasks; 0 leaves them out", (0, 50_000), long=2000),
            Knob("seeds", 1, "starts", (1, 20), long=3),
        ),
        ("no-scale", "wrong-axis", "uniform", "argmax"),
        "Change of RoPE's scores by a shift; accuracy of each scheme on texts longer than trained on.",
        cost="minutes",
        overturn={"steps": 0},
    ),
)
