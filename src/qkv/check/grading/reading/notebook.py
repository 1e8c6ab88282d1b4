"""Notebooks as Python cells: magics and shell commands are blanked, so that line numbers stay those of the cell."""

from __future__ import annotations

import json
import re
from typing import Any

from qkv.check.grading.reading.submission import MAX_FILE_BYTES, Cell, RefusedError, SourceFile, Submission

OTHER_LANGUAGES = {
    "bash",
    "sh",
    "script",
    "html",
    "javascript",
    "js",
    "latex",
    "markdown",
    "svg",
    "perl",
    "ruby",
    "cmd",
}
MAX_VALUES = 2_000_000  # of the JSON: each takes up to a hundred times its bytes in memory
ASSIGNED_MAGIC = re.compile(r"^([\w., \t]+=[ \t]*)[!%].*$")
TRIPLE_QUOTES = re.compile(r'"""|\'\'\'|#')


def parse_notebook(content: bytes, path: str) -> Submission:
    """The code cells of a notebook; raises RefusedError if it is no notebook, or has no Python code."""
    if sum(content.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise RefusedError(f"its JSON has more than {MAX_VALUES} values: clear the outputs and save it again")
    try:
        table = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RefusedError("it is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise RefusedError(
            f"it is not a valid notebook: the JSON cannot be read{where}; save it again in Jupyter or Colab"
        ) from None
    cells = _cell_entries(table)
    language = _language(table)
    if language not in ("", "python", "ipython"):
        raise RefusedError(f"it is a notebook in {language[:30]!r}; expected Python")
    sources = {
        number: _source(entry)
        for number, entry in enumerate(cells, 1)
        if isinstance(entry, dict) and entry.get("cell_type") == "code"
    }
    if sum(map(len, sources.values())) > MAX_FILE_BYTES:
        raise RefusedError(f"its code has more than {MAX_FILE_BYTES} characters")
    code: list[Cell] = []
    written: list[SourceFile] = []
    for number, text in sources.items():
        name, source = strip_magics(text)
        if name is not None:
            written.append(SourceFile(name, (Cell(number, source),), is_notebook=True, lenient=True))
        elif source.strip():
            code.append(Cell(number, source))
    if not code and not written:
        raise RefusedError("the notebook has no code cells" if cells else "the notebook is empty: it has no cells")
    file = SourceFile(path, tuple(code), is_notebook=True, lenient=True)
    return Submission((file, *written))


def _cell_entries(table: Any) -> list[Any]:
    if not isinstance(table, dict):
        raise RefusedError("it is not a notebook: expected a JSON object with cells")
    cells = table.get("cells")
    if cells is None and isinstance(table.get("worksheets"), list):  # format 3
        sheets = [sheet for sheet in table["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets for cell in sheet.get("cells", []) if isinstance(sheet.get("cells"), list)]
    if not isinstance(cells, list):
        raise RefusedError("it is not a notebook: expected a JSON object with cells")
    return cells


def _language(table: dict[str, Any]) -> str:
    about = table.get("metadata")
    about = about if isinstance(about, dict) else {}
    for key, inner in (("language_info", "name"), ("kernelspec", "language")):
        entry = about.get(key)
        if isinstance(entry, dict) and isinstance(entry.get(inner), str):
            return entry[inner].lower()
    return ""


def _source(entry: dict[str, Any]) -> str:
    source = entry.get("source", entry.get("input", ""))
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    return source.replace("\r\n", "\n").replace("\0", "") if isinstance(source, str) else ""


def strip_magics(source: str) -> tuple[str | None, str]:
    """The Python of a cell, line by line, and the file name if the cell only writes a module (%%writefile).

    >>> strip_magics("%matplotlib inline\\nx = !ls\\ny = 1\\n!pip install \\\\\\n  einops")[1]
    '\\nx = None\\ny = 1\\n\\n'
    >>> strip_magics("%%writefile model.py\\nx = 1")
    ('model.py', '\\nx = 1')
    """
    lines = source.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    head = lines[first].strip() if lines else ""
    if head.startswith("%%"):
        words = head[2:].split() or [""]
        if words[0] in ("writefile", "file") and words[-1].endswith(".py"):
            return words[-1].lstrip("./"), "\n".join(["", *lines[first + 1 :]])
        if words[0].lower() in OTHER_LANGUAGES or words[0] == "writefile":
            return None, ""
        lines[first] = ""
    kept, continued, quotes = [], False, None
    for line in lines:
        if continued:
            continued = line.rstrip().endswith("\\")
            kept.append("")
            continue
        text = line.strip()
        if quotes is None and re.match(r"([!?]|%\w|%\s+\w)", text):
            continued = text.endswith("\\")
            indent = line[: len(line) - len(line.lstrip())]
            kept.append(f"{indent}pass" if indent else "")
        elif quotes is None and (text.endswith("?") and re.fullmatch(r"[\w.]+\?{1,2}", text)):
            kept.append("")
        elif quotes is None and (assigned := ASSIGNED_MAGIC.match(line)) is not None:
            kept.append(f"{assigned[1]}None")
        else:
            kept.append(line)
        quotes = _open_quotes(line, quotes)
    return None, "\n".join(kept)


def _open_quotes(line: str, quotes: str | None) -> str | None:
    """Which triple quotes are open after this line: in a docstring a line that begins with % is text."""
    position = 0
    while (found := TRIPLE_QUOTES.search(line, position)) is not None:
        if found[0] == "#" and quotes is None:
            break
        if found[0] != "#":
            quotes = None if quotes == found[0] else (quotes or found[0])
        position = found.end()
    return quotes
