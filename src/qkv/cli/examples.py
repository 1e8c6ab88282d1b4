"""`qkv examples`: the example files of the tutorials, listed and copied from the installed package."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from qkv.cli.console import out, print_json

# file or folder: what it is, and whose tutorial uses it
EXAMPLES = {
    "student.py": "causal self-attention with two bugs (student)",
    "student_fixed.py": "the same layer with both bugs fixed",
    "answer.toml": "a hand calculation with one mistake (student, teacher)",
    "submissions": "five submissions to grade (teacher)",
    "rope_rubric.toml": "a rubric with its own points (teacher)",
    "rope": "two submissions for that rubric",
    "kernel.py": "attention computed block by block, as in fused kernels (engineer)",
    "adapters": "code that qkv check can call only through an adapter",
    "small.toml": "the settings of a small training run (researcher)",
    "nanogpt_style.py": "a script with its own Dataset, model and loss, trained with qkv",
    "induction.py": "train a small model in seconds and find its induction heads",
}


def examples(folder: Path | None = None, /, *, force: bool = False, json: bool = False) -> int:
    """List the tutorials' example files, or copy them into a folder.

    Examples:

        qkv examples
        qkv examples .
        qkv examples my-folder --force

    Parameters
    ----------
    folder
        The folder to copy the files into; it is created if it does not exist. Omit it to list the files.
    force
        Overwrite existing files that differ.
    json
        Print the list as JSON.
    """
    source = examples_folder()
    files = sorted(path.relative_to(source) for name in EXAMPLES for path in _files(source / name))
    if folder is not None:
        _copy(source, files, folder, force=force)
    if json:
        print_json({"folder": None if folder is None else str(folder), "files": [path.as_posix() for path in files]})
    elif folder is not None:
        out().print(Text(f"copied {len(files)} example files to {'this folder' if folder == Path() else folder}"))
    else:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, summary in EXAMPLES.items():
            table.add_row(Text(f"{name}/" if (source / name).is_dir() else name), Text(summary))
        out().print(table)
        out().print("\n`qkv examples .` copies these files into the current folder.", markup=False)
    return 0


def examples_folder() -> Path:
    """The folder of the example files: in the installed package, or docs/examples of the checkout."""
    package = Path(__file__).parents[1]
    places = (package / "examples", package.parents[1] / "docs" / "examples")
    for place in places:
        if place.is_dir():
            return place
    raise ValueError("this installation of qkv has no example files; install the wheel, or use a whole checkout")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def _copy(source: Path, files: list[Path], target: Path, *, force: bool) -> None:
    """Copy the files; those that are already there and differ are kept, and nothing is copied, unless forced."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; expected a folder to copy the examples into")
    changed = [
        path
        for path in files
        if (target / path).exists() and (target / path).read_bytes() != (source / path).read_bytes()
    ]
    if changed and not force:
        raise ValueError(f"{target / changed[0]} differs from the example; choose another folder, or add --force")
    for path in files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes((source / path).read_bytes())
