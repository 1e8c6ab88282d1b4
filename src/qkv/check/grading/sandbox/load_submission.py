"""Load a submission in its own process: several files that import each other, and notebooks of which only imports and
definitions are executed.

Plotting and logging libraries are replaced by placeholders, and so are libraries that are not installed: what a
placeholder is used for is never graded.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

ROOT = "submission"
FOLDER = "/submission/"
STATEMENT_SECONDS = 2.0
PLOTTING = {
    "matplotlib",
    "seaborn",
    "plotly",
    "wandb",
    "tensorboard",
    "tensorboardX",
    "IPython",
    "google",
    "ipywidgets",
    "tqdm",
}
NOT_INSTALLED = {
    "torchvision", "pandas", "sklearn", "scipy", "torchsummary", "torchinfo", "torchmetrics", "cv2", "timm", "datasets",
    "lightning", "pytorch_lightning", "gdown", "kaggle", "requests", "nltk", "sentencepiece", "torchtext", "torchaudio",
    "docopt", "sacrebleu", "imageio", "skimage", "PIL", "numpy", "yaml", "nbformat",
}  # fmt: skip
SIMPLE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass, ast.Global)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)

labels: dict[str, str] = {}  # of compiled file names, for the places of errors
notes: list[str] = []  # what was not executed, and why
unset: set[str] = set()  # names of statements that failed or were left out


class Placeholder:
    """Stands for anything of a library that is not there: attributes, calls and items give placeholders."""

    def __init__(self, name: str = "placeholder") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        only_function = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Placeholder)
        return args[0] if only_function else Placeholder(f"{self._name}()")  # as a decorator it changes nothing

    def __getitem__(self, key: Any) -> Any:
        return Placeholder(f"{self._name}[…]")

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


class _Bar:
    """A progress bar that shows nothing."""

    write = staticmethod(lambda *args, **kwargs: None)

    def __init__(self, iterable: Any = (), *args: Any, **kwargs: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def __len__(self) -> int:
        return len(self.iterable)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the files of the submission by any end of their dotted path, then the grader's stand-ins."""

    def __init__(self, files: list[dict[str, Any]], stubs: dict[str, str], targets: list[str]) -> None:
        self.targets = targets
        self.files: dict[str, dict[str, Any]] = {}
        self.packages = {ROOT}
        self.loaded: dict[str, ModuleType] = {}
        for file in sorted(files, key=lambda file: file["path"].count("/")):
            parts = file["path"].rsplit(".", 1)[0].replace(" ", "_").split("/")
            parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
            for start in range(len(parts)):
                self.files.setdefault(".".join(parts[start:]), file)
                self.packages |= {".".join(parts[start:end]) for end in range(start + 1, len(parts))}
            self.files[".".join((ROOT, *parts))] = file
            self.packages |= {".".join((ROOT, *parts[:end])) for end in range(1, len(parts))}
        self.stubs = stubs
        self.packages |= _unknown_packages(files, stubs) - {name.split(".")[0] for name in self.files}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname in self.files or fullname in self.packages or self._stub(fullname) is not None:
            is_package = fullname in self.packages
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        return None

    def _stub(self, fullname: str) -> str | None:
        """The stand-in for a module of the starter code: `trainer`, or `src.trainer` where src is a folder."""
        parent, _, name = fullname.rpartition(".")
        is_ours = not parent or parent in self.packages
        return self.stubs.get(name) if is_ours and name not in self.files else None

    def create_module(self, spec: Any) -> ModuleType | None:
        file = self.files.get(spec.name)
        return self.loaded.get(file["path"]) if file is not None else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__spec__.name if module.__spec__ is not None else module.__name__
        file = self.files.get(name)
        if file is None:
            stub = self._stub(name)
            if stub is not None:
                exec(compile(stub, f"<{name}>", "exec"), module.__dict__)
            return
        if file["path"] in self.loaded:
            return
        self.loaded[file["path"]] = module
        folder = ".".join(file["path"].rsplit(".", 1)[0].split("/")[:-1]).replace(" ", "_")
        module.__package__ = f"{ROOT}.{folder}" if folder else ROOT
        module.__file__ = FOLDER + file["path"]
        module.__name__ = name
        execute(file, module.__dict__, self.targets)


def _unknown_packages(files: list[dict[str, Any]], stubs: dict[str, str]) -> set[str]:
    """Packages that are not there, from which a module of the starter code is imported: src of src.trainer."""
    names = "|".join(map(re.escape, stubs))
    text = "\n".join(text for file in files for _, text in file["cells"])
    found = set(re.findall(rf"^\s*(?:from|import)\s+(\w+)\.(?:{names})\b", text, re.MULTILINE)) if stubs else set()
    return {name for name in found if name not in sys.modules and importlib.util.find_spec(name) is None}


class _PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves placeholders for libraries."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".")[0] in self.names or fullname == "torch.utils.tensorboard":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        bars = {"tqdm": _Bar, "trange": lambda *args, **kwargs: _Bar(range(*args))}
        is_bar = spec.name.split(".")[0] == "tqdm"

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return bars.get(name) if is_bar and name in bars else Placeholder(f"{spec.name}.{name}")

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None


def load(source: str, path: str | None, targets: list[str]) -> ModuleType:
    """Load the file of this path (the first one by default) of a packed submission, as a module."""
    package = json.loads(source)
    files = package["files"]
    chosen = next((file for file in files if file["path"] == path), files[0])
    labels.clear()
    notes.clear()
    unset.clear()
    finder = _Finder(files, package["stubs"], targets)
    installed = [_PlaceholderFinder(PLOTTING), finder]
    last = _PlaceholderFinder(NOT_INSTALLED)
    for module in [name for name in sys.modules if name in finder.files or name.split(".")[0] in (ROOT, *PLOTTING)]:
        del sys.modules[module]
    sys.meta_path[:] = [*installed, *(old for old in sys.meta_path if not _is_own(old)), last]
    _label(files)
    parts = chosen["path"].rsplit(".", 1)[0].replace(" ", "_").split("/")
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return importlib.import_module(".".join((ROOT, *parts)))


def _is_own(finder: Any) -> bool:
    return type(finder).__module__ == __name__ and type(finder).__name__ in ("_Finder", "_PlaceholderFinder")


def _label(files: list[dict[str, Any]]) -> None:
    for file in files:
        shown = f"{file['path']}, " if len(files) > 1 else ""
        for number, text in file["cells"]:
            name = _file_name(file, number)
            labels[name] = f"{shown}cell {number}, " if number else shown
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _file_name(file: dict[str, Any], number: int) -> str:
    return f"{FOLDER}{file['path']}" + (f"#{number}" if number else "")


def execute(file: dict[str, Any], namespace: dict[str, Any], targets: list[str]) -> None:
    """Run a file as Python does, or, if it is lenient, its imports and definitions only."""
    if not file["lenient"]:
        ((number, text),) = file["cells"]
        name = _file_name(file, number)
        tree = ast.parse(text, name)
        namespace["_missing_import"] = missing_import
        exec(compile(_without_unneeded_imports(tree, set(targets)), name, "exec", dont_inherit=True), namespace)
        return
    statements: list[tuple[str, ast.stmt]] = []
    for number, text in file["cells"]:
        name = _file_name(file, number)
        try:
            statements += [(name, node) for node in ast.parse(text, name).body]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            notes.append(f"not executed: {place(name, line)}: {type(error).__name__}: {getattr(error, 'msg', error)}")
    if not statements and notes:
        raise SyntaxError(notes[0].removeprefix("not executed: "))
    needed = needed_names([node for _, node in statements], set(targets))
    flags = 0
    for _, node in statements:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            flags |= sum(getattr(__import__("__future__"), alias.name).compiler_flag for alias in node.names)
    for name, node in statements:
        if is_executed(node, needed):
            _run_statement(name, node, namespace, flags)
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id in needed:
            namespace.setdefault(node.target.id, 0)  # a function names the training loop's counter
        elif isinstance(node, ASSIGNMENTS):
            unset.update(assigned_names(node))


def _without_unneeded_imports(tree: ast.Module, targets: set[str]) -> ast.Module:
    """The module, with placeholders for what it imports from files that are not there and that nothing graded uses.

    The starter code of a course imports its other files, which students do not hand in.
    """
    defined = set[str]().union(*(assigned_names(node) for node in tree.body if isinstance(node, DEFINITIONS)))
    if not targets & defined:  # what other files take from this one is not known here
        return tree
    needed = needed_names(tree.body, targets)
    for index, node in enumerate(tree.body):
        if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "module", None) == "__future__":
            continue
        if assigned_names(node) & (needed | {"*"}):
            continue
        names = sorted(assigned_names(node))
        lines = [f"{name} = _missing_import(_error, {node.lineno}, {name!r})" for name in names]
        source = "try:\n pass\nexcept ModuleNotFoundError as _error:\n " + "\n ".join(lines)
        (wrapped,) = ast.parse(source).body
        assert isinstance(wrapped, ast.Try)
        for part in ast.walk(wrapped):
            if hasattr(part, "lineno"):
                ast.copy_location(part, node)
        wrapped.body = [node]
        tree.body[index] = wrapped
    return tree


def missing_import(error: ModuleNotFoundError, line: int, name: str) -> Placeholder:
    """What stands for a name of a module that is not there, with a note."""
    note = f"not imported: line {line}: there is no module {error.name!r}; nothing that is graded uses it"
    if note not in notes:
        notes.append(note)
    return Placeholder(name)


def _run_statement(name: str, node: ast.stmt, namespace: dict[str, Any], flags: int) -> None:
    """Run one statement of a notebook. One that fails is noted: what needs it will say so."""
    try:
        with time_limit(STATEMENT_SECONDS):
            code = compile(ast.Module([node], []), name, "exec", flags=flags, dont_inherit=True)
            exec(code, namespace)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, NameError) else None
        if missing is None or missing not in unset:  # else it follows from a statement that is noted
            lines = str(error).splitlines()
            first = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
            notes.append(f"not executed: {place(name, _line_of(error, name) or node.lineno)}: {first[:200]}")
        unset.update(assigned_names(node))


def _line_of(error: BaseException, name: str) -> int | None:
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return numbers[-1] if numbers else None


def place(name: str, line: int | None) -> str:
    """A place in the submission as the feedback writes it: file, cell, line."""
    return f"{labels.get(name, '')}line {line}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after this time, where signals can be used."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took more than {seconds:g} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def is_executed(node: ast.stmt, needed: set[str]) -> bool:
    """Imports, definitions and constants are; an assignment that calls something only if a definition needs it."""
    if isinstance(node, SIMPLE):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _changes_a_definition(node.value)
    if isinstance(node, ASSIGNMENTS):
        has_call = any(isinstance(part, ast.Call | ast.Await) for part in ast.walk(node))
        return not has_call or bool(assigned_names(node) & needed)
    if isinstance(node, ast.Try):
        return all(is_executed(part, needed) for part in (*node.body, *node.orelse, *node.finalbody))
    if isinstance(node, ast.If):
        asks_main = any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
        return not asks_main and all(is_executed(part, needed) for part in (*node.body, *node.orelse))
    return False


def _changes_a_definition(value: ast.expr) -> bool:
    """setattr(Class, …), or a change of where modules are found: part of a definition."""
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func)
    return name in ("setattr", "sys.path.append", "sys.path.insert", "torch.set_default_dtype")


def assigned_names(node: ast.AST) -> set[str]:
    """The names that a statement binds at module level, the roots of attributes and items included."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    names = set()
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for part in ast.walk(target) if target is not None else ():
            if isinstance(part, ast.Name):
                names.add(part.id)
    for part in ast.iter_child_nodes(node) if isinstance(node, ast.If | ast.Try) else ():
        names |= assigned_names(part)
    return names


def needed_names(statements: list[ast.stmt], targets: set[str]) -> set[str]:
    """The names that the definitions of the targets use, directly or through other statements."""
    bound = [(assigned_names(node), node) for node in statements]
    needed, previous = set(targets), set[str]()
    while needed != previous:
        previous = set(needed)
        for names, node in bound:
            if names & needed and not isinstance(node, ast.Import | ast.ImportFrom):
                needed |= used_names(node)
    return needed


def used_names(node: ast.AST) -> set[str]:
    """The names that a statement takes from outside: without the arguments and variables of its functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        local = {each.arg for each in every if each is not None}
        body = node.body if isinstance(node.body, list) else [node.body]
        parts = [part for each in body for part in ast.walk(each)]
        shared = {name for part in parts if isinstance(part, ast.Global) for name in part.names}
        stored = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        used = set().union(*(used_names(each) for each in body)) - (local | stored - shared)
        outside = [*arguments.defaults, *arguments.kw_defaults, *getattr(node, "decorator_list", ())]
        outside += [each.annotation for each in every if each is not None]
        return used.union(*(used_names(each) for each in outside if each is not None))
    if isinstance(node, ast.Name):
        return {node.id}
    return set().union(*(used_names(child) for child in ast.iter_child_nodes(node)))
