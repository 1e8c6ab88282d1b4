"""What a model knows and what it makes up, on made-up people."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Histogram, Lines
from qkv.claims.claim import Claim, Knob, Lab, Measured, spread
from qkv.claims.people import ANSWER, PLACE, PLACES, VOCAB, People, people
from qkv.claims.predicates import at_least, at_most, near
from qkv.claims.training import train
from qkv.models import GPT, GPTConfig

FAMILY = "knowledge"
_learned: dict[tuple[object, ...], "Learned"] = {}


@dataclass(frozen=True)
class Learned:
    """A model that has read lines about people and was taught to answer; who was asked about in training, who not."""

    model: nn.Module
    known: People
    taught: Tensor
    asked: Tensor


def learn(lab: Lab, read: str, count: int, steps: int, start: int) -> Learned:
    """Read lines (about "all", "others" than those asked later, or "nothing"), then learn to answer on half of them."""
    key = (lab.seed, lab.attention, read, count, steps, start)
    if key in _learned:
        return _learned[key]
    generator = torch.Generator().manual_seed(1000 * lab.seed + start)
    known = people(count, generator)
    order = torch.randperm(count, generator=generator)
    taught, asked = order[: count // 2], order[count // 2 :]
    model = lab.build(
        lambda: GPT(GPTConfig(vocab_size=VOCAB, max_length=8, dim=64, layers=2, heads=4, mlp_dim=256)),
        start,
        torch.float32,
    )
    readers = {"all": order, "others": taught}.get(read)

    def token_loss(words: Tensor, first: int) -> Tensor:
        logits = model(words[:, :-1])[:, first - 1 :]
        return F.cross_entropy(logits.flatten(0, 1), words[:, first:].flatten(), ignore_index=0)

    def reading(_: int) -> Tensor:
        assert readers is not None
        rows = readers[torch.randint(0, len(readers), (96,), generator=generator)]
        return token_loss(known.lines(rows, generator), 1)

    def answering(step: int) -> Tensor:
        rows = taught[torch.randint(0, len(taught), (64,), generator=generator)]
        loss = token_loss(known.questions(rows)[:, : ANSWER + 1], ANSWER)
        return loss if readers is None else loss + reading(step)  # reading on keeps what was read

    with lab.inside_layers():
        if readers is not None:
            train(model, reading, steps, rate=4e-3)
        train(model, answering, max(steps // 4, 1), rate=2e-3)
    found = Learned(model, known, taught, asked)
    _learned[key] = found
    return found


def answers(lab: Lab, learned: Learned, words: Tensor) -> tuple[Tensor, Tensor]:
    """The place that the model names for each question, and its confidence."""
    with lab.inside_layers(), torch.no_grad():
        chances = learned.model(words[:, :ANSWER])[:, -1].softmax(-1)[:, PLACE : PLACE + PLACES]
    best = chances.max(-1)
    return best.indices, best.values


def pretraining(lab: Lab, people: int, steps: int, seeds: int) -> Measured:
    found: dict[str, list[float]] = {"all": [], "others": [], "nothing": []}
    frequent = []
    for start in range(seeds):
        wanted = torch.zeros(0)
        for read in found:
            lab.note(f"read {read}, start {start + 1} of {seeds}")
            learned = learn(lab, read, people, steps, start)
            named, _ = answers(lab, learned, learned.known.questions(learned.asked))
            wanted = learned.known.places[learned.asked]
            found[read].append(float((named == wanted).double().mean()))
        frequent.append(float((wanted == wanted.mode().values).double().mean()))
    told = {name: spread(values) for name, values in found.items()}
    rate = sum(frequent) / len(frequent)
    return Measured(
        {
            "right, having read about all": told["all"],
            "right, the asked people's lines removed": told["others"],
            "right, without reading": told["nothing"],
            "always the most frequent place": rate,
        },
        (
            at_least("reading first answers", told["all"]["value"], rate + 0.25),
            near("without the asked people's lines: as the most frequent place", told["others"]["value"], rate, 0.15),
            near("without reading: the same", told["nothing"]["value"], rate, 0.15),
        ),
        (
            Bars(
                "birth places of people never asked about in training",
                "lines read before",
                "right",
                ["all", "without theirs", "none"],
                {"right": [told[name]["value"] for name in found]},
                level=(rate, "most frequent place"),
            ),
        ),
    )


def made_up(lab: Lab, people: int, steps: int, seeds: int) -> Measured:
    sure: dict[str, list[float]] = {"right": [], "wrong": [], "withheld": []}
    frequent, shared, chance = [], [], []
    for start in range(seeds):
        lab.note(f"start {start + 1} of {seeds}")
        learned = learn(lab, "all", people, steps, start)
        named, confidence = answers(lab, learned, learned.known.questions(learned.asked))
        right = named == learned.known.places[learned.asked]
        sure["right"] += confidence[right].tolist()
        sure["wrong"] += confidence[~right].tolist()
        strangers = unknown_people(learned.known, torch.Generator().manual_seed(start))
        guessed, guess = answers(lab, learned, strangers.questions(torch.arange(len(strangers.names))))
        sure["withheld"] += guess.tolist()
        frequent.append(float((guessed == learned.known.places.mode().values).double().mean()))
        shared.append(shared_name_share(strangers, guessed, learned.known))
        anywhere = torch.randint(0, PLACES, guessed.shape, generator=torch.Generator().manual_seed(start))
        chance.append(shared_name_share(strangers, anywhere, learned.known))
    kinds = {name: torch.tensor(values) for name, values in sure.items()}
    overlap = float((kinds["withheld"] > middle(kinds["right"])).double().mean())
    tenth = float(kinds["right"].quantile(0.1)) if len(kinds["right"]) else float("inf")
    surely = float((kinds["withheld"] > tenth).double().mean())
    confident = float((kinds["withheld"] > 0.5).double().mean())
    thresholds = [0.0, 0.3, 0.5, 0.7, 0.9, 0.97]
    asked = torch.cat((kinds["right"], kinds["wrong"], kinds["withheld"]))
    curve = []
    for threshold in thresholds:
        answered = int((asked >= threshold).sum())
        good = int((kinds["right"] >= threshold).sum())
        curve.append((answered / len(asked), good / max(answered, 1)))
    look_up = len(kinds["right"]) + len(kinds["wrong"])
    return Measured(
        {
            **{f"confidence, {name}, median": middle(values) for name, values in kinds.items()},
            **{f"answers, {name}": len(values) for name, values in kinds.items()},
            "withheld names answered with confidence above ½": confident,
            "withheld names answered more surely than half of the right ones": overlap,
            "withheld names answered with the most frequent place": spread(frequent),
            "withheld names answered as someone who shares a name": spread(shared),
            "the same for places drawn at random": spread(chance),
            **{f"precision at threshold {t:g}": p for t, (_, p) in zip(thresholds, curve, strict=True)},
            **{f"coverage at threshold {t:g}": c for t, (c, _) in zip(thresholds, curve, strict=True)},
            "model: right of all asked, withheld included": curve[0][1],
            "look-up that can say “unknown”: answered": look_up / len(asked),
        },
        (
            at_least("the model answers withheld names too, with confidence above ½", confident, 0.1),
            at_least("some of them more surely than a tenth of the right ones: share", surely, 0.1),
            at_least("a threshold raises precision, by", curve[-1][1] - curve[0][1], 0.05),
            at_most("and lowers coverage, to", curve[-1][0], 0.9),
            at_least("it learned something to be right about", len(sure["right"]) / look_up, 0.3, "control"),
        ),
        (
            Histogram(
                "confidence",
                "of the answer",
                "questions",
                {n: v.tolist() for n, v in kinds.items()},
                20,
                roles={"right": "value", "wrong": "wrong", "withheld": "other"},
            ),
            Lines(
                "a threshold trades coverage for precision",
                "coverage",
                "precision",
                [c for c, _ in curve],
                {"model": [p for _, p in curve], "look-up": [1.0] * len(curve)},
                roles={"look-up": "formula"},
            ),
        ),
    )


def middle(values: Tensor) -> float:
    """The median; not a number where there is none."""
    return float(values.median()) if len(values) else float("nan")


def unknown_people(known: People, generator: torch.Generator) -> People:
    """People with names put together from known first and last names, of whom nothing was told."""
    told = {tuple(name) for name in known.names.tolist()}
    names = []
    while len(names) < len(known.names) // 2:
        rows = torch.randint(0, len(known.names), (2,), generator=generator)
        name = (int(known.names[rows[0], 0]), int(known.names[rows[1], 1]))
        if name not in told:
            names.append(name)
    return People(torch.tensor(names), torch.zeros(len(names), dtype=torch.long))


def shared_name_share(strangers: People, guessed: Tensor, known: People) -> float:
    """How often the place named is that of somebody with the same first or last name."""
    hits = []
    for name, place in zip(strangers.names, guessed, strict=True):
        alike = (known.names == name).any(1)
        hits.append(float((known.places[alike] == place).any()))
    return sum(hits) / len(hits)


_KNOBS = (
    Knob("people", 120, "people told of", (20, 500), long=400),
    Knob("steps", 250, "steps of reading; a quarter as many of learning to answer", (1, 50_000), long=4000),
    Knob("seeds", 2, "starts", (1, 20), long=5),
)

CLAIMS = (
    Claim(
        "pretraining",
        FAMILY,
        "A model that has read about people answers questions about them; with just their lines removed it falls to "
        "the most frequent place: facts answer, not language (made-up people).",
        "holds",
        "",
        pretraining,
        _KNOBS,
        ("itself",),
        "Reading helps only if it tells of the people who are asked about.",
        cost="minutes",
        overturn={"people": 60, "steps": 200, "seeds": 1},
    ),
    Claim(
        "made-up",
        FAMILY,
        "A model answers about people it never read of, too, and its confidence does not tell (made-up people): a "
        "threshold trades coverage for precision, a look-up says “unknown”.",
        "holds",
        "",
        made_up,
        _KNOBS,
        ("itself",),
        "Confidence of right, wrong and withheld answers overlaps.",
        cost="minutes",
        overturn={"people": 60, "steps": 200, "seeds": 1},
    ),
)
