"""Load what the user names, file.py:Name or package.module:Name, as running it in its own folder would.

A file is executed once in a process. Its folder, or the root of its package, is importable. What goes wrong in it is
reported as its own error, in one sentence.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.util
import io
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from qkv.check.calling.guard import TargetExitError, limited, stdout_to_stderr
from qkv.checkpoints import bundled

MAIN_ONLY = 'put it under `if __name__ == "__main__":`'

State = tuple[int, int]  # a file's time of change and its size

_executed: dict[tuple[Path, State], ModuleType] = {}
# what targets imported from their own roots: by root and name, the module and the state of its file then
_siblings: dict[Path, dict[str, tuple[ModuleType, State | None]]] = {}


class TargetLoader:
    """Finds what the user names."""

    def find(self, target: str) -> Any:
        """The object behind `file.py:Name` or `package.module:Name`. Only the named file is executed."""
        where, colon, name = target.rpartition(":")
        if not colon or not where or not name:
            where, name = (target, "Name") if target.endswith(".py") else ("file.py", "Name")
            raise ValueError(f"a target is file.py:Name or package.module:Name, such as {where}:{name}; got {target!r}")
        if target in bundled.names():
            raise ValueError(
                f"{target} is a bundled model; name its class, such as qkv.models:GPT, or a checkpoint folder"
            )
        module = load_file(Path(where)) if where.endswith(".py") else _import_module(where)
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


def load_file(path: Path) -> ModuleType:
    """The module of a file, executed at the first call and after a change of the file."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    file = path.resolve()
    key = (file, _state(file))
    if key not in _executed:
        _executed[key] = _execute(path, file)
    return _executed[key]


def _execute(path: Path, file: Path) -> ModuleType:
    root, name = _importable_name(path, file)
    _use_root(root)
    known = set(sys.modules)
    module = _imported_before(name, file, root)
    if module is None:
        sys.modules.pop(name, None)  # an older version of the file
        importlib.invalidate_caches()
        with _own_errors(str(path), file):
            if "." in name:
                importlib.import_module(name.rpartition(".")[0])
            module = _imported_before(name, file, root) or _execute_as(name, file)
    new = {key: part for key, part in sys.modules.items() if key not in known and _is_under(part, root)}
    _siblings.setdefault(root, {}).update({key: (part, _module_state(part)) for key, part in new.items()})
    return module


def _imported_before(name: str, file: Path, root: Path) -> ModuleType | None:
    """The module, if this version of the file was imported already, by another file or by its package."""
    module = sys.modules.get(name)
    if module is None or Path(getattr(module, "__file__", None) or "").resolve() != file:
        return None
    _, state = _siblings.get(root, {}).get(name, (module, None))
    return module if state in (None, _state(file)) else None


def _execute_as(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _module_state(module: ModuleType) -> State | None:
    file = getattr(module, "__file__", None)
    return None if file is None else _state(Path(file))


def _state(file: Path) -> State:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def _importable_name(path: Path, file: Path) -> tuple[Path, str]:
    """The folder that must be importable, and the file's name in it: dotted if it is part of a package."""
    try:
        tree = ast.parse(file.read_bytes(), str(path))
    except SyntaxError as error:
        line = f"line {error.lineno}: {error.msg}{f' in `{error.text.strip()}`' if error.text else ''}"
        raise ValueError(f"{path} is not valid Python, {line}") from None
    except ValueError as error:  # null bytes
        raise ValueError(f"{path} is not valid Python: {error}") from None
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if root == file.parent:  # not in a package; relative imports make its folders one
        levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        for _ in range(max(levels, default=0)):
            root = root.parent
    if root != file.parent:
        return root, ".".join(file.relative_to(root).with_suffix("").parts)
    installed = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    taken = file.stem in sys.stdlib_module_names or (installed is not None and installed.origin != str(file))
    return root, f"qkv_target_{file.stem}" if taken or not file.stem.isidentifier() else file.stem


def _use_root(root: Path) -> None:
    """Make one root importable; modules of other targets' roots are forgotten, as their names may be the same."""
    for other, modules in _siblings.items():
        if other != root:
            for name, (module, _) in modules.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]
            while str(other) in sys.path:
                sys.path.remove(str(other))
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _is_under(module: Any, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))
    return any(Path(place).is_relative_to(root) and "site-packages" not in place for place in places)


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with _own_errors(name, None):
        return importlib.import_module(name)


@contextmanager
def _own_errors(place: str, file: Path | None) -> Iterator[None]:
    """Errors of the target while it is imported, as one sentence with the line of its file."""
    arguments, sys.argv = sys.argv, [place]
    keyboard, sys.stdin = sys.stdin, io.StringIO()
    refuse, argparse.ArgumentParser.error = argparse.ArgumentParser.error, _refuse_arguments
    try:
        with limited(f"importing {place}"), stdout_to_stderr():
            yield
    except TimeoutError as error:
        raise ValueError(f"{error}: it runs at import; {MAIN_ONLY}, or allow more with --time-limit") from None
    except TargetExitError as error:
        raise ValueError(f"{error}: it ends the program at import; {MAIN_ONLY}") from None
    except _ArgumentsError as error:
        raise ValueError(f"{place} parses command-line arguments when it is imported ({error}); {MAIN_ONLY}") from None
    except Exception as error:
        raise ValueError(_explain_import_error(place, file, error)) from error
    finally:
        sys.argv, sys.stdin = arguments, keyboard
        argparse.ArgumentParser.error = refuse


class _ArgumentsError(Exception):
    """The target parses command-line arguments, and does not find what it requires."""


def _refuse_arguments(self: argparse.ArgumentParser, message: str) -> NoReturn:
    raise _ArgumentsError(message)


def _explain_import_error(place: str, file: Path | None, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        missing = error.name.partition(".")[0]
        if place == error.name or place.startswith(f"{error.name}."):
            near = ", and a file needs its .py" if Path(f"{place.replace('.', '/')}.py").is_file() else ""
            found = f"there is no module {error.name}{near}"
            return f"{place} could not be imported: {found}; give file.py:Name, or install it"
        if missing != error.name and _is_installed(missing):
            return (
                f"{place} imports {error.name!r}, which the installed {missing} does not have: it needs another version"
            )
        return f"{place} imports {error.name!r}, which is neither beside it nor installed: pip install {missing}"
    if isinstance(error, SyntaxError):
        where = Path(error.filename or place).name
        return f"{place} imports {where}, which is not valid Python, line {error.lineno}: {error.msg}"
    if (needs := missing_device(error)) is not None:
        return f"{place} could not be imported: {needs}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and frame.filename == str(file)]
    line = f" at line {own[-1].lineno}, `{own[-1].line}`" if own else ""
    if isinstance(error, EOFError):
        return f"{place} asks for input when it is imported{line}; {MAIN_ONLY}"
    message = " ".join(str(error).split())[:300]
    return f"{place} raises {type(error).__name__}{line}{f': {message}' if message else ''}"


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def missing_device(error: BaseException) -> str | None:
    """What to do, if an error says that there is no GPU."""
    text = f"{type(error).__name__}: {error}".lower()
    words = ("not compiled with cuda", "no nvidia driver", "no cuda gpus", "cuda error", "active drivers", "nvcc")
    if not any(word in text for word in words) and not ("triton" in text and "driver" in text):
        return None
    return "it needs a GPU (CUDA), and there is none here; check it where there is one, or follow the inputs' device"
