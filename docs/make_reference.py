"""Writes docs/reference.md from signatures and docstrings: python docs/make_reference.py

Source is read, not imported: a name is followed through `from … import` to the file that defines it.
"""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
DOORS = ("qkv", "qkv.masks", "qkv.positions", "qkv.nn", "qkv.models", "qkv.checkpoints", "qkv.interp", "qkv.training")
ROOMS = ("qkv.training.recipes", "qkv.interp", "qkv.check", "qkv.claims", "qkv.byhand")
HEAD = """\
# Reference

Every public name: its signature, and what it says of itself; floors first, rooms after. `python docs/make_reference.py`
writes this page from the source, and the test command compares. `help(qkv.attention)` tells more, with examples;
[data.md](data.md) tells of `qkv.data`, whose modules are called by their own names.
"""
WIDTH = 110
TYPED = re.compile(r"^(\w+: [^=]*[^= ])=(?=\S)")  # a default after a type stands between spaces
ARGUMENT = re.compile(r"\w+((, | and )\w+)*: ")
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def reference() -> str:
    """The whole page."""
    return HEAD + "".join(_section(door) for door in (*DOORS, *ROOMS))


def _section(door: str) -> str:
    tree = _tree(door)
    about = (ast.get_docstring(tree) or "").split("\n\n")[0]
    names = [name for name in _public(tree) if _is_defined(door, name)]
    return f"\n## {door}\n\n{_joined(about)}\n" + "".join(_entry(door, name) for name in sorted(names, key=str.lower))


def _entry(door: str, name: str) -> str:
    found = _definition(door, name)
    if isinstance(found, ast.FunctionDef):
        return f"\n### {door}.{name}\n\n```python\n{_signature(found, name)}\n```\n\n{_told(found)}"
    if isinstance(found, ast.ClassDef):
        methods = "".join(f"- `{line}`: {said}\n" for line, said in _methods(found))
        return f"\n### {door}.{name}\n\n```python\n{_made_by(found)}\n```\n\n{_told(found)}" + (
            f"\n{methods}" if methods else ""
        )
    value = ast.unparse(found.value) if found.value else ""
    kind = f": {ast.unparse(found.annotation)}" if isinstance(found, ast.AnnAssign) else f" = {value}"
    return f"\n### {door}.{name}\n\n`{name}{kind if len(kind) <= WIDTH else ''}`\n"


def _told(found: ast.FunctionDef | ast.ClassDef) -> str:
    """What a docstring says before its examples."""
    said = (ast.get_docstring(found) or "").split("\n\n>>>")[0].split("\n>>>")[0]
    return "" if said.startswith(">>>") else "\n\n".join(map(_listed, said.rstrip().split("\n\n"))) + "\n"


def _listed(paragraph: str) -> str:
    """A paragraph of `name: …` lines as a list; any other as it is.

    >>> print(_listed("beta: multiplies q·k;\\nd^-½ if not given.\\nhard: all on the best key."))
    - beta: multiplies q·k;
      d^-½ if not given.
    - hard: all on the best key.
    """
    if not ARGUMENT.match(paragraph):
        return paragraph
    return "\n".join(f"- {line}" if ARGUMENT.match(line) else f"  {line}" for line in paragraph.split("\n"))


def _methods(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in found.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and ast.get_docstring(each):
            is_property = any(ast.unparse(mark).endswith("property") for mark in each.decorator_list)
            line = each.name if is_property else f"{each.name}({_arguments(each, drop_first=True, typed=False)})"
            yield line, _joined((ast.get_docstring(each) or "").split("\n\n")[0].split(">>>")[0])


def _made_by(found: ast.ClassDef) -> str:
    """How an object is made: by its __init__, or by the fields of a dataclass."""
    for each in found.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return _fitted(found.name, _arguments(each, drop_first=True), "")
    fields = [ast.unparse(each) for each in found.body if isinstance(each, ast.AnnAssign)]
    is_data = any("dataclass" in ast.unparse(mark) for mark in found.decorator_list)
    bases = ", ".join(ast.unparse(base) for base in found.bases)
    return (
        _fitted(found.name, ", ".join(fields), "")
        if is_data
        else f"class {found.name}" + (f"({bases})" if bases else "")
    )


def _signature(found: ast.FunctionDef, name: str) -> str:
    returned = f" -> {ast.unparse(found.returns)}" if found.returns else ""
    return _fitted(name, _arguments(found), returned)


def _arguments(found: ast.FunctionDef, *, drop_first: bool = False, typed: bool = True) -> str:
    arguments = deepcopy(found.args)
    is_static = any(ast.unparse(mark) == "staticmethod" for mark in found.decorator_list)
    if drop_first and not is_static:
        arguments.args = arguments.args[1:]
    for each in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None and not typed:
            each.annotation = None
    return ast.unparse(arguments)


def _fitted(name: str, arguments: str, returned: str) -> str:
    """On one line if it fits, otherwise an argument a line."""
    parts = [TYPED.sub(r"\1 = ", part) for part in _parts(arguments)]
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _parts(arguments: str) -> list[str]:
    """
    >>> _parts("q: Tensor, shape: tuple[int, int]=(1, 2), *, causal: bool=False")
    ['q: Tensor', 'shape: tuple[int, int]=(1, 2)', '*', 'causal: bool=False']
    """
    parts, depth, quoted = [""], 0, ""
    for sign in arguments:
        quoted = "" if sign == quoted else quoted or (sign if sign in "'\"" else "")
        depth += 0 if quoted else (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _joined(text: str) -> str:
    return " ".join(text.split())


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCE / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _public(tree: ast.Module) -> list[str]:
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return ast.literal_eval(each.value)
    raise ValueError("a door names what is public in __all__")


def _is_defined(module: str, name: str) -> bool:
    return not (SOURCE / Path(*module.split(".")) / name).is_dir() and not _is_module(module, name)


def _is_module(module: str, name: str) -> bool:
    return (SOURCE / Path(*module.split(".")) / f"{name}.py").is_file() and _found(module, name) is None


def _definition(module: str, name: str) -> Definition:
    found = _found(module, name)
    if found is None:
        raise ValueError(f"{module} says that {name} is public, but does not define or import it")
    return found


def _found(module: str, name: str) -> Definition | None:
    """The definition of a name, wherever it is imported from."""
    found = None
    for each in _statements(_tree(module)):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name:
            found = each  # the last: overloads come before it
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            found = each if isinstance(target, ast.Name) and target.id == name else found
        elif isinstance(each, ast.ImportFrom) and each.module != module and (each.module or "").startswith("qkv."):
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    found = _found(str(each.module), alias.name)
    return found


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for each in tree.body:
        yield from each.body if isinstance(each, ast.If) else [each]  # if TYPE_CHECKING


def main() -> None:
    (DOCS / "reference.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
