"""From what the user names to an object: a file's class, a package's function, a class with guessed arguments."""

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from qkv.check.names import GUESSES, ZEROES


def find(target: str) -> Any:
    """The object behind `file.py:Name` or `package.module:Name`. The file named is run; no other is."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"a target is file.py:Name or package.module:Name; got {target!r}")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_package(where)
    try:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        public = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        near = difflib.get_close_matches(name, public, n=1)
        offered = f"did you mean {near[0]}?" if near else f"it has {', '.join(public[:12]) or 'nothing to call'}"
        raise ValueError(f"{where} has no {name!r}; {offered}") from None
    return found


def built(found: Any, arguments: dict[str, Any] | None = None) -> tuple[Any, str]:
    """An instance of a class, with the arguments given and small guesses for the others; and how it was built."""
    if not inspect.isclass(found):
        return found, ""
    given = dict(arguments or {})
    values = {}
    parameters = inspect.signature(found).parameters
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in given.keys() - parameters.keys():
            near = difflib.get_close_matches(name, parameters, n=1)
            offered = f"did you mean {near[0]}?" if near else f"it takes {', '.join(parameters) or 'none'}"
            raise ValueError(f"{found.__name__} takes no argument {name!r}; {offered}")
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in given:
            values[name] = given.pop(name)
        elif (guess := _guess(name, parameter)) is not None:
            values[name] = guess
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{found.__name__} wants {name!r}, which could not be guessed; say --args '{{\"{name}\": …}}'"
            )
    values |= given
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = found(**values)
    except Exception as error:
        said = ", ".join(f"{name}={_short(value)}" for name, value in values.items())
        raise ValueError(
            f"{found.__name__}({said}) failed: {type(error).__name__}: {error}; declare its arguments with --args"
        ) from error
    return made, f"{found.__name__}({', '.join(f'{name}={_short(value)}' for name, value in values.items())})"


def exact(module: nn.Module) -> tuple[nn.Module, torch.dtype]:
    """The module in float64 where it can be, in eval mode."""
    return module.double().eval(), torch.float64


class GuessedConfig(SimpleNamespace):
    """A config whose every known name has a small value, read as config.name or as config["name"]."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self).get(name, default)


def _guess(name: str, parameter: inspect.Parameter) -> Any:
    if dataclasses.is_dataclass(parameter.annotation) and isinstance(parameter.annotation, type):
        return built(parameter.annotation)[0] if parameter.default is parameter.empty else None
    if parameter.default is not parameter.empty:
        return 0.0 if name in ZEROES else None
    if name in GUESSES:
        return GUESSES[name]
    if name.lower() in ("config", "cfg", "args", "params", "model_args", "hparams", "conf", "hps"):
        return GuessedConfig(**GUESSES | dict.fromkeys(ZEROES, 0.0) | {"bias": True, "qkv_bias": True})
    return 0.0 if name in ZEROES else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}(…)"


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"qkv_target_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    return module


def _from_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} could not be imported: {error}; a file is named with its .py") from None
