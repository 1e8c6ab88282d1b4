"""The preset transformer-base: the schedule, optimizer, dropout and checkpoint averaging of Vaswani et al. (2017)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.models import PRESETS, Seq2Seq
from qkv.training import CheckpointConfig, ScheduleConfig, load_checkpoint, read_metrics, run_recipe
from qkv.training.optimizers import make_optimizers
from qkv.training.recipes import get_recipe
from qkv.training.schedules import inverse_sqrt_lr, lr_factor

MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"
TINY = {
    "model.dim": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.heads": 2,
    "model.mlp_dim": 64,
    "data.vocab_size": 300,
    "data.batch_tokens": 512,
    "data.validation_sentences": 2,
    "train.steps": 60,
    "train.optimizer.lr": inverse_sqrt_lr(32, 20),
    "train.schedule.warmup_steps": 20,
    "train.checkpoint.log_every": 1,
    "train.checkpoint.evaluate_every": 0,
    "train.checkpoint.checkpoint_every": 10,
}


@pytest.mark.parametrize(("dim", "warmup"), [(512, 4000), (64, 10)])
def test_inverse_sqrt_is_the_formula_of_the_paper_at_every_step(dim, warmup):
    schedule, peak = ScheduleConfig("inverse-sqrt", warmup_steps=warmup), inverse_sqrt_lr(dim, warmup)
    for step in (1, 2, warmup - 1, warmup, warmup + 1, 10 * warmup, 100_000):  # the paper counts from 1
        published = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert peak * lr_factor(schedule, step - 1, 100_000) == pytest.approx(published, rel=1e-12)
    assert peak == pytest.approx((dim * warmup) ** -0.5)


def test_transformer_base_has_the_published_optimizer_and_dropout():
    config = get_recipe("translate").resolve(preset="transformer-base")
    train, data = config.stages["train"], config.data
    assert train.schedule == ScheduleConfig("inverse-sqrt", warmup_steps=4000)
    (optimizer,) = make_optimizers(torch.nn.Linear(2, 2), train.optimizer)
    assert type(optimizer) is torch.optim.Adam
    group = optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 and group["weight_decay"] == 0
    assert group["lr"] == pytest.approx(6.99e-4, rel=1e-3)
    assert data.label_smoothing == 0.1 and data.num_beams == 4 and data.length_penalty == 0.6
    assert train.checkpoint.average_last == 5 and train.grad_clip is None and train.ema_decay == 0
    assert replace(config.model, vocab_size=37_000) == PRESETS["transformer-base"]
    model = Seq2Seq(replace(config.model, vocab_size=9, dim=16, heads=2, mlp_dim=16))
    block = model.encoder[0]
    assert block.norm_order == "post" and block.dropout.p == 0.1  # type: ignore[union-attr]
    assert block.attention.dropout == 0.0 and block.feed_forward.dropout.p == 0.0  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny transformer-base that translates numbers."""
    return run_recipe("translate", TINY, preset="transformer-base", folder=tmp_path_factory.mktemp("base") / "run")


def test_run_recipe_ends_with_the_mean_of_the_last_checkpoints(run):
    lines = [line for line in read_metrics(run.folder) if "rate" in line]
    assert lines[-1]["rate"] == pytest.approx(inverse_sqrt_lr(32, 20, lines[-1]["step"]), rel=1e-6)
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    saved = [load_checkpoint(path).state_dict() for path in sorted((run.folder / "checkpoints").iterdir())]
    assert len(saved) == 5
    for name, weight in run.model.state_dict().items():
        mean = torch.stack([state[name].double() for state in saved]).mean(0)
        torch.testing.assert_close(weight.double(), mean, rtol=1e-6, atol=1e-7)
    last = saved[-1]["source_tokens.weight"]
    assert not torch.allclose(run.model.state_dict()["source_tokens.weight"], last)


def test_load_checkpoint_averages_all_if_there_are_fewer_and_refuses_one_checkpoint(run):
    average = load_checkpoint(run.folder, average_last=9).state_dict()
    for name, weight in run.model.state_dict().items():
        torch.testing.assert_close(average[name], weight)
    with pytest.raises(ValueError, match="is one checkpoint; averaging the last 3 needs the run directory"):
        load_checkpoint(run.folder / "checkpoints" / "step-00000060", average_last=3)
    with pytest.raises(ValueError, match="average_last must be at least 1, got 0"):
        load_checkpoint(run.folder, average_last=0)


def test_average_last_needs_kept_checkpoints_and_no_best_one():
    with pytest.raises(ValueError, match="average_last=5 needs as many checkpoints, got keep_last=2"):
        CheckpointConfig(average_last=5)
    with pytest.raises(ValueError, match="set best_metric='' to average"):
        CheckpointConfig(keep_last=5, average_last=5, best_metric="loss")


@pytest.mark.long
@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"Multi30k is not in {MULTI30K}")
def test_a_small_transformer_base_learns_to_translate_multi30k(tmp_path):
    small = {
        "data.path": str(MULTI30K),
        "data.vocab_size": 2000,
        "data.batch_tokens": 1000,
        "data.validation_sentences": 2,
        "data.num_beams": 1,
        "model.dim": 96,
        "model.encoder_layers": 2,
        "model.decoder_layers": 2,
        "model.heads": 4,
        "model.mlp_dim": 192,
        "train.steps": 400,
        "train.optimizer.lr": inverse_sqrt_lr(96, 100),
        "train.schedule.warmup_steps": 100,
        "train.checkpoint.evaluate_every": 0,
        "train.checkpoint.checkpoint_every": 20,
    }
    run = run_recipe("translate", small, preset="transformer-base", folder=tmp_path / "run")
    assert run.result["validation"]["loss"] < 4.8  # a uniform guess among 2,000 tokens has 7.6; measured 4.31
    assert run.result["test"]["bleu"] > 1  # measured 2.4
