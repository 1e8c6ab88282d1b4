"""Interventions, what intervene() takes: ablate heads, mask edges, scale, pattern, patch. Add a new kind here.

A TorchFunctionMode sees the calls that a model makes above autograd, so gradients flow through the edits; hooks replace
activations. With a function mode PyTorch takes its unfused paths: an intervention that changes nothing has the bits of
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

from qkv._operators import OperatorWatcher
from qkv.interp.edited_attention import (
    EditTable,
    HeadKey,
    LayerEdit,
    LayerKey,
    Pattern,
    Scale,
    edited_attention,
    edited_multi_head,
    edited_sdpa,
    edited_softmax,
)
from qkv.interp.recording.kernels import is_composite, run_decomposed
from qkv.interp.recording.module_stack import ModuleStack, check_module_names
from qkv.interp.recording.recorder import first_tensor
from qkv.interp.recording.softmax_finder import SoftmaxFinder
from qkv.interp.recording.symbolic_scores import SymbolicScores
from qkv.nn.attention import attention
from qkv.nn.scores import Scorer

Patch = Tensor | Callable[[Tensor], Tensor]
WHOLE_ATTENTION = {
    attention: edited_attention,
    F.scaled_dot_product_attention: edited_sdpa,
    F.multi_head_attention_forward: edited_multi_head,
}
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@contextmanager
def intervene(
    model: nn.Module,
    *,
    ablate_heads: Iterable[tuple[LayerKey, HeadKey]] = (),
    mask_edges: Iterable[tuple[LayerKey, HeadKey, int, int]] = (),
    scale: Scale | None = None,
    pattern: Mapping[tuple[LayerKey, HeadKey], Pattern] | None = None,
    patch: Mapping[str, Patch] | None = None,
) -> Iterator[None]:
    """Run a model with an intervention inside the block; afterwards the model is unchanged.

    A layer is given by its module's name, or by its index among the attention layers in the order in which they run; a
    head of None means all heads. If no attention ran in a layer, the end of the block raises a ValueError.

    ablate_heads: (layer, head): the head's output is set to 0.
    mask_edges: (layer, head, query, key): the query may not attend to the key. With a KV cache, queries are counted
        among all cached keys.
    scale: what multiplies q·k (β, the inverse temperature), for all layers, or {layer: scale}, or
        {(layer, head): scale}.
    pattern: {(layer, head): weights}: weights (t, s), or a function of the head's weights (b, t, s).
    patch: {module name: output}: a tensor, or a function of the output (of the first tensor, if there are several).

    >>> import torch, qkv
    >>> model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=65, dim=32, layers=2, heads=4)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> with intervene(model, ablate_heads=[("blocks.0.attention", 2)]):
    ...     different = model(tokens)
    >>> torch.equal(different, model(tokens))
    False
    """
    edits = EditTable(ablate_heads, mask_edges, scale, pattern or {})
    patch = patch or {}
    check_module_names(model, (*edits.names, *patch))
    with ExitStack() as stack:
        for name, new in patch.items():
            hook = model.get_submodule(name).register_forward_hook(_patch_hook(name, new))
            stack.callback(hook.remove)
        if not edits:
            yield
            return
        modules = stack.enter_context(ModuleStack(model, use_global_hooks=False))
        mode = InterventionMode(edits, modules)
        for module in model.modules():
            if isinstance(module, Scorer):
                stack.callback(module.register_forward_pre_hook(mode.mask_scorer_edges).remove)
                stack.callback(module.register_forward_hook(mode.edit_scorer_weights).remove)
        stack.enter_context(mode.watcher)
        stack.enter_context(mode)
        yield
        mode.check_all_used()


class InterventionMode(TorchFunctionMode):
    """The function mode that edits attention as a model calls it."""

    def __init__(self, edits: EditTable, modules: ModuleStack) -> None:
        super().__init__()
        self._edits, self._modules = edits, modules
        self._indices: dict[int, int] = {}
        self._names: list[str] = []  # of the layers that ran, in order
        self.watcher = ScoreWatcher(modules)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in WHOLE_ATTENTION:
            edit = self._find_edit()
            if edit is not None:
                return WHOLE_ATTENTION[func](edit, self._modules.cross, *args, **kwargs)
        if func in SOFTMAX:
            return self._softmax(func, args, kwargs)
        return func(*args, **kwargs)

    def _find_edit(self, module: nn.Module | None = None) -> LayerEdit | None:
        """The edits of the attention that runs now; counts the layers."""
        key = id(self._modules.module if module is None else module)
        if key not in self._indices:
            self._indices[key] = len(self._names)
            self._names.append(self._modules.name)
        return self._edits.find(self._indices[key], self._modules.is_inside)

    def check_all_used(self) -> None:
        """A ValueError if the model ran and a requested edit met no attention."""
        called = self._modules.called
        ran = [layer for layer in self._edits.layers if not isinstance(layer, str) or layer in called]
        unused = [layer for layer in ran if layer not in self._edits.used]
        if unused and "" in called:  # only if the whole model ran: a part that was not called may have the layer
            where = "in the model" if unused[0] is None else f"in layer {unused[0]!r}"
            layers = ", ".join(f"{index} ({name})" for index, name in enumerate(self._names)) or "none"
            raise ValueError(f"no attention that can be changed ran {where}; layers that ran: {layers}")
        for layer, edit in self._edits.layers.items():
            for edge in edit.masked_edges:
                if layer in self._edits.used and not edge.reached:
                    queries, keys = edge.largest
                    raise ValueError(
                        f"mask_edges: there is no edge from query {edge.query} to key {edge.key} in layer {layer!r}, "
                        f"which ran with {queries} queries and {keys} keys"
                    )

    def _softmax(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        scores = args[0] if args else kwargs["input"]
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        symbolic: SymbolicScores | None = self.watcher.finder.scores.get(scores)
        heads = self._modules.heads
        inside_scorer = any(isinstance(call.module, Scorer) for call in self._modules.calls)
        may_be_attention = symbolic is not None or scores.ndim > 3 or (scores.ndim == 3 and heads is not None)
        if inside_scorer or axis is None or scores.ndim < 3 or not may_be_attention or self._modules.module is None:
            return func(*args, **kwargs)
        edit = self._find_edit()
        if edit is None:
            return func(*args, **kwargs)
        axis %= scores.ndim
        lazy = None if symbolic is None else symbolic.lazy_weights(axis, heads, self.watcher.finder.analyze_bias)
        dtype = kwargs.get("dtype", next((x for x in args if isinstance(x, torch.dtype)), None))
        scores = scores if dtype is None else scores.to(dtype)
        keys_last = axis == scores.ndim - 1
        weights = edited_softmax(edit, self._modules.cross, scores if keys_last else scores.mT, lazy, heads)
        return weights if keys_last else weights.mT

    def mask_scorer_edges(self, scorer: nn.Module, inputs: tuple) -> tuple | None:
        """Before one of our scorers that return weights: masked edges go into its mask."""
        edit = self._find_edit(scorer)
        if edit is None:
            return None
        if edit.scales:
            raise ValueError(
                f"{type(scorer).__name__}'s scores are not a product of queries and keys: it has no scale to change"
            )
        q, k, positions, mask, cache = inputs
        t, s = positions.queries.shape[-1], positions.keys.shape[-1]
        heads = self._modules.heads or 1
        edges = edit.edges(heads, t, s, 0 if self._modules.cross else max(s - t, 0), positions.keys.device)
        if edges is None:
            return None
        return q, k, positions, ~edges[None] if mask is None else mask & ~edges, cache

    def edit_scorer_weights(self, scorer: nn.Module, inputs: tuple, weights: Tensor) -> Tensor | None:
        edit = self._find_edit(scorer)
        return None if edit is None else edit.ablate(edit.replace_patterns(weights))


class ScoreWatcher(OperatorWatcher):
    """Follows scores up to the softmax, so that their scale is known there."""

    supports_higher_order_operators = True

    def __init__(self, modules: ModuleStack) -> None:
        super().__init__()
        parameters = modules.parameters
        self.finder = SoftmaxFinder(
            lambda source, values: None, lambda: modules.heads, lambda x: x.untyped_storage().data_ptr() in parameters
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name, kwargs = func.__name__.split(".")[0], kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                return run_decomposed(func, *args, **kwargs)
        output = self.finder.run(name, func, args, kwargs)
        self.finder.after(name, args, kwargs, output)
        return output


def _patch_hook(name: str, new: Patch) -> Callable[[nn.Module, tuple, Any], Any]:
    """A hook that replaces a module's output, or the first tensor in it."""

    def hook(module: nn.Module, inputs: tuple, output: Any) -> Any:
        old = first_tensor(output)
        if old is None:
            raise ValueError(f"{name} returns no tensor that could be patched")
        patched = new(old) if callable(new) else new
        if patched.shape != old.shape:
            raise ValueError(f"{name} returns {tuple(old.shape)}; the patch is {tuple(patched.shape)}")
        if isinstance(output, Tensor):
            return patched
        if isinstance(output, dict):
            key = next(key for key, value in output.items() if value is old)
            output[key] = patched
            return output
        return type(output)(patched if value is old else value for value in output)

    return hook
