"""Changing what runs inside a model: another β, a silenced head, a cut edge, a replaced pattern, a patched activation.

A function mode sees the calls that a model makes above autograd, so gradients flow through what is changed; hooks
replace activations. With a function mode PyTorch takes its unfused paths: a run that changes nothing has the bits of
those paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.interp.intervention.edited import edited_attention, edited_dot_product, edited_multi_head, edited_softmax
from qkv.interp.intervention.edits import Address, Beta, Edit, Edits, Head, Pattern
from qkv.interp.recording.follow import Follower
from qkv.interp.recording.hold import Holder
from qkv.interp.recording.kernels import in_parts, is_composite
from qkv.interp.recording.modules import ModuleStack
from qkv.interp.recording.record import first_tensor
from qkv.interp.recording.score import Score
from qkv.nn.attention import attention
from qkv.nn.scores import Scorer

Patch = Tensor | Callable[[Tensor], Tensor]
WHOLE = {  # calls that are a whole attention
    attention: edited_attention,
    F.scaled_dot_product_attention: edited_dot_product,
    F.multi_head_attention_forward: edited_multi_head,
}
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@contextmanager
def change(
    model: nn.Module,
    *,
    beta: Beta | None = None,
    silence: Iterable[tuple[Address, Head]] = (),
    cut: Iterable[tuple[Address, Head, int, int]] = (),
    pattern: Mapping[tuple[Address, Head], Pattern] | None = None,
    patch: Mapping[str, Patch] | None = None,
) -> Iterator[None]:
    """Run a model differently inside this block; it is as it was afterwards.

    A layer is the name of its module, or its place among the attention layers in the order in which they run; a head of
    None is all heads. A layer in which no attention ran is a ValueError at the end of the block.

    beta: what multiplies q·k, for all layers or {layer: β} or {(layer, head): β}.
    silence: (layer, head): what the head gathers is 0.
    cut: (layer, head, query, key): the query may not attend to the key. With a cache, queries are counted among all
        keys held.
    pattern: {(layer, head): weights}: (t, s), or a function of the head's weights (b, t, s).
    patch: {module: output}: a tensor, or a function of the output (of the first tensor, if it returns several).

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> with change(model, silence=[("blocks.0.attention", 2)]):
    ...     different = model(tokens)
    >>> torch.equal(different, model(tokens))
    False
    """
    edits = Edits(beta, silence, cut, pattern or {})
    patch = patch or {}
    modules = dict(model.named_modules())
    for name in (*edits.names, *patch):
        if name not in modules:
            near = [other for other in modules if name.split(".")[-1] in other][:3] or list(modules)[1:4]
            raise ValueError(f"the model has no module {name!r}; it has, for example, {', '.join(near)}")
    with ExitStack() as stack:
        modules_called = stack.enter_context(ModuleStack(model, everywhere=False)) if edits else None
        for name, new in patch.items():
            stack.callback(modules[name].register_forward_hook(_patching(name, new)).remove)
        if modules_called is not None:
            changer = Changer(edits, modules_called)
            for module in model.modules():
                if isinstance(module, Scorer):
                    stack.callback(module.register_forward_pre_hook(changer.cut_scorer).remove)
                    stack.callback(module.register_forward_hook(changer.edit_scorer).remove)
            stack.enter_context(changer.watcher)
            stack.enter_context(changer)
            yield
            changer.refuse_unmet()
        else:
            yield


class Changer(TorchFunctionMode):
    """The mode that edits attention as a model calls it."""

    def __init__(self, edits: Edits, modules: ModuleStack) -> None:
        super().__init__()
        self._edits, self._modules = edits, modules
        self._numbers: dict[int, int] = {}
        self._names: list[str] = []  # of the layers that ran, in their order
        self.watcher = Watcher(modules)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func in WHOLE:
            edit = self._edit()
            return func(*args, **named) if edit is None else WHOLE[func](edit, self._modules.cross, *args, **named)
        if func in SOFTMAX:
            return self._softmax(func, args, named)
        return func(*args, **named)

    def _edit(self, module: nn.Module | None = None) -> Edit | None:
        """What is asked for the attention that runs now; counts it."""
        key = id(self._modules.module if module is None else module)
        if key not in self._numbers:
            self._numbers[key] = len(self._names)
            self._names.append(self._modules.name)
        return self._edits.at(self._numbers[key], self._modules.inside)

    def refuse_unmet(self) -> None:
        """A ValueError if the model ran and a change that was asked for met no attention."""
        called = self._modules.called
        ran = [layer for layer in self._edits.layers if not isinstance(layer, str) or layer in called]
        unmet = [layer for layer in ran if layer not in self._edits.met]
        if unmet and "" in called:  # the whole model: of a part that was not called nothing can be said
            where = "in the model" if unmet[0] is None else f"in layer {unmet[0]!r}"
            there = ", ".join(f"{number} ({name})" for number, name in enumerate(self._names)) or "none"
            raise ValueError(f"no attention that can be changed ran {where}; layers that ran: {there}")

    def _softmax(self, func: Any, args: tuple, named: dict[str, Any]) -> Any:
        scores = args[0] if args else named["input"]
        axis = named.get("dim", args[1] if len(args) > 1 else None)
        score: Score | None = self.watcher.follower.scores.get(scores)
        heads = self._modules.heads
        inside_scorer = any(isinstance(call.module, Scorer) for call in self._modules.calls)
        alike = score is not None or scores.ndim > 3 or (scores.ndim == 3 and heads is not None)
        if inside_scorer or axis is None or scores.ndim < 3 or not alike or self._modules.module is None:
            return func(*args, **named)
        edit = self._edit()
        if edit is None:
            return func(*args, **named)
        axis %= scores.ndim
        recipe = None if score is None else score.recipe(axis, heads, self.watcher.follower.understand)
        dtype = named.get("dtype", next((x for x in args if isinstance(x, torch.dtype)), None))
        scores = scores if dtype is None else scores.to(dtype)
        last = axis == scores.ndim - 1
        weights = edited_softmax(edit, self._modules.cross, scores if last else scores.mT, recipe, heads)
        return weights if last else weights.mT

    def cut_scorer(self, scorer: nn.Module, inputs: tuple) -> tuple | None:
        """Before a score of ours that returns weights: cut edges are edges that are not allowed."""
        edit = self._edit(scorer)
        if edit is None:
            return None
        if edit.betas:
            raise ValueError(f"{type(scorer).__name__}'s scores are no product of queries and keys: there is no beta")
        q, k, positions, allowed, cache = inputs
        t, s = positions.queries.shape[-1], positions.keys.shape[-1]
        heads = self._modules.heads or 1
        edges = edit.edges(heads, t, s, 0 if self._modules.cross else max(s - t, 0), positions.keys.device)
        if edges is None:
            return None
        return q, k, positions, ~edges[None] if allowed is None else allowed & ~edges, cache

    def edit_scorer(self, scorer: nn.Module, inputs: tuple, weights: Tensor) -> Tensor | None:
        edit = self._edit(scorer)
        return None if edit is None else edit.silenced(edit.replaced(weights))


class Watcher(TorchDispatchMode):
    """Follows scores to the softmax, so that it is known there what β was."""

    supports_higher_order_operators = True

    def __init__(self, modules: ModuleStack) -> None:
        super().__init__()
        places = modules.parameters
        self._holder = Holder()  # holds nothing; knows what an operator writes to
        self.follower = Follower(
            lambda source, values: None, lambda: modules.heads, lambda x: x.untyped_storage().data_ptr() in places
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name, named = func.__name__.split(".")[0], kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **named)
        if is_composite(func):
            with self:
                return in_parts(func, *args, **named)
        written = self._holder.before(func, args, named)
        if written:
            self.follower.wrote(written, name, args[0] if args else None)
        output = func(*args, **named)
        self.follower.after(name, args, named, output)
        return output


def _patching(name: str, new: Patch) -> Callable[[nn.Module, tuple, Any], Any]:
    """A hook that replaces a module's output, or the first tensor of it."""

    def hook(module: nn.Module, inputs: tuple, output: Any) -> Any:
        old = first_tensor(output)
        if old is None:
            raise ValueError(f"{name} returns no tensor that could be patched")
        wanted = new(old) if callable(new) else new
        if wanted.shape != old.shape:
            raise ValueError(f"{name} returns {tuple(old.shape)}; the patch is {tuple(wanted.shape)}")
        if isinstance(output, Tensor):
            return wanted
        if isinstance(output, dict):
            key = next(key for key, value in output.items() if value is old)
            output[key] = wanted
            return output
        return type(output)(wanted if value is old else value for value in output)

    return hook
