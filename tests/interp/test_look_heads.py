"""Kinds of heads: what they are called is what silencing them shows."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from induction_task import repeater, repeating  # noqa: F401  (repeater is a fixture)
from torch import nn

import qkv
from qkv import interp as look
from qkv.models import GPT, GPTConfig, ViT, ViTConfig

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


def test_silencing_the_heads_called_induction_and_previous_hurts_repeated_tokens_most(repeater):  # noqa: F811
    tokens, known = repeating(8, torch.Generator().manual_seed(5))
    found = look.heads(repeater, tokens)
    targets = torch.cat((tokens[:, 1:].masked_fill(~known[:, 1:], -100), torch.full_like(tokens[:, :1], -100)), dim=1)
    costs = look.sweep(repeater, tokens, targets=targets).table
    called = {(head.layer, head.head): head.kind for head in found.heads}
    induction = [costs[at[0]][at[1]] for at, kind in called.items() if kind == "induction"]
    previous = [costs[at[0]][at[1]] for at, kind in called.items() if kind == "previous"]
    others = [costs[at[0]][at[1]] for at, kind in called.items() if kind not in ("induction", "previous")]
    assert induction and previous and others
    assert {at[0] for at, kind in called.items() if kind == "induction"} == {1}, "what came after is found in two steps"
    assert {at[0] for at, kind in called.items() if kind == "previous"} == {0}
    assert min(induction) > 1.0 > 10 * max(abs(cost) for cost in others)
    assert mean(previous) > 3 * mean(others) and max(previous) > 3 * max(others)


def test_the_same_silencing_leaves_tokens_that_nothing_foretells_alone(repeater):  # noqa: F811
    tokens, known = repeating(8, torch.Generator().manual_seed(5))
    head = look.heads(repeater, tokens).of("induction")[0]
    for wanted, large in ((known[:, 1:], True), (~known[:, 1:], False)):
        targets = torch.cat((tokens[:, 1:].masked_fill(~wanted, -100), torch.full_like(tokens[:, :1], -100)), dim=1)
        found = look.effect(repeater, tokens, silence=[(head.layer, head.head)], targets=targets)
        assert found.increase is not None and (found.increase > 1.0) == large


@needs_stories
def test_in_the_stories_the_heads_called_induction_matter_most_where_names_come_again(teller):
    tokens = torch.tensor([qkv.checkpoints.tokenizer(teller).encode(NAMES).ids])
    called = {(head.layer, head.head) for head in look.heads(teller, tokens).of("induction")}
    again, elsewhere = costs_of_silence(teller, tokens)
    assert 1 <= len(called) <= 4
    for numbers in (again, {at: again[at] - elsewhere[at] for at in again}):
        rest = [number for at, number in numbers.items() if at not in called]
        assert mean(numbers[at] for at in called) > 0.1 > 2 * mean(rest)
        assert all(sum(number > numbers[at] for number in rest) <= 6 for at in called)


@needs_stories
def test_in_the_stories_the_heads_called_previous_matter_more_for_pairs_that_come_again_than_other_heads(teller):
    story = (STORIES / "expected.txt").read_text(encoding="utf-8")[:600]
    tokens = torch.tensor([qkv.checkpoints.tokenizer(teller).encode(story).ids])
    called = {(head.layer, head.head) for head in look.heads(teller, tokens).heads if head.kind == "previous"}
    again, elsewhere = costs_of_silence(teller, tokens)
    excess = {at: again[at] - elsewhere[at] for at in again}
    assert len(called) >= 3
    assert mean(excess[at] for at in called) > mean(number for at, number in excess.items() if at not in called) + 0.003


def costs_of_silence(model: GPT, tokens: torch.Tensor) -> tuple[dict, dict]:
    """For each head, how much silencing it costs where a pair of tokens comes again, and elsewhere."""
    places = come_again(tokens[0].tolist())

    def losses() -> list[float]:
        with torch.no_grad():
            each = nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
        return [each[where].mean().item() for where in places]

    costs: tuple[dict, dict] = ({}, {})
    before = losses()
    for layer in range(model.config.layers):
        for head in range(model.config.heads):
            with qkv.interp.change(model, silence=[(layer, head)]):
                after = losses()
            for cost, old, new in zip(costs, before, after, strict=True):
                cost[layer, head] = new - old
    return costs


def come_again(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Places whose next token has followed the same token before, and the other places."""
    seen, repeats = set(), []
    for place, pair in enumerate(pairwise(tokens)):
        if pair in seen:
            repeats.append(place)
        seen.add(pair)
    return repeats, [place for place in range(len(tokens) - 1) if place not in repeats]


def patterned(kind: str, tokens: torch.Tensor, causal: bool = True) -> qkv.interp.Trace:
    """A trace of one head whose weights are exactly what a kind says."""
    n = len(tokens)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    allowed = (j <= i) if causal else torch.ones(n, n, dtype=torch.bool)
    before = torch.cat((torch.tensor([-1]), tokens[:-1]))
    wanted = {
        "previous": j == i - 1,
        "next": j == i + 1,
        "offset": j == i - 3,
        "own": j == i,
        "first": (j == 0).expand(n, n),
        "duplicate": (tokens[:, None] == tokens[None]) & (i != j),
        "induction": (tokens[:, None] == before[None]) & (j < i),
        "uniform": allowed,
    }[kind] & allowed
    wanted = torch.where(wanted.any(-1, keepdim=True), wanted, allowed)  # queries without a target spread
    bias = torch.zeros(n, n).masked_fill(~wanted, -60.0)
    with qkv.interp.record() as trace:
        qkv.attention(
            torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), bias=bias, causal=causal
        )
    return trace


@pytest.mark.parametrize("kind", ["previous", "next", "offset", "own", "first", "duplicate", "induction", "uniform"])
def test_a_head_that_does_exactly_what_a_kind_says_scores_one_and_is_called_by_it(kind):
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4])
    (head,) = look.score_heads(patterned(kind, tokens, causal=kind != "next"), tokens[None]).heads
    assert head.scores[kind] == pytest.approx(1.0, abs=1e-5)
    assert head.kind == kind
    assert head.offset == -3 if kind == "offset" else True


def test_a_uniform_head_scores_nothing_but_uniform_whether_causal_or_not():
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
    for causal in (True, False):
        (head,) = look.score_heads(patterned("uniform", tokens, causal), tokens[None]).heads
        rest = {kind: score for kind, score in head.scores.items() if kind != "uniform" and score is not None}
        assert max(rest.values()) < 1e-5 and len(rest) >= 6


def test_scores_do_not_depend_on_how_the_map_is_cut_into_tiles(monkeypatch):
    model = GPT(GPTConfig(vocab_size=11, dim=32, layers=2, heads=4, sliding_window=9)).eval()
    tokens = torch.randint(0, 11, (1, 40))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    trace = look.at(model, tokens)
    whole = look.score_heads(trace, tokens)
    monkeypatch.setattr("qkv.interp.head_scores.CELLS", 1000)
    cut = look.score_heads(trace, tokens)
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


def test_a_head_is_positional_if_its_map_stays_when_the_content_changes():
    first, second = look.heads(Places(), torch.randperm(30)[None, :24]).heads
    assert first.scores["positional"] == pytest.approx(1.0, abs=1e-5) and first.kind == "positional"
    assert second.scores["positional"] < 0.1


def test_heads_of_a_picture_model_are_scored_and_kinds_of_tokens_are_left_open():
    model = ViT(ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2))
    found = look.heads(model, torch.randn(1, 3, 16, 16))
    assert len(found.heads) == 4 and found.names == ("blocks.0.attention", "blocks.1.attention")
    assert found.at(1, 0).scores["induction"] is None and found.at(1, 0).scores["positional"] is not None
    assert found.to_json()["heads"][3]["layer"] == 1
