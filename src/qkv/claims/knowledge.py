"""Claims about knowledge: what a language model learns and what it invents, on synthetic biographies."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, near
from qkv.claims.experiment import Lab, mean_and_range, train_model
from qkv.data.text.biographies import (
    ANSWER_INDEX,
    NUM_PLACES,
    PLACE_ID,
    VOCAB_SIZE,
    TokenizedPeople,
    make_tokenized_people,
)
from qkv.models import GPT, GPTConfig

FAMILY = "knowledge"
UNSEEN_NAMES = 8  # first names, and as many last names, that occur in no line and no question
_cache: dict[tuple[object, ...], "AnsweringModel"] = {}


@dataclass(frozen=True)
class AnsweringModel:
    """A pretrained and fine-tuned model; the people in, and not in, the fine-tuning questions."""

    model: nn.Module
    known: TokenizedPeople
    fine_tuned: Tensor
    asked: Tensor


def train_answering(lab: Lab, read: str, count: int, steps: int, start: int) -> AnsweringModel:
    """Pretrain on lines about "all" people, "others" than those asked later, or "nothing"; fine-tune on questions."""
    key = (lab.seed, lab.attention, read, count, steps, start)
    if key in _cache:
        return _cache[key]
    generator = torch.Generator().manual_seed(1000 * lab.seed + start)
    known = make_tokenized_people(count, generator)
    order = torch.randperm(count, generator=generator)
    fine_tuned, asked = order[: count // 2], order[count // 2 :]
    model = lab.build(
        lambda: GPT(
            GPTConfig(vocab_size=VOCAB_SIZE + 2 * UNSEEN_NAMES, max_length=8, dim=64, layers=2, heads=4, mlp_dim=256)
        ),
        start,
        torch.float32,
    )
    rows_read = {"all": order, "others": fine_tuned}.get(read)

    def token_loss(words: Tensor, first: int) -> Tensor:
        logits = model(words[:, :-1])[:, first - 1 :]
        return F.cross_entropy(logits.flatten(0, 1), words[:, first:].flatten(), ignore_index=0)

    def pretraining_loss(_: int) -> Tensor:
        assert rows_read is not None
        rows = rows_read[torch.randint(0, len(rows_read), (96,), generator=generator)]
        return token_loss(known.lines(rows, generator), 1)

    def answering_loss(step: int) -> Tensor:
        rows = fine_tuned[torch.randint(0, len(fine_tuned), (64,), generator=generator)]
        loss = token_loss(known.questions(rows)[:, : ANSWER_INDEX + 1], ANSWER_INDEX)
        return loss if rows_read is None else loss + pretraining_loss(step)  # rehearsing the documents keeps the facts

    with lab.inside_layers():
        if rows_read is not None:
            train_model(model, pretraining_loss, steps, lr=4e-3)
        train_model(model, answering_loss, max(steps // 4, 1), lr=2e-3)
    found = AnsweringModel(model, known, fine_tuned, asked)
    _cache[key] = found
    return found


def answer_questions(lab: Lab, learned: AnsweringModel, words: Tensor) -> tuple[Tensor, Tensor]:
    """The place that the model answers for each question, and its confidence."""
    with lab.inside_layers(), torch.no_grad():
        chances = learned.model(words[:, :ANSWER_INDEX])[:, -1].softmax(-1)[:, PLACE_ID : PLACE_ID + NUM_PLACES]
    best = chances.max(-1)
    return best.indices, best.values


def pretraining(lab: Lab, people: int, steps: int, seeds: int) -> ExperimentResult:
    found: dict[str, list[float]] = {"all": [], "others": [], "nothing": []}
    frequent = []
    for start in range(seeds):
        places = torch.zeros(0)
        for read in found:
            lab.progress(f"pretrained on {read}, start {start + 1} of {seeds}")
            learned = train_answering(lab, read, people, steps, start)
            answered, _ = answer_questions(lab, learned, learned.known.questions(learned.asked))
            places = learned.known.places[learned.asked]
            found[read].append(float((answered == places).double().mean()))
        frequent.append(float((places == places.mode().values).double().mean()))
    summary = {name: mean_and_range(values) for name, values in found.items()}
    rate, chance = sum(frequent) / len(frequent), 1 / NUM_PLACES
    return ExperimentResult(
        {
            "accuracy, pretrained on all": summary["all"],
            "accuracy, the asked people's lines removed": summary["others"],
            "accuracy, without pretraining": summary["nothing"],
            "chance among the places": chance,
            "always the most frequent place": rate,
        },
        (
            at_least("accuracy after pretraining on all lines", summary["all"]["value"], rate + 0.25),
            near(
                "without the asked people's lines accuracy is that of chance", summary["others"]["value"], chance, 0.1
            ),
            at_most(
                "without the asked people's lines it is no better than the most frequent place",
                summary["others"]["value"],
                rate,
            ),
            near("without pretraining accuracy is that of chance", summary["nothing"]["value"], chance, 0.15),
        ),
        (
            Bars(
                "birth places of people not asked about in training",
                "pretraining lines",
                "right",
                ["all", "without theirs", "none"],
                {"right": [summary[name]["value"] for name in found]},
                level=(chance, "chance among the places"),
            ),
        ),
        caption=f"Right answers: {summary['all']['value']:.2g} with the asked people's lines, "
        f"{summary['others']['value']:.2g} without them; chance among {NUM_PLACES} places is {chance:.2g}, always the "
        f"most frequent one {rate:.2g}.",
    )


def made_up(lab: Lab, people: int, steps: int, seeds: int) -> ExperimentResult:
    confidences: dict[str, list[float]] = {"right": [], "wrong": [], "withheld": []}
    frequent, shared, chance = [], [], []
    unseen: list[tuple[float, float, float]] = []
    for start in range(seeds):
        lab.progress(f"start {start + 1} of {seeds}")
        learned = train_answering(lab, "all", people, steps, start)
        answered, confidence = answer_questions(lab, learned, learned.known.questions(learned.asked))
        right = answered == learned.known.places[learned.asked]
        confidences["right"] += confidence[right].tolist()
        confidences["wrong"] += confidence[~right].tolist()
        unknown = people_not_in_corpus(learned.known, torch.Generator().manual_seed(start))
        guessed, guess = answer_questions(lab, learned, unknown.questions(torch.arange(len(unknown.names))))
        confidences["withheld"] += guess.tolist()
        frequent.append(float((guessed == learned.known.places.mode().values).double().mean()))
        shared.append(shared_name_share(unknown, guessed, learned.known))
        anywhere = torch.randint(0, NUM_PLACES, guessed.shape, generator=torch.Generator().manual_seed(start))
        chance.append(shared_name_share(unknown, anywhere, learned.known))
        unseen.append(answers_for_unseen_names(lab, learned))
    kinds = {name: torch.tensor(values) for name, values in confidences.items()}
    overlap = float((kinds["withheld"] > median(kinds["right"])).double().mean())
    order, mistaken = confidence_overlap(kinds["right"], kinds["withheld"])
    tenth = float(kinds["right"].quantile(0.1)) if len(kinds["right"]) else float("inf")
    surely = float((kinds["withheld"] > tenth).double().mean())
    confident = float((kinds["withheld"] > 0.5).double().mean())
    thresholds = [0.0, 0.3, 0.5, 0.7, 0.9, 0.97]
    asked = torch.cat((kinds["right"], kinds["wrong"], kinds["withheld"]))
    curve = [coverage_and_precision(asked, kinds["right"], threshold) for threshold in thresholds]
    look_up = len(kinds["right"]) + len(kinds["wrong"])
    return ExperimentResult(
        {
            **{f"confidence, {name}, median": median(values) for name, values in kinds.items()},
            **{f"answers, {name}": len(values) for name, values in kinds.items()},
            "withheld names answered with confidence above ½": confident,
            "withheld names answered more confidently than half of the right ones": overlap,
            "right answers more confident than an invented one: probability": order,
            "error of the best threshold between right and invented answers": mistaken,
            "withheld names answered with the most frequent place": mean_and_range(frequent),
            "withheld names answered as someone who shares a name": mean_and_range(shared),
            "the same for places drawn at random": mean_and_range(chance),
            **{
                f"names never seen: {what}": mean_and_range(list(values))
                for what, values in zip(UNSEEN_MEASURES, zip(*unseen, strict=True), strict=True)
            },
            **{f"precision at threshold {t:g}": p for t, (_, p) in zip(thresholds, curve, strict=True)},
            **{f"coverage at threshold {t:g}": c for t, (c, _) in zip(thresholds, curve, strict=True)},
            "model: right of all asked, withheld included": curve[0][1],
            "look-up that can say “unknown”: answered": look_up / len(asked),
        },
        (
            at_least("the model answers withheld names too, with confidence above ½", confident, 0.1),
            at_least("invented answers that are more confident than a tenth of the right ones: share", surely, 0.1),
            at_least("confidences of right and invented answers overlap: error of the best threshold", mistaken, 0.1),
            at_least("a threshold raises precision, by", curve[-1][1] - curve[0][1], 0.05),
            at_most("a threshold lowers coverage, to", curve[-1][0], 0.9),
            at_least(
                "the model learned some answers: share right", len(confidences["right"]) / look_up, 0.3, "control"
            ),
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
        caption=f"Median confidence {median(kinds['right']):.3f} of right, {median(kinds['withheld']):.3f} of invented "
        f"answers: the best threshold between them is wrong for {100 * mistaken:.0f} %, and a right answer is the more "
        f"confident one in {100 * order:.0f} % of pairs (50 % would be chance).",
    )


def confidence_overlap(right: Tensor, invented: Tensor) -> tuple[float, float]:
    """How often a right answer is more confident than an invented one (0.5: no difference, 1: always), and the
    error of the best threshold, with both kinds equally frequent (0.5 to 0). NaN where a kind is missing.

    >>> confidence_overlap(torch.tensor([0.9, 0.8]), torch.tensor([0.85, 0.1]))
    (0.75, 0.25)
    """
    if not len(right) or not len(invented):
        return float("nan"), float("nan")
    pairs = right[:, None] - invented
    order = float(((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean())
    limits = torch.cat((right, invented))
    errors = ((right < limits[:, None]).double().mean(1) + (invented >= limits[:, None]).double().mean(1)) / 2
    return order, float(errors.min())


def coverage_and_precision(asked: Tensor, right: Tensor, threshold: float) -> tuple[float, float]:
    """The share of questions answered above a confidence threshold, and the share of right ones among them."""
    answered = int((asked >= threshold).sum())
    return answered / len(asked), int((right >= threshold).sum()) / max(answered, 1)


def median(values: Tensor) -> float:
    """The median; NaN where there are no values."""
    return float(values.median()) if len(values) else float("nan")


def people_not_in_corpus(known: TokenizedPeople, generator: torch.Generator) -> TokenizedPeople:
    """People with new combinations of known first and last names, who are not in the corpus."""
    summary = {tuple(name) for name in known.names.tolist()}
    names = []
    while len(names) < len(known.names) // 2:
        rows = torch.randint(0, len(known.names), (2,), generator=generator)
        name = (int(known.names[rows[0], 0]), int(known.names[rows[1], 1]))
        if name not in summary:
            names.append(name)
    return TokenizedPeople(torch.tensor(names), torch.zeros(len(names), dtype=torch.long))


UNSEEN_MEASURES = ("median confidence", "answered with confidence above ½", "share of their most common answer")


def answers_for_unseen_names(lab: Lab, learned: AnsweringModel) -> tuple[float, float, float]:
    """What UNSEEN_MEASURES names, for people both of whose names occur nowhere in training."""
    ids = VOCAB_SIZE + torch.arange(2 * UNSEEN_NAMES)
    names = torch.cartesian_prod(ids[:UNSEEN_NAMES], ids[UNSEEN_NAMES:])
    people = TokenizedPeople(names, torch.zeros(len(names), dtype=torch.long))
    answered, confidence = answer_questions(lab, learned, people.questions(torch.arange(len(names))))
    common = (answered == answered.mode().values).double().mean()
    return median(confidence), float((confidence > 0.5).double().mean()), float(common)


def shared_name_share(unknown: TokenizedPeople, guessed: Tensor, known: TokenizedPeople) -> float:
    """How often the answer is the place of somebody with the same first or last name."""
    hits = []
    for name, place in zip(unknown.names, guessed, strict=True):
        alike = (known.names == name).any(1)
        hits.append(float((known.places[alike] == place).any()))
    return sum(hits) / len(hits)


_KNOBS = (
    Knob("people", 120, "people in the corpus", (20, 500), long=400),
    Knob("steps", 250, "pretraining steps; fine-tuning has a quarter as many", (1, 50_000), long=4000),
    Knob("seeds", 2, "random starts", (1, 20), long=5),
)


CLAIMS = (
    Claim(
        "pretraining",
        FAMILY,
        "A model pretrained on lines about people answers questions about them; with just their lines removed it falls "
        "to chance among the places: the facts answer, not the language (synthetic biographies; fine-tuning rehearses "
        "the lines).",
        "holds",
        "",
        pretraining,
        _KNOBS,
        ("itself",),
        "Pretraining helps only if it covers the people who are asked about.",
        cost="minutes",
        overturn={"people": 60, "steps": 200, "seeds": 1},
    ),
    Claim(
        "made-up",
        FAMILY,
        "A model also answers about people who are not in the corpus: it invents places, and its confidence does not "
        "reliably tell them from right ones (synthetic biographies): a threshold trades coverage for precision, a "
        "look-up says “unknown”.",
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
