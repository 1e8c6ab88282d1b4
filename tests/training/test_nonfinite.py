"""NaN and infinity stop a run before the optimizer step; the error names what was not finite first."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import CONFIG, Letters, gpt, last_checkpoint, run
from torch import nn

from qkv import training

SHORT = replace(CONFIG, ema_decay=0.0, checkpoint=training.CheckpointConfig(checkpoint_every=1, log_every=1))


class BreaksAfter(nn.Module):
    """Works until a given call; then its output, or only its gradient, is not finite."""

    def __init__(self, inner, call, how):
        super().__init__()
        self.inner, self.calls, self.call, self.how = inner, 0, call, how

    def forward(self, x):
        x = self.inner(x)
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls < self.call:
            return x
        if self.how == "back":
            return x + (x.detach() - x).abs().sqrt()  # √0: finite, with an infinite gradient
        return x * torch.where(torch.arange(x.shape[-1]) == 0, float(self.how), 1.0)


@pytest.mark.parametrize("how", ["nan", "inf"])
def test_not_finite_error_names_the_first_module(tmp_path, how):
    model = gpt()
    model.blocks[1].feed_forward = BreaksAfter(model.blocks[1].feed_forward, 2 * 3 + 1, how)  # in the fourth step
    with pytest.raises(training.NotFiniteError) as raised:
        run(tmp_path, SHORT, model=model)
    message = str(raised.value)
    assert (
        message.startswith("step 4: the loss is ")
        and "first in the output of blocks.1.feed_forward (BreaksAfter)" in message
    )
    assert "The optimizer step was not made (batch 1 of epoch 1, 2 of epoch 1)" in message
    saved = load_file(last_checkpoint(tmp_path) / "model.safetensors")
    assert last_checkpoint(tmp_path).name == "step-00000003"
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items() if name in saved)


def test_not_finite_error_names_the_first_gradient(tmp_path):
    model = gpt()
    block = model.blocks[1]
    block.attention_norm = BreaksAfter(block.attention_norm, 1, "back")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        training.NotFiniteError, match=r"step 1: the gradient norm is .*gradient of blocks.1.attention_norm"
    ):
        run(tmp_path, SHORT, model=model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_not_finite_error_names_weights_and_batches(tmp_path):
    model = gpt()
    with torch.no_grad():
        model.blocks[0].feed_forward.to_out.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"not finite before the step, first blocks.0.feed_forward.to_out.weight"):
        run(tmp_path / "weights", SHORT, model=model)

    class Bad(Letters):
        def batch(self, epoch, index):
            batch = super().batch(epoch, index)
            return {**batch, "weight": torch.tensor([1.0, torch.inf if index == 3 else 1.0, 1.0, 1.0])}

    def weighted(model, batch):
        score = training.language_model()(model, batch)
        return training.LossSum(score.total * batch["weight"].mean(), score.count)

    with pytest.raises(ValueError, match=r"step 2: .*the batch has values that are not finite, in 'weight'"):
        training.train(gpt(), Bad(), weighted, SHORT, tmp_path / "batch")


def test_not_finite_error_names_the_loss_itself(tmp_path):
    def negative_log(model, batch):
        score = training.language_model()(model, batch)
        return training.LossSum((score.total - 1e9).log(), score.count)

    with pytest.raises(
        training.NotFiniteError, match="all module outputs are finite; the objective itself computed a loss"
    ):
        training.train(gpt(), Letters(), negative_log, SHORT, tmp_path)
