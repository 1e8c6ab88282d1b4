"""Write the notebooks of the docs: python docs/make_notebooks.py

Those of docs/tutorials come from markdown pages: prose becomes markdown cells, a command after `$ ` a call of `shell`,
and Python after `>>>` its source; outputs are left out. docs/courses/nyu-hw4.ipynb comes from a script whose cells
begin with `# %%`. Its cells are run: they show the run that the script saves, if it is beside it (nyu-hw4-run.json),
and else no epochs.
"""

import base64
import contextlib
import doctest
import io
import json
import os
import re
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
NAMES = ("researcher", "student")
COURSES = Path(__file__).parent / "courses"
SCRIPTS = {"vit_cifar100.py": "nyu-hw4.ipynb"}
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)
BLOCK = re.compile(r"^(<!-- long -->\n)?```(console|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SETUP = '''\
import os, shutil, subprocess, sys
from pathlib import Path

FOLDER = Path("qkv-tutorial").resolve()  # the commands write files
if Path.cwd().name != FOLDER.name:
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)
if shutil.which("qkv") is None:  # use this Python's own
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def shell(line):
    """Run a command line and print its output."""
    done = subprocess.run(line, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
'''


def notebook(page: str) -> str:
    """The notebook of a page, as JSON."""
    cells, place = [], 0
    for block in BLOCK.finditer(page):
        cells += _markdown_cells(page[place : block.start()])
        if len(cells) == 1:
            cells.append(_code_cell(SETUP))
        cells.append(
            _code_cell(
                _shell_calls(block[3]) if block[2] == "console" else _python_source(block[3]), long=bool(block[1])
            )
        )
        place = block.end()
    cells += _markdown_cells(page[place:])
    return _describe(cells)


def notebook_of_script(script: str) -> str:
    """The notebook of a script, as JSON; what stands before its first cell is left out."""
    parts, cells = CELL.split(script), []
    for markdown, text in zip(parts[1::2], parts[2::2], strict=True):
        if markdown:
            prose = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines())
            cells += _markdown_cells(prose)
        else:
            cells.append(_code_cell(text))
    return _describe(cells)


def with_outputs(notebook: str, record: Path) -> str:
    """The notebook with what its cells print, and the figure: of a saved run, or of no epochs if there is none."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    made, here = json.loads(notebook), {"__name__": "__main__"}
    done = len(json.loads(record.read_text(encoding="utf-8"))["epochs"]) if record.exists() else 0
    os.environ.update(RUN=str(record), EPOCHS=str(done))
    code = (cell for cell in made["cells"] if cell["cell_type"] == "code")
    for count, cell in enumerate(code, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"<cell {count}>", "exec"), here)
        cell["execution_count"] = count
        if text := printed.getvalue():
            lines = text.splitlines(keepends=True)
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": lines})
        if pyplot.get_fignums():
            picture = io.BytesIO()
            pyplot.savefig(picture, format="png", metadata={"Software": None})
            pyplot.close("all")
            image = base64.b64encode(picture.getvalue()).decode()
            cell["outputs"].append({"data": {"image/png": image}, "metadata": {}, "output_type": "display_data"})
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _describe(cells: list[dict[str, Any]]) -> str:
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    described = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(described, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _markdown_cells(text: str) -> list[dict[str, Any]]:
    text = text.strip()
    return [{"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}] if text else []


def _code_cell(text: str, *, long: bool = False) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": ["long"]} if long else {},
        "outputs": [],
        "source": text.strip().splitlines(keepends=True),
    }


def _shell_calls(block: str) -> str:
    """
    >>> print(_shell_calls("$ qkv runs\\nno runs\\n$ qkv doctor\\n"))
    shell("qkv runs")
    shell("qkv doctor")
    >>> _shell_calls("$ qkv train \\\\\\n    --show\\n")
    'shell("qkv train --show")'
    """
    lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    joined = (re.sub(r" *\\\n *", " ", line) for line in lines)
    return "\n".join(f"shell({_quote(line)})" for line in joined)


def _quote(line: str) -> str:
    return repr(line) if '"' in line else f'"{line}"'


def _python_source(block: str) -> str:
    """
    >>> print(_python_source(">>> a = 1\\n>>> a + 1\\n2\\n"))
    a = 1
    a + 1
    """
    return "".join(example.source for example in doctest.DocTestParser().get_examples(block)).rstrip()


def main() -> None:
    for name in NAMES:
        page = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
        (TUTORIALS / f"{name}.ipynb").write_text(notebook(page), encoding="utf-8")
    for script, name in SCRIPTS.items():
        made = notebook_of_script((COURSES / script).read_text(encoding="utf-8"))
        record = COURSES / f"{Path(name).stem}-run.json"
        (COURSES / name).write_text(with_outputs(made, record), encoding="utf-8")


if __name__ == "__main__":
    main()
