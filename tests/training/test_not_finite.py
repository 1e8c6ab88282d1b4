"""A number that is not one stops the run before the update, and the module that made it is named."""

from dataclasses import replace

import pytest
import torch
from loop_runs import SETTINGS, Letters, gpt, last_checkpoint, run
from safetensors.torch import load_file
from torch import nn

from qkv import training as loop

SHORT = replace(SETTINGS, average=0.0, saving=loop.Saving(checkpoint_every=1, log_every=1))


class Spoils(nn.Module):
    """Passes on what it gets, until a call after which it does not; or spoils the way back only."""

    def __init__(self, inner, call, how):
        super().__init__()
        self.inner, self.calls, self.call, self.how = inner, 0, call, how

    def forward(self, x):
        x = self.inner(x)
        self.calls += self.training and torch.is_grad_enabled()
        if self.calls < self.call:
            return x
        if self.how == "back":
            return x + (x.detach() - x).abs().sqrt()  # √0: finite, with an infinite slope
        return x * torch.where(torch.arange(x.shape[-1]) == 0, float(self.how), 1.0)


@pytest.mark.parametrize("how", ["nan", "inf"])
def test_the_first_module_that_gives_no_numbers_is_named(tmp_path, how):
    model = gpt()
    model.blocks[1].feed_forward = Spoils(model.blocks[1].feed_forward, 2 * 3 + 1, how)  # in the fourth step
    with pytest.raises(loop.NotFiniteError) as raised:
        run(tmp_path, SHORT, model=model)
    said = str(raised.value)
    assert said.startswith("step 4: the loss is ") and "first in the output of blocks.1.feed_forward (Spoils)" in said
    assert "The update was not made (batch 1 of epoch 1, 2 of epoch 1)" in said
    saved = load_file(last_checkpoint(tmp_path) / "model.safetensors")
    assert last_checkpoint(tmp_path).name == "step-00000003"
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items() if name in saved)


def test_a_gradient_that_is_no_number_is_traced_to_where_it_began(tmp_path):
    model = gpt()
    block = model.blocks[1]
    block.attention_norm = Spoils(block.attention_norm, 1, "back")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        loop.NotFiniteError, match=r"step 1: the gradient's norm is .*gradient of blocks.1.attention_norm"
    ):
        run(tmp_path, SHORT, model=model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_and_batches_that_are_no_numbers_are_named(tmp_path):
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
        score = loop.language_model()(model, batch)
        return loop.Score(score.total * batch["weight"].mean(), score.count)

    with pytest.raises(ValueError, match=r"step 2: .*the batch itself holds numbers that are not finite, in 'weight'"):
        loop.train(gpt(), Bad(), weighted, SHORT, tmp_path / "batch")


def test_a_loss_that_is_no_number_by_itself_is_said_to_be(tmp_path):
    def hopeless(model, batch):
        score = loop.language_model()(model, batch)
        return loop.Score((score.total - 1e9).log(), score.count)

    with pytest.raises(loop.NotFiniteError, match="every output of a module is finite: it is the loss itself"):
        loop.train(gpt(), Letters(), hopeless, SHORT, tmp_path)
