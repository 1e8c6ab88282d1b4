"""Run a submission in its own process: load its files, call what was asked for, write the resulting tensors.

The grader trusts nothing here: a submission may change this module, and all it can hand back is tensors.
"""

import inspect
import linecache
import os
import random
import re
import resource
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import load_submission, messages

MAX_ERROR_CHARACTERS = 300
MAX_NOTES = 20
CONFIG_NAMES = ("config", "cfg", "conf", "args", "hparams", "params", "opt")
PARTS_OF_NAMES = {
    "heads": "head", "num_patches": "(num|n)_?patch", "patch_size": "patch", "image_shape": "chw|shape",
    "dropout": "drop",
    "mlp_dim": "mlp|ff|feed|inner|hidden_feat", "in_channels": "chan|in_c", "num_classes": "class|label|out",
    "depth": "layer|depth|block", "image_size": "im(a)?g|resol", "optimizer": "opt", "criterion": "loss|crit",
    "loader": "load|data|_dl", "labels": "targ|labels|_y", "images": "input|_x", "model": "model$|net",
    "dim": "hid|emb|dim|width|model|feat",
}  # fmt: skip


def answer(request_fd: int, result_fd: int, source: str) -> None:
    """Read the request from one file descriptor and write the reply to the other."""
    try:
        with os.fdopen(request_fd, "rb", closefd=False) as file:
            file.seek(0)
            tensors, request = messages.decode(file.read())
        reply = make_reply(tensors, request, source)
        largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if 0 <= largest < len(reply):
            raise ValueError(f"it returned {len(reply)} bytes; {largest} are allowed")
    except BaseException as error:
        reply = messages.encode({}, {"error": describe_error(error), "stage": getattr(error, "stage", "call")})
    with os.fdopen(result_fd, "wb", closefd=False) as file:
        file.seek(0)
        file.write(reply)


def make_reply(tensors: dict[str, Tensor], request: dict[str, Any], source: str) -> bytes:
    """Execute the submission and answer one request: describe its parameters, or make calls."""
    torch.manual_seed(request["seed"])
    random.seed(request["seed"])
    if request["dtype"] == "float64":
        torch.set_default_dtype(torch.float64)  # tables and masks that a submission makes are then exact too
    with without_dropout() if request["quiet"] else nullcontext():
        return _answer_request(tensors, request, source)


def _answer_request(tensors: dict[str, Tensor], request: dict[str, Any], source: str) -> bytes:
    target, about = load_target(request, source)
    if request["task"] == "probe":
        return _probe(target, tensors, request, source)
    if request["build"] is not None:
        target = _at_stage("build", lambda: build_module(target, request, tensors))
    if request["task"] == "describe":
        return _describe(target, about)
    outputs: dict[str, Tensor] = {}
    kinds = []
    for number, call in enumerate(request["calls"]):
        kinds.append(_call(target, call, tensors, outputs, str(number), grad=bool(request["grad"])))
    return messages.encode(outputs, {"kinds": kinds})


@contextmanager
def without_dropout() -> Iterator[None]:
    """Make every dropout of PyTorch return its input, also where it is called as a function."""

    def unchanged(*args: Any, **kwargs: Any) -> Tensor:
        return args[0] if args else kwargs["input"]

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any,
               **more: Any) -> Tensor:  # fmt: skip
        return original(query, key, value, attn_mask, 0.0, *rest, **more)

    original = F.scaled_dot_product_attention
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    changes = [(F, name, unchanged) for name in names]
    changes += [(torch, name, unchanged) for name in ("dropout", "dropout_", "feature_dropout", "alpha_dropout")]
    changes.append((F, "scaled_dot_product_attention", attend))
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, function in changes:
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def load_target(request: dict[str, Any], source: str) -> tuple[Any, dict[str, Any]]:
    """Load the submission and find what is asked for. Returns it, and what the feedback should say of the loading."""
    name = request["name"]
    needed = [name, *request.get("also", [])]
    module = _at_stage("import", lambda: load_submission.load(source, request.get("file"), needed))
    target = _at_stage("name", lambda: _find(module, name))
    return target, {"notes": [note[:MAX_ERROR_CHARACTERS] for note in load_submission.notes[:MAX_NOTES]]}


def _probe(target: Any, tensors: dict[str, Tensor], request: dict[str, Any], source: str) -> bytes:
    """Run the grader's own code on the submission's object, for what is no single call of a function or a module.

    The code defines probe(target, tensors, arguments, tools) and returns tensors and JSON values by name.
    """
    namespace: dict[str, Any] = {"__name__": "probe", "torch": torch, "nn": nn}
    exec(compile(request["probe"], "<probe>", "exec"), namespace)

    def other(name: str, file: str | None = None) -> Any:
        return load_target({**request, "name": name, "file": file or request.get("file"), "also": []}, source)[0]

    def build(found: Any, values: dict[str, Any]) -> Any:
        return _at_stage("build", lambda: call_with(found, values, request.get("synonyms", [])))

    def takes(found: Any, roles: list[str]) -> bool:
        names = {name.lower() for name in inspect.signature(found).parameters}
        return any(names & set(_group(role, request.get("synonyms", []))) for role in roles)

    result = namespace["probe"](
        target,
        tensors,
        request["arguments"],
        {"build": build, "find": other, "describe": describe_error, "takes": takes},
    )
    outputs = {name: value for name, value in result.items() if isinstance(value, Tensor)}
    return messages.encode(outputs, {"values": {n: v for n, v in result.items() if n not in outputs}})


def _at_stage(stage: str, action: Any) -> Any:
    """Run an action; an error it raises carries the name of the stage."""
    try:
        return action()
    except BaseException as error:
        error.stage = stage  # type: ignore[attr-defined]
        raise


def _find(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        own = [known for known, value in vars(module).items() if _is_own(value, module) and not known.startswith("_")]
        defines = f"the file defines no {name!r}; it defines {', '.join(own[:8]) or 'no function or class'}"
        raise NameError("; ".join([defines, *load_submission.notes[:1]]))
    return getattr(module, name)


def _is_own(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


class Config(dict):
    """A config with attributes and items. A setting may be read by another of its names, but not beside its own.

    roles: the setting that each name stands for.
    """

    def __init__(self, values: dict[str, Any], roles: dict[str, str] | None = None) -> None:
        super().__init__(values)
        self.__dict__.update(roles=roles or {}, read={})

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        role = self.roles.get(name, name)
        first = self.read.setdefault(role, name)
        if first != name and role in (first, name):
            raise KeyError(f"{first!r} and {name!r} are read from the config: it has one of them")
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self:
            raise AttributeError(f"the config has no {name!r}; it has {', '.join(self)}")
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    __setattr__ = dict.__setitem__  # type: ignore[assignment]


def build_module(target: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """Build the class with the rubric's arguments and copy the grader's weights into it."""
    module = call_with(target, request["build"], request.get("synonyms", []))
    if not isinstance(module, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got a {type(module).__name__}")
    module = module.to(getattr(torch, request["dtype"])).eval()
    weights = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return module


def call_with(target: Any, values: dict[str, Any], synonyms: list[list[str]]) -> Any:
    """Call `target` with these arguments, under the names that it gives them, in whatever form it takes them.

    Arguments that a table holds are a config, or arguments of their own. Optional ones that it does not know are left
    out; a parameter that nothing is known for is an error that names it.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, dict) else {name: value}
    every_name = _under_every_name(flat, synonyms)
    roles_of_names = every_name.roles
    built = {n: Config({**every_name, **v}, roles_of_names) if isinstance(v, dict) else v for n, v in values.items()}
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return target(**built)
    kinds = {parameter.kind for parameter in parameters.values()}
    required = {name for name, each in parameters.items() if each.default is each.empty and each.kind.value in (1, 3)}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds and required <= set(built)
    if set(built) <= set(parameters) or takes_any:
        return target(**built)
    roles = _roles(parameters, flat, synonyms)
    args, kwargs = [], {}
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if _takes_config(parameter, parameters, values, roles):
            value = Config({**every_name, **flat}, roles_of_names)
        elif parameter.name in roles:
            value = flat[roles[parameter.name]]
        elif parameter.default is not parameter.empty:
            continue
        else:
            name = getattr(target, "__name__", "it")
            known = ", ".join(flat)
            raise TypeError(f"{name} needs an argument {parameter.name!r}, but the interface has only {known}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(value)
        else:
            kwargs[parameter.name] = value
    return _call_with_sizes(target, args, kwargs, roles)


def _takes_config(parameter: Any, parameters: Any, values: dict[str, Any], roles: dict[str, str]) -> bool:
    """Whether a parameter is the config: by its name, or as the only required one whose name means no setting.

    A single letter, such as c, means a setting only beside others.
    """
    required = [
        name for name, each in parameters.items() if each.default is each.empty and each.kind.value in (0, 1, 3)
    ]
    alone = required == [parameter.name] and any(isinstance(value, dict) for value in values.values())
    known = parameter.name in roles and len(parameter.name) > 1
    return (alone and not known) or (parameter.name.lower() in CONFIG_NAMES and parameter.name not in roles)


def _call_with_sizes(target: Any, args: list[Any], kwargs: dict[str, Any], roles: dict[str, str]) -> Any:
    """Call it; where it unpacks or indexes the size of an image or a patch, again with (height, width)."""
    try:
        return target(*args, **kwargs)
    except TypeError as error:
        sizes = [name for name, role in roles.items() if role in ("image_size", "patch_size") and name in kwargs]
        if not sizes or not any(words in str(error) for words in ("non-iterable int", "not subscriptable")):
            raise
        return target(*args, **{n: (v, v) if n in sizes and isinstance(v, int) else v for n, v in kwargs.items()})


def _under_every_name(values: dict[str, Any], synonyms: list[list[str]]) -> Config:
    """A config with each value under all of its names. hidden_dim is the MLP's if another name is the model's."""
    found: dict[str, Any] = {}
    roles: dict[str, str] = {}
    for role in sorted(values, key=lambda role: role not in ("mlp_dim", "mlp_ratio")):
        found |= dict.fromkeys(_group(role, synonyms), values[role])
        roles |= dict.fromkeys(_group(role, synonyms), role)
    text = "".join(line for name in load_submission.labels for line in linecache.getlines(name))
    names_dim = re.search(
        r"\.(embed_dim|emb_dim|embedding_dim|d_model|n_embd|dim)\b|[\"'](embed_dim|emb_dim|dim)[\"']", text
    )
    if "mlp_dim" in values and names_dim:
        found |= dict.fromkeys(("hidden", "hidden_dim", "hidden_size", "dim_hidden"), values["mlp_dim"])
        roles |= dict.fromkeys(("hidden", "hidden_dim", "hidden_size", "dim_hidden"), "mlp_dim")
    return Config(found, roles)


def _roles(parameters: Any, values: dict[str, Any], synonyms: list[list[str]]) -> dict[str, str]:
    """Which value each parameter means; a name that can mean several takes one that no other parameter means."""
    meanings = {name: [role for role in values if name.lower() in _group(role, synonyms)] for name in parameters}
    roles = {name: found[0] for name, found in meanings.items() if len(found) == 1}
    for name, parameter in parameters.items():
        if not meanings[name] and parameter.default is parameter.empty and name.lower() not in CONFIG_NAMES:
            guess = _guess_role(name.lower(), [role for role in values if role not in roles.values()], synonyms)
            roles |= {name: guess} if guess else {}
    for name, found in meanings.items():
        if len(found) > 1:
            exact = [role for role in found if role == name]
            free = [role for role in found if role not in roles.values()]
            roles[name] = (exact or free or found)[0]
    return roles


def _guess_role(name: str, free: list[str], synonyms: list[list[str]]) -> str | None:
    """The value that a name of a required parameter suggests by a part of it."""
    for role, pattern in PARTS_OF_NAMES.items():
        if re.search(pattern, name):
            return next((other for other in free if role in _group(other, synonyms)), None)
    return None


def _group(name: str, synonyms: list[list[str]]) -> list[str]:
    return next((group for group in synonyms if name in group), [name])


def _describe(target: Any, about: dict[str, Any]) -> bytes:
    """The names, sizes and initial values of its parameters."""
    if not isinstance(target, nn.Module):
        return messages.encode({}, {"parameters": {}, **about})
    named = dict(target.named_parameters())
    trainable = {name: {"trainable": parameter.requires_grad} for name, parameter in named.items()}
    tensors: dict[str, Tensor] = {f"w.{name}": parameter for name, parameter in named.items()}
    return messages.encode(tensors, {"parameters": trainable, **about})


def _call(
    target: Any, call: dict[str, Any], tensors: dict[str, Tensor], outputs: dict[str, Tensor], key: str, *, grad: bool
) -> str:
    """Make one call; put its output into `outputs`, and the gradients too if the request has a `grad_output`."""
    inputs: dict[str, Tensor] = {}

    def value(sent: Any) -> Any:
        if isinstance(sent, dict) and "tensor" in sent:
            tensor = tensors[sent["tensor"]].clone()
            if call.get("grad_output") and tensor.is_floating_point():
                inputs[sent["tensor"]] = tensor.requires_grad_()
            return tensor
        if isinstance(sent, dict) and "random" in sent:
            return random.Random(sent["random"])
        return sent

    args = [value(sent) for sent in call["args"]]
    kwargs = {name: value(sent) for name, sent in call["kwargs"].items()}
    with torch.set_grad_enabled(grad):
        result = target(*args, **kwargs)
    if isinstance(result, str):
        outputs[key] = messages.text_to_tensor(result)
        return "text"
    out = _first_tensor(result)
    outputs[key] = out
    if call.get("grad_output"):
        _add_gradients(target, out, tensors[call["grad_output"]], inputs, outputs, key)
    return "tensor"


def _first_tensor(result: Any) -> Tensor:
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple | list) and result:
        result = next((part for part in result if isinstance(part, Tensor)), result[0])
    for name in ("logits", "last_hidden_state", "sample"):
        if not isinstance(result, Tensor) and hasattr(result, name):
            result = getattr(result, name)
    if not isinstance(result, Tensor):
        raise TypeError(f"expected a tensor as the result, got a {type(result).__name__}")
    return result


def _add_gradients(
    target: Any, out: Tensor, grad_output: Tensor, inputs: dict[str, Tensor], outputs: dict[str, Tensor], key: str
) -> None:
    leaves = {f"i.{name}": tensor for name, tensor in inputs.items()}
    if isinstance(target, nn.Module):
        leaves |= {f"w.{name}": p for name, p in target.named_parameters() if p.requires_grad}
    if not out.requires_grad or not leaves:
        return
    gradients = torch.autograd.grad(out, list(leaves.values()), grad_output, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            outputs[f"{key}.{name}"] = gradient


def describe_error(error: BaseException) -> str:
    """The error in one line, with the place in the submission where it happened."""
    lines = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")[:MAX_ERROR_CHARACTERS]
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename in load_submission.labels:
        frames = [(error.filename, error.lineno)]
    places = [load_submission.place(name, line) for name, line in frames if name in load_submission.labels]
    return f"{text} ({places[-1]})" if places else text
