"""`qkv grade`: points for submissions, by the properties of a rubric."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.check.grading import Grade, Rubric


def grade(
    rubric: str | None = None,
    /,
    *files: str,
    csv: Path | None = None,
    feedback: Path | None = None,
    seed: int | None = None,
    jobs: int = 2,
    seconds: int | None = None,
    fresh: bool = False,
    unsafe: bool = False,
    json: bool = False,
) -> int:
    """Grade student submissions with a rubric. Without FILES, print what students must submit and the points.

    Submissions are Python files, notebooks or zip archives. They run in a sandbox, without network or access to your
    files, with limited time and memory. The grader checks the tensors that they return; it never imports the
    submissions.

    Examples:

        qkv grade                # list the rubrics
        qkv grade cs224n-a5      # what students must submit, and the points
        qkv grade cs224n-a5 submissions/*.zip --csv grades.csv --feedback feedback

    Parameters
    ----------
    rubric
        The name of a rubric that comes with qkv, or your own .toml file. Omit it to list the rubrics.
    files
        The submissions: one .py, .ipynb or .zip file for each student, or directories of such files.
    csv
        Write the grades to this file. If the file exists, only new and changed submissions are graded.
    feedback
        Write a page for each student (Markdown and HTML) and a summary of the class into this directory.
    seed
        Random seed for the inputs. To get the same grades again, pass the seed from the CSV file. Default: a new seed.
    jobs
        How many submissions to grade at the same time.
    seconds
        Time limit for one submission, in seconds. Default: the rubric's limit, or 600.
    fresh
        Grade all submissions again, and ignore the results already stored for this CSV file.
    unsafe
        Run submissions without a sandbox, with your permissions: they can read your files. Use this only where the
        sandbox is not available.
    json
        Print the grades, or the list of rubrics, as JSON.
    """
    if rubric is None:
        return _list_rubrics(json)
    if not files and csv is None and feedback is None and seed is None and seconds is None:
        return _show_rubric(rubric, json)
    import secrets
    from dataclasses import replace

    from qkv._files import write_atomic
    from qkv.check.grading import grade_files, load_rubric
    from qkv.check.grading.client import clean, missing_features
    from qkv.check.grading.feedback import write_feedback
    from qkv.check.grading.journal import Journal, journal_path
    from qkv.check.grading.results import grades_csv, grades_table
    from qkv.check.grading.rubric import find_rubric

    loaded = load_rubric(rubric)
    if seconds is not None and seconds < 1:
        raise ValueError(f"--seconds must be at least 1, got {seconds}")
    if seconds is not None:
        loaded = replace(loaded, limits=replace(loaded.limits, total_seconds=seconds))
    paths = _find_files(files)
    _check_arguments(loaded, paths, csv, feedback, seed, jobs)
    journal = Journal(journal_path(csv), loaded, isolated=not unsafe, fresh=fresh) if csv else None
    seed = (
        seed if seed is not None else (journal.seed if journal and journal.seed is not None else secrets.randbits(62))
    )
    finished = journal.finished(paths, seed) if journal else {}
    if finished:
        err().print(
            f"{len(finished)} of {len(paths)} are unchanged since an earlier call: not graded again", markup=False
        )

    if not unsafe and (missing := missing_features()):
        err().print(
            f"note: this system offers the sandbox no {' and no '.join(missing)} (docs/grading.md)", markup=False
        )

    def progress(grade: "Grade", done: int, count: int) -> None:
        if journal is not None:
            journal.add(grade)
        points = f"{grade.total:g} of {grade.possible:g}" if grade.refused is None else f"not graded: {grade.refused}"
        err().print(f"{done} of {count}: {clean(grade.student)}: {points} ({grade.seconds:.1f} s)", markup=False)

    outputs = [path.absolute() for path in (csv, feedback) if path is not None]
    hidden = [find_rubric(rubric).absolute().parent, *(path.parent for path in outputs), *outputs[1:]]
    grades = grade_files(
        loaded,
        paths,
        seed=seed,
        jobs=jobs,
        isolated=not unsafe,
        hidden=[path for path in hidden if path.is_dir()],
        progress=progress,
        finished=finished,
    )
    try:
        if csv is not None:
            write_atomic(csv, grades_csv(grades, loaded))
        if feedback is not None:
            write_feedback(feedback, grades, loaded)
    finally:  # a full disk must not cost the grades
        if json:
            print_json({"rubric": loaded.name, "seed": grades[0].seed, "grades": [grade.to_dict() for grade in grades]})
        else:
            out().print(grades_table(grades, loaded))
    if feedback is not None:
        err().print(f"wrote the feedback of {len(grades)} students and class-summary.md to {feedback}", markup=False)
    err().print(f"seed {seed}: --seed {seed} gives the same grades again", markup=False)
    if all(each.refused is not None for each in grades):
        err().print("none of the submissions could be graded", markup=False)
        return 1
    return 0


def _find_files(files: Sequence[str]) -> list[Path]:
    """The files named; of a directory, the Python files, notebooks and archives in it."""
    from qkv.check.grading.reading.submission import KINDS

    paths: list[Path] = []
    for path in map(Path, dict.fromkeys(files)):
        if not path.is_symlink() and path.is_dir():
            found = sorted(each for each in path.iterdir() if each.suffix.lower() in KINDS and each.name[0] != ".")
            if not found:
                raise ValueError(f"{path} has no .py, .ipynb or .zip file to grade")
            paths += found
        else:
            paths.append(path)
    return list(dict.fromkeys(paths))


def _check_arguments(
    rubric: "Rubric", paths: Sequence[Path], csv: Path | None, feedback: Path | None, seed: int | None, jobs: int
) -> None:
    from qkv._files import check_writable

    if not paths:
        supplied = " ".join(rubric.signature.split())
        raise ValueError(f"name the submissions: qkv grade {rubric.name} submissions/*.py. Students submit: {supplied}")
    for path in paths:
        if not path.is_symlink() and not path.exists():
            raise ValueError(f"there is no file {path}")
    if csv is not None:
        check_writable(csv)
    if csv is not None and csv.absolute() in [path.absolute() for path in paths]:
        raise ValueError(f"{csv} is one of the submissions: name another file for the grades")
    if feedback is not None and (feedback.is_symlink() or (feedback.exists() and not feedback.is_dir())):
        raise ValueError(f"--feedback must be a directory, and {feedback} is none")
    if feedback is not None and not feedback.absolute().parent.is_dir():
        raise ValueError(f"there is no directory {feedback.absolute().parent} to make {feedback.name} in")
    if feedback is not None and feedback.resolve() in {path.absolute().parent.resolve() for path in paths}:
        raise ValueError(f"{feedback} holds the submissions: name another directory for the feedback")
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if seed is not None and not 0 <= seed < 2**62:
        raise ValueError(f"--seed must be from 0 to 2^62 - 1, got {seed}")


def _list_rubrics(json: bool) -> int:
    """List the rubrics that come with qkv, one line for each."""
    from rich.table import Table
    from rich.text import Text

    from qkv.check.grading import bundled_rubrics, load_rubric

    rubrics = [load_rubric(name) for name in bundled_rubrics()]
    if json:
        print_json([_as_dict(rubric) for rubric in rubrics])
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("rubric", no_wrap=True, min_width=max(len(rubric.name) for rubric in rubrics))
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("title", no_wrap=True, overflow="ellipsis")
    for rubric in rubrics:
        table.add_row(Text(rubric.name), f"{rubric.total:g}", Text(rubric.title))
    out().print(table)
    out().print("To see what students submit, and the points: qkv grade NAME")
    return 0


def _show_rubric(name: str, json: bool) -> int:
    """Print one rubric: what students supply, and the points of each property."""
    from rich.table import Table
    from rich.text import Text

    from qkv.check.grading import load_rubric

    rubric = load_rubric(name)
    if json:
        print_json(_as_dict(rubric))
        return 0
    out().print(Text(f"{rubric.name}: {rubric.title}, {rubric.total:g} points", style="bold"))
    out().print("\nStudents submit:\n")
    out().print(_join_lines(rubric.signature), markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("points", justify="right")
    table.add_column("property")
    for part in rubric.properties:
        table.add_row(f"{part.points:g}", Text(part.name))
    out().print()
    out().print(table)
    out().print(f"\nGrade with it: qkv grade {name} submissions/*.py --csv grades.csv", markup=False)
    return 0


def _join_lines(text: str) -> str:
    """A text without the line breaks inside its sentences, so that the terminal wraps it; code keeps its lines.

    >>> _join_lines("A layer\\nwith heads.\\nAnother.\\n\\n    code()\\n    more()")
    'A layer with heads.\\nAnother.\\n\\n    code()\\n    more()'
    """
    return re.sub(r"(?<=[^.\n])\n(?=[^\s])", " ", text)


def _as_dict(rubric: "Rubric") -> dict[str, object]:
    from qkv.check.grading.rubric import find_rubric

    return {
        "name": rubric.name,
        "title": rubric.title,
        "points": rubric.total,
        "interface": rubric.signature,
        "properties": {part.name: part.points for part in rubric.properties},
        "file": str(find_rubric(rubric.name)),
    }
