"""The API reference of the documentation site, made from signatures and docstrings, one page per module.

The source is parsed, not imported: a name is followed through `from … import` to the file that defines it.
"""

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src"
MODULES = (
    *("qkv", "qkv.masks", "qkv.positions", "qkv.nn", "qkv.models", "qkv.checkpoints", "qkv.training", "qkv.interp"),
    *("qkv.check", "qkv.claims", "qkv.byhand"),
)
INTRODUCTION = """\
# Reference

Every public name with its signature, description and example. `help(qkv.attention)` shows the same in Python;
[data](../data.md) describes `qkv.data`, whose modules are imported by their own names.
"""
MAX_WIDTH = 110
TYPED_DEFAULT = re.compile(r"^(\w+: [^=]*[^= ])=(?=\S)")  # a default after a type is written between spaces
ARGUMENT = re.compile(r"\w+((, | and )\w+)*: ")
SECTION = re.compile(r"(Args|Returns|Raises|Shapes|Yields):$")
EXAMPLE = re.compile(r"^ *>>> (?:.+\n)+", re.MULTILINE)
EXAMPLE_OPTION = re.compile(r" *# doctest: .*$", re.MULTILINE)
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def pages() -> dict[str, str]:
    """The pages by file name: an overview, and one page for each module."""
    overview = INTRODUCTION
    found = {}
    for module in MODULES:
        tree = _parse(module)
        summary = _one_line((ast.get_docstring(tree) or "").split("\n\n")[0])
        names = sorted((name for name in _public_names(tree) if not _is_submodule(module, name)), key=str.lower)
        found[f"{module}.md"] = f"# {module}\n\n{summary}\n" + "".join(_entry(module, name) for name in names)
        links = ", ".join(f"[{name}]({module}.md#{_anchor(module, name)})" for name in names)
        overview += f"\n## [{module}]({module}.md)\n\n{summary}\n\n{links}\n"
    return {"index.md": overview, **found}


def _anchor(module: str, name: str) -> str:
    return f"{module}{name}".replace(".", "").lower()


def _entry(module: str, name: str) -> str:
    definition = _find_definition(module, name)
    if definition is None:
        raise ValueError(f"{module} has {name} in __all__, but does not define or import it")
    heading = f"\n## {name} {{#{_anchor(module, name)}}}\n\n"
    if isinstance(definition, ast.FunctionDef):
        return f"{heading}```python\n{_function_signature(definition, name)}\n```\n\n{_description(definition)}"
    if isinstance(definition, ast.ClassDef):
        methods = "".join(f"- `{line}`: {summary}\n" for line, summary in _methods(definition))
        text = f"{heading}```python\n{_class_signature(definition)}\n```\n\n{_description(definition)}"
        return f"{text}\n{methods}" if methods else text
    value = ast.unparse(definition.value) if definition.value else ""
    kind = f": {ast.unparse(definition.annotation)}" if isinstance(definition, ast.AnnAssign) else f" = {value}"
    return f"{heading}`{name}{kind if len(kind) <= MAX_WIDTH else ''}`\n"


def _description(definition: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring as markdown, its examples as code."""
    docstring = ast.get_docstring(definition) or ""
    text, *_ = re.split(r"\n*^(?:>>>|Examples?:)", docstring, maxsplit=1, flags=re.MULTILINE)
    formatted = "\n\n".join(map(_format_paragraph, text.rstrip().split("\n\n"))) + "\n" if text else ""
    examples = [EXAMPLE_OPTION.sub("", each.strip("\n")) for each in EXAMPLE.findall(docstring + "\n")]
    return formatted + "".join(f"\n```pycon\n{each}\n```\n" for each in examples)


def _format_paragraph(paragraph: str) -> str:
    """A paragraph of `name: …` lines, with or without the heading Args:, as a list; any other unchanged.

    >>> print(_format_paragraph("scale: multiplies q·k;\\nd^-½ if not given.\\nhard: all weight on the best key."))
    - scale: multiplies q·k;
      d^-½ if not given.
    - hard: all weight on the best key.
    >>> print(_format_paragraph("Args:\\n    mask: True = attend.\\nReturns:\\n    The output."))
    - mask: True = attend.
    <BLANKLINE>
    Returns: The output.
    """
    sections: list[list[str]] = [[]]
    for line in paragraph.split("\n"):
        if SECTION.match(line):
            sections.append([line])
        else:
            sections[-1].append(line)
    return "\n\n".join(_format_section(lines) for lines in sections if lines)


def _format_section(lines: list[str]) -> str:
    heading = lines[0] if SECTION.match(lines[0]) else ""
    if heading:
        indent = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
        lines = [line[indent:] for line in lines[1:]]
    if heading not in ("", "Args:"):
        return f"{heading} {_one_line(' '.join(lines))}"
    if not lines or not ARGUMENT.match(lines[0]):
        return "\n".join(lines)
    return "\n".join(f"- {line}" if ARGUMENT.match(line) else f"  {re.sub('^ {0,4}', '', line)}" for line in lines)


def _methods(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The public methods and properties that have a docstring, with its first paragraph."""
    for each in definition.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_") and ast.get_docstring(each):
            is_property = any(ast.unparse(mark).endswith("property") for mark in each.decorator_list)
            line = each.name if is_property else f"{each.name}({_arguments(each, drop_first=True, typed=False)})"
            yield line, _one_line((ast.get_docstring(each) or "").split("\n\n")[0].split(">>>")[0])


def _class_signature(definition: ast.ClassDef) -> str:
    """The parameters of __init__, or the fields of a dataclass."""
    for each in definition.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return _wrap_signature(definition.name, _arguments(each, drop_first=True), "")
    if any("dataclass" in ast.unparse(mark) for mark in definition.decorator_list):
        fields = [ast.unparse(each) for each in definition.body if isinstance(each, ast.AnnAssign)]
        return _wrap_signature(definition.name, ", ".join(fields), "")
    bases = ", ".join(ast.unparse(base) for base in definition.bases)
    return f"class {definition.name}" + (f"({bases})" if bases else "")


def _function_signature(definition: ast.FunctionDef, name: str) -> str:
    returns = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    return _wrap_signature(name, _arguments(definition), returns)


def _arguments(definition: ast.FunctionDef, *, drop_first: bool = False, typed: bool = True) -> str:
    arguments = deepcopy(definition.args)
    is_static = any(ast.unparse(mark) == "staticmethod" for mark in definition.decorator_list)
    if drop_first and not is_static:
        arguments.args = arguments.args[1:]
    for each in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None and not typed:
            each.annotation = None
    return ast.unparse(arguments)


def _wrap_signature(name: str, arguments: str, returns: str) -> str:
    """On one line if it fits, otherwise one argument a line."""
    parts = [TYPED_DEFAULT.sub(r"\1 = ", part) for part in _split_arguments(arguments)]
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= MAX_WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _split_arguments(arguments: str) -> list[str]:
    """
    >>> _split_arguments("q: Tensor, shape: tuple[int, int]=(1, 2), *, causal: bool=False")
    ['q: Tensor', 'shape: tuple[int, int]=(1, 2)', '*', 'causal: bool=False']
    """
    parts, depth, quote = [""], 0, ""
    for sign in arguments:
        quote = "" if sign == quote else quote or (sign if sign in "'\"" else "")
        depth += 0 if quote else (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _one_line(text: str) -> str:
    return " ".join(text.split())


@cache
def _parse(module: str) -> ast.Module:
    path = SOURCE / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _public_names(tree: ast.Module) -> list[str]:
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return ast.literal_eval(each.value)
    raise ValueError("a public module lists its names in __all__")


def _is_submodule(module: str, name: str) -> bool:
    path = SOURCE / Path(*module.split(".")) / name
    return path.is_dir() or (path.with_suffix(".py").is_file() and _find_definition(module, name) is None)


def _find_definition(module: str, name: str) -> Definition | None:
    """The definition of a name, wherever it is imported from."""
    found = None
    for each in _statements(_parse(module)):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name:
            found = each  # the last one: overloads come before it
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            found = each if isinstance(target, ast.Name) and target.id == name else found
        elif isinstance(each, ast.ImportFrom) and each.module != module and (each.module or "").startswith("qkv."):
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    found = _find_definition(str(each.module), alias.name)
    return found


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for each in tree.body:
        yield from each.body if isinstance(each, ast.If) else [each]  # if TYPE_CHECKING
