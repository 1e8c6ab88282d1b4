"""Beam search against all possible sentences, and against the same search written plainly."""

from itertools import product
from math import inf

import pytest
import torch
from model_cases import assert_close, make_varied_model, padded, parametrize_cases, tokens_like

from qkv.models import RNNSeq2SeqConfig, Seq2SeqConfig
from qkv.models.beam_search import beam_search
from qkv.nn import LocationAware

STOP = 0
PENALTIES = [0.0, 0.6, 1.0, 3.0]
TRANSLATORS = {
    "seq2seq": Seq2SeqConfig(4, dim=8, heads=2, encoder_layers=1, decoder_layers=2, mlp_dim=12),
    "learned positions": Seq2SeqConfig(
        4, dim=8, heads=2, decoder_layers=1, max_length=6, norm_order="pre", position="learned"
    ),
    "rnn": RNNSeq2SeqConfig(4, dim=6, hidden_size=6, layers=2, cell="gru"),
    "location-aware": RNNSeq2SeqConfig(4, dim=6, hidden_size=6, score=LocationAware(4, filters=2, kernel_size=3)),
}


def scored(total: float, tokens: int, penalty: float) -> float:
    """A sentence's log-probability for its length; the stop token counts."""
    return total / ((5 + tokens) / 6) ** penalty


class Language:
    """Made-up log-probabilities of each next token after each beginning, and a `step` that reads them."""

    def __init__(self, rows: int, vocab_size: int, count: int, sharpness: float = 1.0) -> None:
        self.rows, self.vocab_size = rows, vocab_size
        beginnings = [text for length in range(count) for text in product(range(vocab_size), repeat=length)]
        drawn = sharpness * torch.randn(rows, len(beginnings), vocab_size, dtype=torch.float64)
        self.log_p = [dict(zip(beginnings, row.log_softmax(-1).tolist(), strict=True)) for row in drawn]
        self.texts: list[tuple[int, ...]] = []

    def step(self, tokens, parents):
        if parents is None:
            self.texts = [()] * len(tokens)
        else:
            kept = [self.texts[parent] for parent in parents.tolist()]
            self.texts = [(*text, token) for text, token in zip(kept, tokens.tolist(), strict=True)]
        beams = len(tokens) // self.rows
        rows = [self.log_p[index // beams][text] for index, text in enumerate(self.texts)]
        return torch.tensor(rows, dtype=torch.float64, device=tokens.device)

    def every_sentence(self, row: int, count: int, penalty: float) -> list[tuple[float, list[int]]]:
        """All sentences of at most `count` tokens, best first."""
        found = []

        def extend(text: tuple[int, ...], total: float) -> None:
            for token in range(self.vocab_size):
                now = total + self.log_p[row][text][token]
                if token == STOP or len(text) + 1 == count:
                    sentence = [*text] if token == STOP else [*text, token]
                    found.append((scored(now, len(text) + 1, penalty), sentence))
                else:
                    extend((*text, token), now)

        extend((), 0.0)
        return sorted(found, reverse=True)

    def plain_search(self, row: int, beams: int, count: int, penalty: float) -> list[tuple[float, list[int]]]:
        """The search without its early end: of the 2k likeliest continuations, those that stop are put aside."""
        live, ended = [(0.0, ())], []
        for length in range(1, count + 1):
            candidates = [
                (total + log_p, (*text, token))
                for total, text in live
                for token, log_p in enumerate(self.log_p[row][text])
            ]
            best = sorted(candidates, reverse=True)[: 2 * beams]
            ended += [(scored(total, length, penalty), [*text[:-1]]) for total, text in best if text[-1] == STOP]
            live = [(total, text) for total, text in best if text[-1] != STOP][:beams]
        ended += [(scored(total, count, penalty), [*text]) for total, text in live]
        return sorted(ended, reverse=True)[:beams]


def assert_same_sentences(found, expected):
    assert [sentence for _, sentence in found] == [sentence for _, sentence in expected]
    assert_close([score for score, _ in found], [score for score, _ in expected], within=1e-9)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("vocab_size", "count"), [(2, 4), (3, 3), (4, 3)])
def test_beam_search_with_a_wide_beam_finds_the_best_of_all_sentences(vocab_size, count, penalty, device):
    language = Language(3, vocab_size, count)
    beams = (vocab_size - 1) ** count + vocab_size
    start = torch.full((3,), 1, device=device)
    found = beam_search(
        language.step, start, num_beams=beams, max_new_tokens=count, stop_token=STOP, length_penalty=penalty
    )
    for row in range(3):
        assert_same_sentences(found[row], language.every_sentence(row, count, penalty)[:beams])


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_beam_search_with_a_narrow_beam_equals_the_plain_search(beams, penalty, sharpness, device):
    for _ in range(4):
        language = Language(2, 4, 5, sharpness)
        start = torch.full((2,), 1, device=device)
        found = beam_search(
            language.step, start, num_beams=beams, max_new_tokens=5, stop_token=STOP, length_penalty=penalty
        )
        for row in range(2):
            assert_same_sentences(found[row], language.plain_search(row, beams, 5, penalty))


def test_beam_search_with_one_beam_and_no_stop_is_greedy(device):
    language = Language(1, 4, 6)
    expected: list[int] = []
    for _ in range(6):
        log_p = language.log_p[0][tuple(expected)]
        log_p[STOP] = -inf
        expected.append(max(range(4), key=log_p.__getitem__))
    found = beam_search(
        language.step, torch.ones(1, dtype=torch.long, device=device), num_beams=1, max_new_tokens=6, stop_token=STOP
    )
    assert [sentence for _, sentence in found[0]] == [expected]


@pytest.mark.parametrize(("beams", "count", "penalty"), [(0, 5, 0.6), (2, 0, 0.6), (2, 5, -0.1)])
def test_beam_search_rejects_impossible_options(beams, count, penalty, device):
    with pytest.raises(ValueError, match="at least 1, length_penalty at least 0, got"):
        beam_search(
            Language(1, 3, 2).step,
            torch.ones(1, dtype=torch.long, device=device),
            num_beams=beams,
            max_new_tokens=count,
            stop_token=STOP,
            length_penalty=penalty,
        )


def best_by_brute_force(model, source, source_mask, count: int, penalty: float) -> list[int]:
    """The best of every target there is, each scored by one call of the model on the whole of it."""
    texts = [(*text, STOP) for length in range(count) for text in product((1, 2, 3), repeat=length)]
    texts += list(product((1, 2, 3), repeat=count))
    targets = torch.tensor([[1, *text, *[1] * (count - len(text))] for text in texts], device=source.device)
    flags = None if source_mask is None else source_mask.expand(len(texts), -1)
    log_p = model(source.expand(len(texts), -1), targets[:, :-1], flags).log_softmax(-1)
    each = log_p.gather(-1, targets[:, 1:, None]).squeeze(-1)
    scores = [scored(float(row[: len(text)].sum()), len(text), penalty) for row, text in zip(each, texts, strict=True)]
    best = texts[max(range(len(texts)), key=scores.__getitem__)]
    return [token for token in best if token != STOP]


@pytest.mark.parametrize("penalty", PENALTIES)
@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_generate_with_a_wide_beam_finds_the_best_target(config, penalty, device, unchecked):
    model = make_varied_model(config, device)
    source, source_mask = (
        tokens_like(3, 5, device=device, vocab_size=4),
        padded("xxxxx", "..xxx", "x.x..", device=device),
    )
    for cached in (True, False):
        made = model.generate(
            source,
            3,
            start_token=1,
            stop_token=STOP,
            token_mask=source_mask,
            num_beams=27,
            length_penalty=penalty,
            use_cache=cached,
        ).tolist()
        for row in range(3):
            best = best_by_brute_force(model, source[row], source_mask[row], 3, penalty)
            assert made[row] == (best + [STOP] * 3)[: len(made[row])]


@pytest.mark.parametrize("beams", [2, 3])
@parametrize_cases(TRANSLATORS)
@torch.no_grad()
def test_translator_generate_of_a_batch_equals_each_source_alone(config, beams, device, unchecked):
    model = make_varied_model(config, device)
    source, source_mask = (
        tokens_like(3, 5, device=device, vocab_size=4),
        padded("xxxxx", "..xxx", "x.x..", device=device),
    )
    together = model.generate(source, 6, start_token=1, stop_token=STOP, token_mask=source_mask, num_beams=beams)
    uncached = model.generate(
        source, 6, start_token=1, stop_token=STOP, token_mask=source_mask, num_beams=beams, use_cache=False
    )
    assert torch.equal(together, uncached)
    for row, flags in enumerate(source_mask):
        alone = model.generate(source[row : row + 1, flags], 6, start_token=1, stop_token=STOP, num_beams=beams)[
            0
        ].tolist()
        assert (alone + [STOP] * 6)[: together.shape[1]] == together[row].tolist()


@pytest.mark.parametrize("beams", [1, 2, 4])
@parametrize_cases(TRANSLATORS)
def test_translator_generate_returns_at_most_max_new_tokens(config, beams, device):
    model = make_varied_model(config, device)
    source = tokens_like(4, 5, device=device, vocab_size=4)
    for count in (1, 2, 5):
        made = model.generate(source, count, start_token=1, stop_token=STOP, num_beams=beams)
        assert made.shape[1] <= count
