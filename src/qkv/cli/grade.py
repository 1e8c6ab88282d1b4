"""`qkv grade`: points for submissions, by the properties of a rubric."""

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
    seed: int | None = None,
    jobs: int = 2,
    unsafe: bool = False,
    json: bool = False,
) -> int:
    """Grade submissions by the points of a rubric. Omit RUBRIC to list the rubrics that come with qkv.

    Submissions run in a sandbox: no network, no files, limited time and memory. The grader, which never imports them,
    judges the tensors that they return.

    Examples:

        qkv grade
        qkv grade causal-self-attention submissions/*.py --csv grades.csv

    Parameters
    ----------
    rubric
        A .toml file, or the name of a rubric that comes with qkv.
    files
        The submissions, one Python file for each student.
    csv
        Write the grades to this file.
    seed
        Draw the inputs of an earlier grading again; by default they are fresh.
    jobs
        How many submissions are graded at once.
    unsafe
        Run submissions with your own privileges where this system allows no sandbox.
    json
        Print the grades, or the list of rubrics, as JSON.
    """
    if rubric is None:
        return _list_rubrics(json)
    from qkv._files import write_atomic
    from qkv.check.grading import grade_files, load_rubric
    from qkv.check.grading.client import clean
    from qkv.check.grading.grade import grades_csv, grades_table
    from qkv.check.grading.rubric import find_rubric

    loaded = load_rubric(rubric)
    paths = [Path(file) for file in dict.fromkeys(files)]
    _check_arguments(loaded, paths, csv, seed, jobs)

    def progress(grade: "Grade", done: int, count: int) -> None:
        points = f"{grade.total:g} of {grade.possible:g}"
        err().print(f"{done} of {count}: {clean(grade.student)}: {points}", markup=False)

    hidden = [find_rubric(rubric).absolute().parent, *([csv.absolute().parent] if csv else [])]
    grades = grade_files(loaded, paths, seed=seed, jobs=jobs, isolated=not unsafe, hidden=hidden, progress=progress)
    try:
        if csv is not None:
            write_atomic(csv, grades_csv(grades, loaded))
    finally:  # a full disk must not cost the grades
        if json:
            print_json({"rubric": loaded.name, "seed": grades[0].seed, "grades": [grade.to_dict() for grade in grades]})
        else:
            out().print(grades_table(grades, loaded))
    err().print(f"seed {grades[0].seed}: --seed {grades[0].seed} gives the same grades again", markup=False)
    return 0


def _check_arguments(rubric: "Rubric", paths: Sequence[Path], csv: Path | None, seed: int | None, jobs: int) -> None:
    from qkv._files import check_writable

    if not paths:
        supplied = " ".join(rubric.interface.signature.split())
        raise ValueError(f"name the submissions: qkv grade {rubric.name} submissions/*.py. Students supply: {supplied}")
    for path in paths:
        if not path.is_symlink() and not path.exists():
            raise ValueError(f"there is no file {path}")
        if path.is_dir():
            raise ValueError(f"{path} is a directory; name the files in it: {path}/*.py")
    if csv is not None:
        check_writable(csv)
    if csv is not None and csv.absolute() in [path.absolute() for path in paths]:
        raise ValueError(f"{csv} is one of the submissions: name another file for the grades")
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if seed is not None and not 0 <= seed < 2**62:
        raise ValueError(f"--seed must be from 0 to 2^62 - 1, got {seed}")


def _list_rubrics(json: bool) -> int:
    """List the rubrics that come with qkv, with what a student supplies."""
    from qkv.check.grading import bundled_rubrics, load_rubric

    rubrics = [load_rubric(name) for name in bundled_rubrics()]
    if json:
        print_json(
            [
                {
                    "name": rubric.name,
                    "title": rubric.title,
                    "points": rubric.total,
                    "interface": rubric.interface.signature,
                    "properties": {part.name: part.points for part in rubric.properties},
                    "file": str(bundled_rubrics()[rubric.name]),
                }
                for rubric in rubrics
            ]
        )
        return 0
    for rubric in rubrics:
        out().print(f"{rubric.name}: {rubric.title}, {rubric.total:g} points", markup=False, style="bold")
        out().print(rubric.interface.signature, markup=False)
        parts = ", ".join(f"{part.name} {part.points:g}" for part in rubric.properties)
        out().print(f"points: {parts}\n", markup=False, style="dim")
    return 0
