"""The training step against plain PyTorch; optimizers, schedules, EMA, activation checkpointing."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import CONFIG, Letters, gpt, lines, run
from torch import nn

from qkv import training
from qkv.models import ViT, ViTConfig
from qkv.training.ema import WeightEMA
from qkv.training.gradients import activation_checkpointing
from qkv.training.optimizers import Muon, hidden_matrices, make_optimizers, orthogonalize, parameter_kinds
from qkv.training.schedules import ScheduleKind, lr_factor

PLAIN = replace(CONFIG, ema_decay=0.0, grad_accumulation=1, grad_clip=None)


class JoinedBatches:
    """Joins several batches of another data set into one."""

    def __init__(self, batches, number):
        self.batches, self.number = batches, number

    def num_batches(self, epoch):
        return self.batches.num_batches(epoch) // self.number

    def batch(self, epoch, index):
        parts = [self.batches.batch(epoch, self.number * index + part) for part in range(self.number)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def fit(folder, batches, config, model):
    training.train(model, batches, training.language_model(), config, folder)
    return model


def max_difference(a, b):
    """The largest difference between two models' weights."""
    return max(
        (x - y).abs().max().item() for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("clip", [None, 0.3])
def test_grad_accumulation_equals_one_large_batch(tmp_path, clip):
    even = Letters(epoch=6)
    even.num_batches = lambda _: 6
    exact = [gpt(dropout=0.0, dtype=torch.float64) for _ in range(2)]
    config = replace(PLAIN, steps=6, grad_clip=clip)
    fit(tmp_path / "parts", even, replace(config, grad_accumulation=3), exact[0])
    fit(tmp_path / "whole", JoinedBatches(even, 3), config, exact[1])
    assert max_difference(*exact) < 1e-12
    for a, b in zip(lines(tmp_path / "parts"), lines(tmp_path / "whole"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-12)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], abs=1e-12)


def test_train_equals_a_plain_pytorch_loop(tmp_path):
    """AdamW in two groups, LambdaLR, clip_grad_norm_, and an EMA by hand."""
    config = replace(CONFIG, grad_accumulation=1, grad_clip=0.5, steps=10)
    ours = fit(tmp_path, Letters(), config, gpt(dropout=0.0, dtype=torch.float64))
    model = gpt(dropout=0.0, dtype=torch.float64)
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    groups = [
        {"params": [p for p in model.parameters() if id(p) in linear], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if id(p) not in linear], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=False)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (step + 1) / 3 if step < 3 else (1 + math.cos(math.pi * (step - 3) / 7)) / 2
    )
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    positions = [(0, i) for i in range(5)] + [(1, i) for i in range(5)]
    for step, position in enumerate(positions):
        batch = Letters().batch(*position)
        logits = model(batch["tokens"])
        loss = nn.functional.cross_entropy(logits[batch["loss_mask"]], batch["targets"][batch["loss_mask"]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        cosine.step()
        decay = min(0.9, (2 + step) / (11 + step))
        for name, parameter in model.named_parameters():
            average[name] = decay * average[name] + (1 - decay) * parameter.detach()
    assert max_difference(ours, model) < 1e-5  # clip_grad_norm_ adds 1e-6 to the norm it divides by
    saved = load_file(tmp_path / "checkpoints" / "step-00000010" / "ema.safetensors")
    assert all((saved[name] - average[name]).abs().max() < 1e-5 for name in average)


def test_activation_checkpointing_has_the_same_gradients_with_dropout():
    gradients = []
    for wanted in (False, True):
        model = gpt(dropout=0.3)
        names = list(model.state_dict())
        with activation_checkpointing(model, wanted):
            torch.manual_seed(1)
            model(Letters().batch(0, 0)["tokens"]).square().sum().backward()
        assert list(model.state_dict()) == names and "forward" not in vars(model.blocks[0])
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    with (
        pytest.raises(ValueError, match="Linear has no blocks to recompute"),
        activation_checkpointing(nn.Linear(2, 2)),
    ):
        pass


def test_lr_factor_follows_the_formulas():
    steps = 50
    cosine = training.ScheduleConfig("cosine", warmup_steps=10, min_lr_ratio=0.1)
    for step in range(steps):
        expected = (step + 1) / 10 if step < 10 else 0.1 + 0.9 * math.cos(math.pi * (step - 10) / 80) ** 2
        assert lr_factor(cosine, step, steps) == pytest.approx(expected, abs=1e-12)
    stable = training.ScheduleConfig("wsd", warmup_steps=5, decay_steps=20, min_lr_ratio=0.2)
    expected = [(s + 1) / 5 for s in range(5)] + [1.0] * 25 + [1 - 0.8 * s / 20 for s in range(20)]
    assert [lr_factor(stable, step, steps) for step in range(steps)] == pytest.approx(expected, abs=1e-12)
    assert {lr_factor(training.ScheduleConfig("constant"), step, steps) for step in range(steps)} == {1.0}
    assert (
        lr_factor(training.ScheduleConfig("wsd"), 39, 50) == 1.0
        and lr_factor(training.ScheduleConfig("wsd"), 45, 50) == 0.5
    )


def test_every_kind_of_schedule_is_in_docs_training_md_and_in_the_docstring_of_schedule_config():
    page = Path(__file__).parents[2] / "docs" / "training.md"
    (row,) = re.findall(r"^\| `schedule\.kind` \| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kinds = get_args(ScheduleKind)
    assert [kind for kind in kinds if not re.search(rf"(^|, ){kind}($|[ ,])", row)] == []
    assert [kind for kind in kinds if f'"{kind}"' not in (training.ScheduleConfig.__doc__ or "")] == []


@pytest.mark.parametrize(("kind", "decay"), [("wsd", "linear"), ("wsd-sqrt", "1-sqrt")])
def test_lr_factor_wsd_equals_the_schedule_of_transformers(kind, decay):
    """After the warm-up, which transformers starts with a rate of 0."""
    schedule = training.ScheduleConfig(kind, warmup_steps=5, decay_steps=20, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    make_scheduler = pytest.importorskip("transformers").get_wsd_schedule
    scheduler = make_scheduler(optimizer, 5, 20, num_training_steps=50, decay_type=decay, min_lr_ratio=0.1)
    for step in range(60):
        if step >= 5:
            assert 2.0 * lr_factor(schedule, step, 50) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("warmup", [0, 10])
def test_lr_factor_linear_equals_the_schedulers_of_pytorch(warmup):
    """LinearLR up, then LinearLR down; PyTorch's scheduler sets the rate for the step after."""
    schedule = training.ScheduleConfig("linear", warmup_steps=warmup, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=50 - warmup)
    if warmup:
        up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [up, scheduler], [warmup])
    for step in range(60):  # also after the last step, where the rate stays at its minimum
        assert 2.0 * lr_factor(schedule, step, 50) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("kind", sorted(set(get_args(ScheduleKind)) - {"token-cosine"}))
def test_lr_factor_has_a_formula_for_every_kind_of_schedule(kind):
    schedule = training.ScheduleConfig(kind, warmup_steps=4)
    assert [lr_factor(schedule, step, 20) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(0 <= lr_factor(schedule, step, 20) <= 1 for step in range(4, 40))


@pytest.mark.parametrize("shape", [(12, 12), (8, 20), (20, 8), (3, 6, 9)])
def test_orthogonalize_keeps_singular_vectors_and_sets_values_near_one(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    found = u.mT @ orthogonalize(matrices) @ vh.mT
    values = found.diagonal(dim1=-2, dim2=-1)
    assert (found - torch.diag_embed(values)).abs().max() < 1e-8
    assert values.max() < 1.25
    large = s / s.square().sum(-1, keepdim=True).sqrt() > 0.05  # very small ones would need more iterations
    assert values[large].min() > 0.6
    x = (s / (s.square().sum(-1, keepdim=True).sqrt() + 1e-7)).double()
    for _ in range(5):  # each value is changed by the polynomial alone
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    assert (values - x).abs().max() < 1e-8


def test_muon_follows_its_formula():
    weight = nn.Parameter(torch.randn(9, 4, dtype=torch.float64))
    expected, momentum = weight.detach().clone(), torch.zeros(9, 4, dtype=torch.float64)
    muon = Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.2)
    for _ in range(3):
        gradient = torch.randn(9, 4, dtype=torch.float64)
        weight.grad = gradient.clone()
        muon.step()
        momentum = 0.9 * momentum + gradient
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * (9 / 4) ** 0.5 * orthogonalize(gradient + 0.9 * momentum)
    assert (weight - expected).abs().max() < 1e-12
    assert (muon.state[weight]["momentum"] - momentum).abs().max() < 1e-12
    with pytest.raises(ValueError, match=r"Muon updates matrices only; got a parameter of shape \(4,\)"):
        Muon([nn.Parameter(torch.zeros(4))])


def test_weight_decay_skips_norms_biases_and_embeddings():
    model = gpt()
    kind = parameter_kinds(model)
    embeddings = {name for name, what in kind.items() if what == "embedding"}
    assert embeddings == {"tokens.weight", "position_embedding.positions.weight"}
    assert all(what == "other" for name, what in kind.items() if "norm" in name or name.endswith("bias"))
    assert kind["blocks.0.attention.to_q.weight"] == kind["head.weight"] == "matrix"
    (adamw,) = make_optimizers(model, training.OptimizerConfig(weight_decay=0.1))
    decay = {id(p): group["weight_decay"] for group in adamw.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if what == "matrix" else 0.0 for name, what in kind.items()
    }
    (adamw,) = make_optimizers(model, training.OptimizerConfig(weight_decay=0.1, decay_embeddings=True))
    assert any(p is model.tokens.weight for p in adamw.param_groups[0]["params"])
    picture = parameter_kinds(ViT(ViTConfig(dim=16, layers=1)))
    assert picture["class_token"] == "embedding" and picture["patches.convolution.weight"] == "matrix"


def test_make_optimizers_gives_muon_the_matrices_of_blocks_and_adamw_the_rest():
    model = gpt(tie_embeddings=True)
    inside = hidden_matrices(model)
    assert len(inside) == 2 * 6 and all(name.startswith("blocks.") for name in inside)
    muon, adamw = make_optimizers(model, training.OptimizerConfig("muon"))
    moved = [p for optimizer in (muon, adamw) for group in optimizer.param_groups for p in group["params"]]
    assert len(moved) == len({id(p) for p in moved}) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="Muon needs matrices inside blocks and Linear has none"):
        make_optimizers(nn.Linear(3, 3), training.OptimizerConfig("muon"))


def test_evaluate_sees_the_ema_weights_and_keeps_the_own(tmp_path):
    model, seen = gpt(), []
    config = replace(CONFIG, checkpoint=training.CheckpointConfig(evaluate_every=4))

    def evaluate(found):
        assert not found.training
        seen.append({name: tensor.clone() for name, tensor in found.state_dict().items()})
        return {"loss": 0.0}

    training.train(model, Letters(), training.language_model(), config, tmp_path, evaluate=evaluate)
    checkpoint = tmp_path / "checkpoints" / "step-00000012"
    average, weights = load_file(checkpoint / "ema.safetensors"), load_file(checkpoint / "model.safetensors")
    assert len(seen) == 3
    assert all(torch.equal(seen[-1][name], average[name]) for name in average)
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    assert all(torch.equal(t, average[n]) for n, t in training.load_checkpoint(tmp_path).named_parameters())
    assert all(torch.equal(t, weights[n]) for n, t in training.load_checkpoint(tmp_path, ema=False).named_parameters())


def test_ema_of_constant_weights_is_the_weights():
    model = gpt()
    average = WeightEMA(model, 0.99)
    for step in range(1, 4):
        average.update(step)
    assert all(torch.allclose(average.average[name], p) for name, p in model.named_parameters())


def test_a_step_without_scored_tokens_keeps_the_weights_finite(tmp_path):
    class Unscored(Letters):
        def batch(self, epoch, index):
            batch = super().batch(epoch, index)
            return {**batch, "loss_mask": batch["loss_mask"] & (index > 1)}

    model = fit(tmp_path, Unscored(), replace(PLAIN, steps=4), gpt())
    assert all(p.isfinite().all() for p in model.parameters())


def test_train_learns(tmp_path):
    config = replace(PLAIN, steps=60, checkpoint=training.CheckpointConfig(log_every=60))
    outcome = run(tmp_path, config, model=gpt(dropout=0.0))
    assert outcome.evaluation["loss"] < 0.5 < math.log(11)
