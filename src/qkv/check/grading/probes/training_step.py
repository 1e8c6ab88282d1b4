"""Run a training function on two batches, with a small model, SGD, and everything it may ask for by name."""

import contextlib
import inspect

import torch
from torch import nn


class Model(nn.Module):
    """A linear classifier that drops given features in training mode, so that its trained weights tell the mode."""

    def __init__(self, weight, bias, kept):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self.register_buffer("kept", kept.clone())
        self.modes, self.grads, self.inputs, self.stale, self.switches = [], [], [], [], []
        self.weight.register_hook(self.note_gradient)

    def note_gradient(self, new):
        """Called before a gradient is added to what is there: is there anything?"""
        Optimizer.events += ("backward",)
        self.stale.append(self.weight.grad is not None and bool(self.weight.grad.abs().max() > 0))

    def zero_grad(self, *args, **kwargs):
        Optimizer.num_cleared += 1
        return super().zero_grad(*args, **kwargs)

    def train(self, mode=True):
        self.switches.append(bool(mode))  # eval() calls it with False
        return super().train(mode)

    def forward(self, x, *args, **kwargs):
        self.modes.append(self.training)
        self.grads.append(torch.is_grad_enabled())
        self.inputs.append(x.detach())
        x = x.flatten(1)
        x = x * self.kept if self.training else x
        return x @ self.weight.T + self.bias


class Optimizer(torch.optim.SGD):
    """SGD that counts its steps, and how often gradients are cleared."""

    num_steps = num_cleared = 0
    events: tuple = ()

    def zero_grad(self, *args, **kwargs):
        Optimizer.num_cleared += 1
        return super().zero_grad(*args, **kwargs)

    def step(self, *args, **kwargs):
        Optimizer.num_steps += 1
        Optimizer.events += ("step",)
        return super().step(*args, **kwargs)


class Scheduler:
    """Does nothing."""

    def step(self, *args, **kwargs):
        pass

    def get_last_lr(self):
        return [0.1]

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Loader(list):
    """A list of batches with what loops ask of a loader."""

    def __init__(self, batches):
        super().__init__(batches)
        self.dataset = [0] * sum(len(labels) for _, labels in batches)
        self.batch_size = len(batches[0][1])


def numbers(value, found):
    """All numbers in what was returned."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        found.append(float(value.detach()))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found.append(float(value))
    elif isinstance(value, dict):
        for part in value.values():
            numbers(part, found)
    elif isinstance(value, (tuple, list)):
        for part in value:
            numbers(part, found)
    return found[:50]


def norm_of(parameters, *args, **kwargs):
    """Instead of clipping, which is allowed but changes the step that is compared: the norm of the gradients."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    return torch.stack([p.grad.norm() for p in parameters if p.grad is not None] or [torch.zeros(())]).norm()


@contextlib.contextmanager
def without_errors_in_backward():
    """A loss without a gradient is noted, not an error: then nothing is trained, and the rest is still graded."""
    backward = torch.Tensor.backward

    def note(self, *args, **kwargs):
        if self.requires_grad:
            backward(self, *args, **kwargs)
        else:
            Optimizer.events += ("backward without gradient",)

    torch.Tensor.backward = note
    try:
        yield
    finally:
        torch.Tensor.backward = backward


@contextlib.contextmanager
def without_clipping(target):
    """Turn off gradient clipping, by whatever name the function calls it."""
    names, places = getattr(target, "__globals__", {}), nn.utils.__dict__
    clips = [places["clip_grad_norm_"], places["clip_grad_value_"]]
    changed = [(table, name, table[name]) for table in (names, places) for name in table if table[name] in clips]
    for table, name, _ in changed:
        table[name] = norm_of
    try:
        yield
    finally:
        for table, name, value in changed:
            table[name] = value


def run(target, tensors, tools, one_hot):
    Optimizer.num_steps, Optimizer.num_cleared, Optimizer.events = 0, 0, ()
    model = Model(tensors["weight"], tensors["bias"], tensors["kept"]).eval()
    model.switches.clear()
    batches = [(tensors[f"images{i}"].clone(), tensors[f"labels{i}"].clone()) for i in range(2)]
    if one_hot:
        batches = [(x, nn.functional.one_hot(y, len(tensors["bias"])).to(x.dtype)) for x, y in batches]
    optimizer = Optimizer(model.parameters(), lr=0.1)
    shared = {
        "model": model, "optimizer": optimizer, "criterion": nn.CrossEntropyLoss(), "device": torch.device("cpu"),
        "scheduler": Scheduler(), "epoch": 0, "epochs": 1, "scaler": torch.amp.GradScaler("cpu", enabled=False),
        "writer": Scheduler(), "log_interval": 1000, "num_classes": len(tensors["bias"]),
    }  # fmt: skip
    result, states = {}, []
    takes_loader = tools["takes"](target, ["loader"])
    if takes_loader:
        returned = tools["build"](target, {**shared, "loader": Loader(batches), "val_loader": Loader(batches)})
        found = numbers(returned, [])
        states.append(torch.cat([part.detach().flatten() for part in model.parameters()]))
    else:
        found = []
        for x, y in batches:
            values = {**shared, "images": x, "labels": y, "batch": (x, y)}
            numbers(tools["build"](target, values), found)
            states.append(torch.cat([part.detach().flatten() for part in model.parameters()]))
    for number, state in enumerate(states):
        result[f"state{number}"] = state
    names = list(inspect.signature(target).parameters)
    result |= {"returned": found, "num_steps": Optimizer.num_steps, "modes": model.modes, "grads": model.grads}
    result |= {
        "switched to eval": False in model.switches,
        "num_cleared": Optimizer.num_cleared,
        "stale": model.stale,
        "events": list(Optimizer.events[:20]),
    }
    given = [tensors[f"images{i}"] for i in range(2)]
    result["same images"] = all(
        any(x.shape == image.shape and torch.allclose(x.to(image), image) for image in given) for x in model.inputs
    )
    result |= {"takes loader": takes_loader, "takes optimizer": tools["takes"](target, ["optimizer"]), "names": names}
    return result


def probe(target, tensors, arguments, tools):
    with without_clipping(target), without_errors_in_backward():
        try:
            return run(target, tensors, tools, one_hot=False)
        except Exception as first:
            try:  # a step for CutMix or MixUp takes labels with one entry for each class
                return run(target, tensors, tools, one_hot=True)
            except Exception:
                raise first from None
