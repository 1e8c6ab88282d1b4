"""The stacks of a model: the blocks that follow one another, and the attention layers that stand in them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from qkv.interp.traces.trace import Trace


@dataclass(frozen=True)
class Stack:
    """One run of blocks.

    name: of the list that holds them. blocks: their modules' names. layers: places of their self-attention in a trace.
    """

    name: str
    blocks: tuple[str, ...]
    layers: tuple[int, ...]


def stacks(trace: Trace) -> tuple[Stack, ...]:
    """The stacks that a trace shows, in the order in which they ran; a block is numbered in its name.

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> stacks(qkv.interp.at(model, torch.tensor([[1, 2, 3]])))
    (Stack(name='blocks', blocks=('blocks.0', 'blocks.1'), layers=(0, 1)),)
    """
    found: dict[str, tuple[list[str], list[int]]] = {}
    for place, layer in enumerate(trace.layers):
        parts = layer.name.split("@")[0].split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            continue
        blocks, layers = found.setdefault(".".join(parts[:number]), ([], []))
        block = ".".join(parts[: number + 1])
        if block not in blocks:
            blocks.append(block)
        if not layer.cross and layer.queries == layer.keys:
            layers.append(place)
    return tuple(Stack(name, tuple(blocks), tuple(layers)) for name, (blocks, layers) in found.items())


def stack_of(trace: Trace, name: str | None = None) -> Stack:
    """The stack of that name; or the last one that attends to itself, which is where a model's answer comes from."""
    every = [stack for stack in stacks(trace) if stack.layers]
    if not every:
        raise ValueError(
            "the model has no blocks that follow one another with a number in their names, each attending to its own "
            "sequence; single layers can be looked at all the same"
        )
    if name is None:
        return every[-1]
    for stack in every:
        if stack.name == name:
            return stack
    raise ValueError(f"there is no stack {name!r}; there are {', '.join(stack.name for stack in every)}")


def called_blocks(model: nn.Module, stack: Stack) -> tuple[str, ...]:
    """The blocks' names, if each is a module that is called (and not only a list of parts)."""
    modules = dict(model.named_modules())
    for name in stack.blocks:
        if isinstance(modules.get(name), nn.ModuleList | nn.ModuleDict | None):
            raise ValueError(f"{name} is a list of parts that is never called, so what the block returns is not seen")
    return stack.blocks
