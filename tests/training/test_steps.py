"""A step against PyTorch written out, and against itself cut into parts."""

import math
from dataclasses import replace

import pytest
import torch
from loop_runs import SETTINGS, Letters, gpt, lines, run
from safetensors.torch import load_file
from torch import nn

from qkv import training as loop
from qkv.models import ViT, ViTConfig
from qkv.training.activation_checkpointing import recomputed
from qkv.training.ema import Average
from qkv.training.muon import Muon, orthogonalised
from qkv.training.optimizers import hidden_matrices, kinds, make_optimisers
from qkv.training.schedules import factor

PLAIN = replace(SETTINGS, average=0.0, accumulate=1, clip=None)


class Together:
    """The batches of another set, several as one."""

    def __init__(self, batches, number):
        self.batches, self.number = batches, number

    def count(self, epoch):
        return self.batches.count(epoch) // self.number

    def batch(self, epoch, index):
        parts = [self.batches.batch(epoch, self.number * index + part) for part in range(self.number)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def trained(folder, batches, settings, model):
    loop.train(model, batches, loop.language_model(), settings, folder)
    return model


def far(a, b):
    """The largest difference between two models' weights."""
    return max(
        (x - y).abs().max().item() for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("clip", [None, 0.3])
def test_accumulated_batches_are_one_batch(tmp_path, clip):
    even = Letters(epoch=6)
    even.count = lambda _: 6
    exact = [gpt(dropout=0.0, dtype=torch.float64) for _ in range(2)]
    settings = replace(PLAIN, steps=6, clip=clip)
    trained(tmp_path / "parts", even, replace(settings, accumulate=3), exact[0])
    trained(tmp_path / "whole", Together(even, 3), settings, exact[1])
    assert far(*exact) < 1e-12
    for a, b in zip(lines(tmp_path / "parts"), lines(tmp_path / "whole"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-12)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], abs=1e-12)


def test_the_loop_is_pytorch_written_out(tmp_path):
    """AdamW in two groups, a rate by LambdaLR, clip_grad_norm_, an average by hand."""
    settings = replace(SETTINGS, accumulate=1, clip=0.5, steps=10)
    ours = trained(tmp_path, Letters(), settings, gpt(dropout=0.0, dtype=torch.float64))
    model = gpt(dropout=0.0, dtype=torch.float64)
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    groups = [
        {"params": [p for p in model.parameters() if id(p) in linear], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if id(p) not in linear], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=1e-2, foreach=False)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: (step + 1) / 3 if step < 3 else (1 + math.cos(math.pi * (step - 3) / 7)) / 2
    )
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    places = [(0, i) for i in range(5)] + [(1, i) for i in range(5)]
    for step, place in enumerate(places):
        batch = Letters().batch(*place)
        logits = model(batch["tokens"])
        loss = nn.functional.cross_entropy(logits[batch["scored"]], batch["targets"][batch["scored"]])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()
        cosine.step()
        decay = min(0.9, (2 + step) / (11 + step))
        for name, parameter in model.named_parameters():
            average[name] = decay * average[name] + (1 - decay) * parameter.detach()
    assert far(ours, model) < 1e-5  # clip_grad_norm_ adds 1e-6 to the norm it divides by
    saved = load_file(tmp_path / "checkpoints" / "step-00000010" / "average.safetensors")
    assert all((saved[name] - average[name]).abs().max() < 1e-5 for name in average)


def test_recomputed_blocks_have_the_same_gradients_dropout_included():
    gradients = []
    for wanted in (False, True):
        model = gpt(dropout=0.3)
        names = list(model.state_dict())
        with recomputed(model, wanted):
            torch.manual_seed(1)
            model(Letters().batch(0, 0)["tokens"]).square().sum().backward()
        assert list(model.state_dict()) == names and "forward" not in vars(model.blocks[0])
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    with pytest.raises(ValueError, match="Linear has no blocks to recompute"), recomputed(nn.Linear(2, 2)):
        pass


def test_schedules_follow_their_formulas():
    steps = 50
    cosine = loop.Schedule("cosine", warmup=10, floor=0.1)
    for step in range(steps):
        expected = (step + 1) / 10 if step < 10 else 0.1 + 0.9 * math.cos(math.pi * (step - 10) / 80) ** 2
        assert factor(cosine, step, steps) == pytest.approx(expected, abs=1e-12)
    stable = loop.Schedule("wsd", warmup=5, decay=20, floor=0.2)
    expected = [(s + 1) / 5 for s in range(5)] + [1.0] * 25 + [1 - 0.8 * s / 20 for s in range(20)]
    assert [factor(stable, step, steps) for step in range(steps)] == pytest.approx(expected, abs=1e-12)
    assert {factor(loop.Schedule("constant"), step, steps) for step in range(steps)} == {1.0}
    assert factor(loop.Schedule("wsd"), 39, 50) == 1.0 and factor(loop.Schedule("wsd"), 45, 50) == 0.5


@pytest.mark.parametrize("shape", [(12, 12), (8, 20), (20, 8), (3, 6, 9)])
def test_orthogonalised_matrices_keep_their_singular_vectors_and_lose_their_values(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    found = u.mT @ orthogonalised(matrices) @ vh.mT
    values = found.diagonal(dim1=-2, dim2=-1)
    assert (found - torch.diag_embed(values)).abs().max() < 1e-8
    assert values.max() < 1.25
    large = s / s.square().sum(-1, keepdim=True).sqrt() > 0.05  # very small ones would need more rounds
    assert values[large].min() > 0.6
    x = (s / (s.square().sum(-1, keepdim=True).sqrt() + 1e-7)).double()
    for _ in range(5):  # each value is moved by the polynomial alone
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
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * (9 / 4) ** 0.5 * orthogonalised(gradient + 0.9 * momentum)
    assert (weight - expected).abs().max() < 1e-12
    assert (muon.state[weight]["momentum"] - momentum).abs().max() < 1e-12
    with pytest.raises(ValueError, match=r"Muon moves matrices; got a parameter of shape \(4,\)"):
        Muon([nn.Parameter(torch.zeros(4))])


def test_norms_biases_and_tables_do_not_decay():
    model = gpt()
    kind = kinds(model)
    assert {name for name, what in kind.items() if what == "table"} == {"tokens.weight", "place.positions.weight"}
    assert all(what == "plain" for name, what in kind.items() if "norm" in name or name.endswith("bias"))
    assert kind["blocks.0.attention.to_q.weight"] == kind["head.weight"] == "matrix"
    (adamw,) = make_optimisers(model, loop.Optimiser(weight_decay=0.1))
    decay = {id(p): group["weight_decay"] for group in adamw.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if what == "matrix" else 0.0 for name, what in kind.items()
    }
    (adamw,) = make_optimisers(model, loop.Optimiser(weight_decay=0.1, decay_tables=True))
    assert any(p is model.tokens.weight for p in adamw.param_groups[0]["params"])
    picture = kinds(ViT(ViTConfig(dim=16, layers=1)))
    assert picture["class_token"] == "table" and picture["patches.convolution.weight"] == "matrix"


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = gpt(tied=True)
    inside = hidden_matrices(model)
    assert len(inside) == 2 * 6 and all(name.startswith("blocks.") for name in inside)
    muon, adamw = make_optimisers(model, loop.Optimiser("muon"))
    moved = [p for optimiser in (muon, adamw) for group in optimiser.param_groups for p in group["params"]]
    assert len(moved) == len({id(p) for p in moved}) == len(list(model.parameters()))
    with pytest.raises(ValueError, match="Muon is for matrices inside blocks, and Linear has none"):
        make_optimisers(nn.Linear(3, 3), loop.Optimiser("muon"))


def test_evaluation_sees_the_average_and_leaves_the_weights(tmp_path):
    model, seen = gpt(), []
    settings = replace(SETTINGS, saving=loop.Saving(evaluate_every=4))

    def evaluate(found):
        assert not found.training
        seen.append({name: tensor.clone() for name, tensor in found.state_dict().items()})
        return {"loss": 0.0}

    loop.train(model, Letters(), loop.language_model(), settings, tmp_path, evaluate=evaluate)
    place = tmp_path / "checkpoints" / "step-00000012"
    average, weights = load_file(place / "average.safetensors"), load_file(place / "model.safetensors")
    assert len(seen) == 3
    assert all(torch.equal(seen[-1][name], average[name]) for name in average)
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    assert all(torch.equal(t, average[n]) for n, t in loop.restored(tmp_path).named_parameters())
    assert all(torch.equal(t, weights[n]) for n, t in loop.restored(tmp_path, average=False).named_parameters())


def test_the_average_of_unmoving_weights_is_the_weights():
    model = gpt()
    average = Average(model, 0.99)
    for step in range(1, 4):
        average.update(step)
    assert all(torch.allclose(average.held[name], p) for name, p in model.named_parameters())


def test_a_step_without_anything_scored_changes_no_number_to_nothing(tmp_path):
    class Unscored(Letters):
        def batch(self, epoch, index):
            batch = super().batch(epoch, index)
            return {**batch, "scored": batch["scored"] & (index > 1)}

    model = trained(tmp_path, Unscored(), replace(PLAIN, steps=4), gpt())
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_loop_learns(tmp_path):
    settings = replace(PLAIN, steps=60, saving=loop.Saving(log_every=60))
    outcome = run(tmp_path, settings, model=gpt(dropout=0.0))
    assert outcome.evaluation["loss"] < 0.5 < math.log(11)
