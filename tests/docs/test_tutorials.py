"""The README, the tutorials and the docs pages show what the commands print; the notebooks run."""

import doctest
import json
import re
import shutil
import sys
from pathlib import Path

import make_notebooks
import pytest
from page_blocks import commands
from page_shell import Shell

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "docs" / f"{name}.md" for name in ("install", "byhand", "check", "check-adapter", "claims")]
COURSES = sorted((ROOT / "docs" / "courses").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS, *COURSES, *TUTORIALS]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NARROW = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / f"{name}.md" for name in ("found", "grading"))]
OUTPUT_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CELLS = "import json, sys\nhere = {}\nfor cell in json.load(sys.stdin): exec(compile(cell, '<cell>', 'exec'), here)"


@pytest.fixture(scope="module")
def shells(tmp_path_factory):
    """Make shells in a copy of the docs or in an empty folder; one server process runs the commands of all of them."""
    home = tmp_path_factory.mktemp("shell")
    shell = Shell(home, home)

    def make(name: str, *, empty: bool = False) -> Shell:
        shell.folder = tmp_path_factory.mktemp(name)
        if empty:
            return shell
        shutil.copytree(ROOT / "docs", shell.folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", shell.folder)
        return shell

    yield make
    shell.close()


def check_page(page: Path, shell: Shell, *, long: bool) -> None:
    for command in commands(page):
        if command.long and not long:
            continue
        code, printed = shell.run(command.line)
        shown = f"$ {command.line}\n{printed}"
        assert "Traceback" not in printed, shown
        assert code == 0 or command.shown, shown
        assert doctest.OutputChecker().check_output(command.shown, printed, OUTPUT_FLAGS), (
            f"{shown}\n— but —\n{command.shown}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_docs_pages_show_what_quick_commands_print(page, shells):
    check_page(page, shells(page.stem, empty=page in TUTORIALS), long=False)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_docs_pages_show_what_all_commands_print(page, shells):
    check_page(page, shells(page.stem, empty=page in TUTORIALS), long=True)


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS, *TUTORIALS, *NARROW], ids=lambda page: page.stem)
def test_examples_of_a_page_fit_a_terminal_of_80_columns(page):
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []


def code_cells(notebook: Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: Path, shell: Shell, *, long: bool) -> str:
    """Run the code cells in order in one new process, in the notebook's folder; returns what they printed."""
    cells = [("".join(cell["source"]), bool(cell["metadata"].get("tags"))) for cell in code_cells(notebook)]
    chosen = [
        source for source, slow in cells if long or not (slow or "runs/" in source)
    ]  # cells that use a training run are slow too
    (shell.folder / "cells.json").write_text(json.dumps(chosen))
    (shell.folder / "run_cells.py").write_text(CELLS)
    code, printed = shell.run(f"cd docs/tutorials && {sys.executable} ../../run_cells.py < ../../cells.json")
    assert code == 0, printed
    assert "Traceback" not in printed, printed
    return printed


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_made_from_its_page_without_outputs(notebook):
    page = notebook.with_suffix(".md").read_text(encoding="utf-8")
    assert notebook.read_text(encoding="utf-8") == make_notebooks.notebook(page), "python docs/make_notebooks.py"
    assert {cell.stem for cell in NOTEBOOKS} == set(make_notebooks.NAMES)
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code_cells(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_quick_cells_of_a_notebook_run_in_order(notebook, shells):
    assert run_cells(notebook, shells(notebook.stem), long=False).strip()


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_cells_of_a_notebook_run_in_order(notebook, shells):
    assert run_cells(notebook, shells(notebook.stem), long=True).strip()
