"""Head types: the type of a head agrees with what ablating it costs."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from induction_task import make_repeating_texts, repeater  # noqa: F401  (repeater is a fixture)
from torch import nn

import qkv
from qkv import interp
from qkv.interp import probes
from qkv.interp.forward import trace_with_output
from qkv.interp.head_types import (
    HEAD_TYPES,
    LESS_INFORMATIVE,
    THRESHOLDS,
    WITHOUT_TARGET,
    ClassifiedHead,
    HeadTypes,
    _classify,
)
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig

INFORMATIVE = [name for name in HEAD_TYPES if name not in (*LESS_INFORMATIVE, *WITHOUT_TARGET)]
STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
NAMES = (
    "Once upon a time, there was a boy named Zorbil. Zorbil had a pet mukoto. One day, Zorbil and the mukoto went to "
    'the park. Zorbil said, "I like you, mukoto!" The mukoto was happy. Zorbil and the mukoto played all day.'
)
needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="the trained stories260K is not beside the project")


@pytest.fixture
def teller(unchecked) -> GPT:
    return qkv.load(STORIES / "stories260K.bin")  # pyright: ignore


def mean(numbers) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def test_ablating_induction_and_previous_token_heads_hurts_repeated_tokens_most(repeater):  # noqa: F811
    tokens, known = make_repeating_texts(8, torch.Generator().manual_seed(5))
    found = interp.classify_heads(repeater, tokens)
    targets = torch.cat((tokens[:, 1:].masked_fill(~known[:, 1:], -100), torch.full_like(tokens[:, :1], -100)), dim=1)
    costs = interp.ablation_sweep(repeater, tokens, targets=targets).table
    called = {(head.layer, head.head): head.type for head in found.heads}
    induction = [costs[at[0]][at[1]] for at, head_type in called.items() if head_type == "induction"]
    previous = [costs[at[0]][at[1]] for at, head_type in called.items() if head_type == "previous-token"]
    others = [
        costs[at[0]][at[1]] for at, head_type in called.items() if head_type not in ("induction", "previous-token")
    ]
    assert induction and previous and others
    assert {at[0] for at, head_type in called.items() if head_type == "induction"} == {1}, (
        "what came after is found in two steps"
    )
    assert {at[0] for at, head_type in called.items() if head_type == "previous-token"} == {0}
    assert min(induction) > 1.0 > 10 * max(abs(cost) for cost in others)
    assert mean(previous) > 3 * mean(others) and max(previous) > 3 * max(others)


def test_ablating_an_induction_head_does_not_hurt_unpredictable_tokens(repeater):  # noqa: F811
    tokens, known = make_repeating_texts(8, torch.Generator().manual_seed(5))
    head = interp.classify_heads(repeater, tokens).of_type("induction")[0]
    for wanted, large in ((known[:, 1:], True), (~known[:, 1:], False)):
        targets = torch.cat((tokens[:, 1:].masked_fill(~wanted, -100), torch.full_like(tokens[:, :1], -100)), dim=1)
        found = interp.measure_effect(repeater, tokens, ablate_heads=[(head.layer, head.head)], targets=targets)
        assert found.increase is not None and (found.increase > 1.0) == large


@needs_stories
def test_induction_heads_of_the_story_model_matter_most_where_names_repeat(teller):
    tokens = torch.tensor([qkv.checkpoints.load_tokenizer(teller).encode(NAMES).ids])
    called = {(head.layer, head.head) for head in interp.classify_heads(teller, tokens).of_type("induction")}
    again, elsewhere = ablation_costs(teller, tokens)
    assert 1 <= len(called) <= 4
    for numbers in (again, {at: again[at] - elsewhere[at] for at in again}):
        rest = [number for at, number in numbers.items() if at not in called]
        assert mean(numbers[at] for at in called) > 0.1 > 2 * mean(rest)
        assert all(sum(number > numbers[at] for number in rest) <= 6 for at in called)


@needs_stories
def test_previous_token_heads_of_the_story_model_matter_more_for_repeated_pairs_than_other_heads(teller):
    story = (STORIES / "expected.txt").read_text(encoding="utf-8")[:600]
    tokens = torch.tensor([qkv.checkpoints.load_tokenizer(teller).encode(story).ids])
    called = {
        (head.layer, head.head) for head in interp.classify_heads(teller, tokens).heads if head.type == "previous-token"
    }
    again, elsewhere = ablation_costs(teller, tokens)
    excess = {at: again[at] - elsewhere[at] for at in again}
    assert len(called) >= 3
    assert mean(excess[at] for at in called) > mean(number for at, number in excess.items() if at not in called) + 0.003


def ablation_costs(model: GPT, tokens: torch.Tensor) -> tuple[dict, dict]:
    """For each head, the cost of ablating it where a pair of tokens repeats, and elsewhere."""
    places = repeated_pairs(tokens[0].tolist())

    def losses() -> list[float]:
        with torch.no_grad():
            each = nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
        return [each[where].mean().item() for where in places]

    costs: tuple[dict, dict] = ({}, {})
    before = losses()
    for layer in range(model.config.layers):
        for head in range(model.config.heads):
            with interp.intervene(model, ablate_heads=[(layer, head)]):
                after = losses()
            for cost, old, new in zip(costs, before, after, strict=True):
                cost[layer, head] = new - old
    return costs


def repeated_pairs(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Places whose next token has followed the same token before, and the other places."""
    seen, repeats = set(), []
    for place, pair in enumerate(pairwise(tokens)):
        if pair in seen:
            repeats.append(place)
        seen.add(pair)
    return repeats, [place for place in range(len(tokens) - 1) if place not in repeats]


def make_patterned_trace(head_type: str, tokens: torch.Tensor, causal: bool = True) -> interp.Trace:
    """A trace of one head whose weights are exactly what a head type says."""
    n = len(tokens)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    mask = (j <= i) if causal else torch.ones(n, n, dtype=torch.bool)
    before = torch.cat((torch.tensor([-1]), tokens[:-1]))
    wanted = {
        "previous-token": j == i - 1,
        "next-token": j == i + 1,
        "offset": j == i - 3,
        "current-token": j == i,
        "attention-sink": (j == 0).expand(n, n),
        "duplicate-token": (tokens[:, None] == tokens[None]) & (i != j),
        "induction": (tokens[:, None] == before[None]) & (j < i),
        "uniform": mask,
    }[head_type] & mask
    wanted = torch.where(wanted.any(-1, keepdim=True), wanted, mask)  # queries without a target spread
    bias = torch.zeros(n, n).masked_fill(~wanted, -60.0)
    with interp.record() as trace:
        qkv.attention(
            torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), bias=bias, causal=causal
        )
    return trace


@pytest.mark.parametrize(
    "head_type",
    [
        "previous-token",
        "next-token",
        "offset",
        "current-token",
        "attention-sink",
        "duplicate-token",
        "induction",
        "uniform",
    ],
)
def test_score_heads_gives_one_to_a_head_that_does_exactly_what_its_type_says(head_type):
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4])
    (head,) = interp.score_heads(
        make_patterned_trace(head_type, tokens, causal=head_type != "next-token"), tokens[None]
    ).heads
    assert head.scores[head_type] == pytest.approx(1.0, abs=1e-5)
    assert head.type == head_type
    if head_type == "offset":
        assert head.offset == -3


def test_score_heads_gives_a_uniform_head_no_other_score_whether_causal_or_not():
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
    for causal in (True, False):
        (head,) = interp.score_heads(make_patterned_trace("uniform", tokens, causal), tokens[None]).heads
        rest = {
            head_type: score for head_type, score in head.scores.items() if head_type != "uniform" and score is not None
        }
        assert max(rest.values()) < 1e-5 and len(rest) >= 6


def test_score_heads_does_not_depend_on_the_size_of_tiles(monkeypatch):
    model = GPT(GPTConfig(vocab_size=11, dim=32, layers=2, heads=4, sliding_window=9)).eval()
    tokens = torch.randint(0, 11, (1, 40))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    trace = interp.trace(model, tokens)
    whole = interp.score_heads(trace, tokens)
    monkeypatch.setattr("qkv.interp.layers.TILE_CELLS", 1000)
    cut = interp.score_heads(trace, tokens)
    for one, other in zip(whole.heads, cut.heads, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6) and one.offset == other.offset


class Places(nn.Module):
    """One head that looks at places, and one that looks at contents."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(4 * torch.randn(2, 24, 8))
        self.contents = nn.Parameter(2 * torch.randn(2, 30, 8))

    def forward(self, tokens):
        n = tokens.shape[1]
        q, k = (torch.stack((place[:n], content[tokens[0]])) for place, content in zip(self.places, self.contents))  # noqa: B905
        return nn.functional.scaled_dot_product_attention(q[None], k[None], k[None])


def test_classify_heads_calls_a_head_positional_if_its_map_stays_when_the_content_changes():
    first, second = interp.classify_heads(Places(), torch.randperm(30)[None, :24]).heads
    assert first.scores["positional"] == pytest.approx(1.0, abs=1e-5) and first.type == "positional"
    assert second.scores["positional"] < 0.1


def test_classify_heads_scores_an_image_model_without_token_types():
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2))
    found = interp.classify_heads(model, torch.randn(1, 3, 16, 16))
    assert len(found.heads) == 4 and found.names == ("blocks.0.attention", "blocks.1.attention")
    assert found.at(1, 0).scores["induction"] is None and found.at(1, 0).scores["positional"] is not None
    assert found.to_json()["heads"][3]["layer"] == 1


@pytest.mark.parametrize("name", ["gpt", "cut gpt", "encoder", "pair", "vit"])
def test_classify_heads_gives_the_same_scores_from_one_batch_as_from_separate_runs(name, monkeypatch, unchecked):
    sizes = {"vocab_size": 11, "dim": 32, "heads": 4}
    tokens = torch.randint(0, 11, (2, 14))
    model, inputs = {
        "gpt": lambda: (GPT(GPTConfig(**sizes, layers=2, max_length=40)), tokens),
        "cut gpt": lambda: (GPT(GPTConfig(**sizes, layers=2, max_length=17)), tokens),
        "encoder": lambda: (Encoder(EncoderConfig(**sizes, layers=2)), tokens),
        "pair": lambda: (Seq2Seq(Seq2SeqConfig(**sizes, encoder_layers=1, decoder_layers=1)), (tokens, tokens.flip(1))),
        "vit": lambda: (
            ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=4)),
            torch.randn(2, 3, 16, 16),
        ),
    }[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    runs: list[object] = []
    monkeypatch.setattr(probes, "trace_with_output", lambda *given: runs.append(given) or trace_with_output(*given))
    together = interp.classify_heads(model, inputs, batch=1)
    assert len(runs) == 1, "all probes run as one batch"
    monkeypatch.setattr(probes, "_join_probes", lambda *given: None)
    apart = interp.classify_heads(model, inputs, batch=1)
    assert len(runs) == 1 + (3 if name in ("pair", "vit") else 4)
    assert together.measured_on == apart.measured_on
    for one, other in zip(together.heads, apart.heads, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5) and (one.type, one.offset) == (
            other.type,
            other.offset,
        )


def test_an_attention_sink_in_a_short_text_is_no_offset_head():
    tokens = torch.tensor([3, 1, 4, 1, 5, 9])
    (head,) = interp.score_heads(make_patterned_trace("attention-sink", tokens), tokens[None]).heads
    assert head.type == "attention-sink"
    assert not head.scores.get("offset")  # at distance 5 the first token is the only key


def test_the_clearest_of_uniform_heads_is_the_least_uniform():
    def head(place, score):
        kind = "uniform" if score >= THRESHOLDS["uniform"] else "mixed"
        scores = {**dict.fromkeys(HEAD_TYPES, None), "uniform": score}
        return ClassifiedHead(0, "layer", place, kind, score if kind == "uniform" else 0.0, None, scores)

    heads = tuple(head(place, score) for place, score in enumerate((0.95, 0.1, 0.7)))
    assert HeadTypes(("layer",), heads, {}).clearest().head == 1


@pytest.mark.parametrize(
    ("heads", "clearest"),
    [
        # a head's highest score may be of a type that is not its own
        ([{"previous-token": 0.58}, {"same-token": 0.90, "duplicate-token": 0.55}], 1),
        ([{"positional": 0.99, "previous-token": 0.31}, {"induction": 0.4}, {"attention-sink": 1.0}], 1),
        ([{"attention-sink": 0.5, "uniform": 0.9}, {"offset": 0.7}, {"positional": 0.9}], 1),
        ([{"uniform": 0.3}, {"uniform": 0.2, "positional": 0.1}], 1),  # none has a type
    ],
)
def test_clearest_is_the_head_with_the_highest_score_that_the_list_of_types_shows(heads, clearest):
    classified = tuple(
        _classify(0, place, "layer", None, {**dict.fromkeys(HEAD_TYPES, None), **scores})
        for place, scores in enumerate(heads)
    )
    found = HeadTypes(("layer",), classified, {})
    assert found.clearest().head == clearest
    listed = [(head.scores[name], head.head) for name in INFORMATIVE for head in found.of_type(name)]
    assert not listed or max(listed)[1] == clearest
