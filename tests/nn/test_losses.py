"""Losses against −log p written out; masked tokens have no effect."""

import math

import pytest
import torch
from reference import close

from qkv.nn.losses import class_loss, next_token_loss, token_loss


def summed_by_hand(logits, targets, scored, smoothing=0.0):
    """Σ over the scored tokens of (1 − ε)·(−log p(target)) + ε·mean over the vocabulary of −log p."""
    total = 0.0
    for row, target, counts in zip(logits.flatten(0, -2).tolist(), targets.flatten(), scored.flatten(), strict=True):
        if counts:
            log_total = math.log(math.fsum(math.exp(x) for x in row))
            costs = [log_total - x for x in row]
            total += (1 - smoothing) * costs[int(target)] + smoothing * sum(costs) / len(costs)
    return total


@pytest.fixture
def batch(randn, device):
    """Logits, targets, and which of them count."""
    scored = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], device=device).bool()
    return randn(2, 5, 7), torch.randint(0, 7, (2, 5), device=device), scored


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_token_loss_is_the_mean_over_the_loss_mask_with_label_smoothing(batch, smoothing):
    logits, targets, scored = batch
    expected = summed_by_hand(logits, targets, scored, smoothing) / int(scored.sum())
    assert abs(token_loss(logits, targets, scored, label_smoothing=smoothing).item() - expected) < 1e-12
    expected = summed_by_hand(logits, targets, torch.ones_like(scored), smoothing) / 10
    assert abs(token_loss(logits, targets, label_smoothing=smoothing).item() - expected) < 1e-12


def test_token_loss_with_divisor_accumulates_to_one_batch(batch):
    logits, targets, scored = batch
    count = scored.sum()
    whole = logits.clone().requires_grad_()
    token_loss(whole, targets, scored).backward()
    parts = logits.clone().requires_grad_()
    total = 0.0
    for row in range(2):  # three tokens count in one, four in the other
        loss = token_loss(parts[row : row + 1], targets[row : row + 1], scored[row : row + 1], divisor=count)
        loss.backward()
        total += loss.item()
    assert abs(total - token_loss(logits, targets, scored).item()) < 1e-12
    close(parts.grad, whole.grad)
    close(token_loss(logits, targets, scored, divisor=14.0), token_loss(logits, targets, scored) / 2)


@pytest.mark.parametrize("shape", [(2, 5), (0, 5), (2, 0)])
def test_token_loss_without_counting_tokens_is_zero(randn, device, shape):
    logits, targets = randn(*shape, 7).requires_grad_(), torch.zeros(shape, dtype=torch.long, device=device)
    loss = token_loss(logits, targets, torch.zeros(shape, dtype=torch.bool, device=device))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None and not logits.grad.any()


def test_token_loss_ignores_masked_logits_even_if_they_are_nan(batch):
    logits, targets, scored = batch
    spoiled = torch.where(scored[..., None], logits, torch.nan).requires_grad_()
    loss = token_loss(spoiled, targets, scored, label_smoothing=0.1)
    loss.backward()
    close(loss, token_loss(logits, targets, scored, label_smoothing=0.1), 0.0)
    assert spoiled.grad is not None and spoiled.grad.isfinite().all() and not spoiled.grad[~scored].any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16], ids=str)
def test_losses_accept_targets_of_any_integer_dtype(batch, dtype):
    logits, targets, scored = batch
    close(token_loss(logits, targets.to(dtype), scored), token_loss(logits, targets, scored), 0.0)
    close(class_loss(logits[0], targets[0].to(dtype)), class_loss(logits[0], targets[0]), 0.0)


def test_token_loss_ignores_masked_targets(batch):
    logits, targets, scored = batch
    close(token_loss(logits, targets.masked_fill(~scored, -100), scored), token_loss(logits, targets, scored), 0.0)


def test_next_token_loss_compares_each_position_with_the_next_token(randn, device):
    logits = randn(2, 4, 7).requires_grad_()
    tokens = torch.tensor([[3, 1, 2, 6], [0, 0, 5, 4]], device=device)
    (gradient,) = torch.autograd.grad(next_token_loss(logits, tokens), logits)
    # the gradient is (p − one-hot of the target) / count: negative at the target alone
    assert (gradient[:, :-1] < 0).sum() == 6
    assert torch.equal(gradient[:, :-1].argmin(-1), tokens[:, 1:])
    assert not gradient[:, -1].any()
    expected = logits.detach()[:, :-1].softmax(-1) - torch.nn.functional.one_hot(tokens[:, 1:], 7)
    close(gradient[:, :-1], expected / 6)


def test_next_token_loss_counts_where_both_tokens_are_real(randn, device):
    logits, tokens = randn(2, 5, 7).requires_grad_(), torch.randint(0, 7, (2, 5), device=device)
    token_mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 0]], device=device).bool()
    loss = next_token_loss(logits, tokens, token_mask)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.any(-1).tolist() == [[False, True, False, False, False], [True, True, True, False, False]]
    scored = torch.tensor([[0, 1, 0, 0], [1, 1, 1, 0]], device=device)
    assert abs(loss.item() - summed_by_hand(logits[:, :-1], tokens[:, 1:], scored) / 4) < 1e-12
    assert next_token_loss(logits[:, :1], tokens[:, :1]).item() == 0.0


def test_losses_of_half_precision_are_computed_in_float32(randn, device):
    logits, targets = 8 * randn(1, 50, 300), torch.randint(0, 300, (1, 50), device=device)
    loss = token_loss(logits.bfloat16(), targets)
    assert loss.dtype == torch.float32
    close(loss, token_loss(logits.bfloat16().double(), targets), 1e-5)
    assert class_loss(logits[0].bfloat16(), targets[0]).dtype == torch.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_class_loss_of_classes_equals_that_of_class_probabilities(randn, device, smoothing):
    logits, targets = randn(6, 4), torch.tensor([0, 3, 1, 1, 2, 0], device=device)
    loss = class_loss(logits, targets, label_smoothing=smoothing)
    assert abs(loss.item() - summed_by_hand(logits, targets, torch.ones(6), smoothing) / 6) < 1e-12
    shares = torch.nn.functional.one_hot(targets, 4)
    for dtype in (torch.float64, torch.float32):
        close(class_loss(logits, shares.to(dtype), label_smoothing=smoothing), loss)
    mixed = 0.3 * shares + 0.7 * shares.roll(1, 0)
    expected = 0.3 * loss + 0.7 * class_loss(logits, targets.roll(1), label_smoothing=smoothing)
    close(class_loss(logits, mixed, label_smoothing=smoothing), expected, 1e-6)


L = torch.zeros(2, 3, 5)
T = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_loss(L, T + 5), "from 0 to 4, got 5 to 5.*loss_mask="),
        (lambda: token_loss(L, T - 1), "from 0 to 4, got -1 to -1"),
        (lambda: token_loss(L, T.float()), "targets must be integers, got torch.float32"),
        (lambda: token_loss(L, T.bool()), "targets must be integers, got torch.bool"),
        (lambda: token_loss(L, T[:, :2]), r"logits \(2, 3, 5\) need targets \(2, 3\), got \(2, 2\)"),
        (lambda: token_loss(L, T, T[:1].bool()), r"the targets' shape \(2, 3\), got torch.bool of \(1, 3\)"),
        (lambda: token_loss(L, T, T), r"loss_mask must be boolean.*got torch.int64 of \(2, 3\)"),
        (lambda: token_loss(L, T, label_smoothing=2.0), "label_smoothing must be in \\[0, 1\\], got 2.0"),
        (lambda: class_loss(L[0], T[0], label_smoothing=-0.1), "label_smoothing must be in \\[0, 1\\], got -0.1"),
        (lambda: token_loss(L, T - 100, T == 0), "from 0 to 4, got -100 to -100"),
        (lambda: next_token_loss(L, T + 9), "from 0 to 4, got 9 to 9"),
        (lambda: class_loss(L[0], torch.zeros(3, 4)), r"the logits' shape \(3, 5\), got torch.float32 of \(3, 4\)"),
        (lambda: class_loss(L[0], torch.zeros(3, 5).long()), "class probabilities must be floating.*got torch.int64"),
        (lambda: class_loss(L[0], T[0] + 7), "from 0 to 4, got 7 to 7"),
        (lambda: class_loss(L[0], T[0, :2]), r"need targets \(3,\), got \(2,\)"),
    ],
)
def test_losses_reject_targets_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
