"""`qkv check --rubric`: points for submissions, by property."""

from collections.abc import Sequence
from pathlib import Path

from qkv.cli.console import err, out, print_json


def grade_submissions(
    rubric: str,
    files: Sequence[str],
    *,
    csv: Path | None,
    json: bool,
    seed: int | None,
    jobs: int,
    unsafe: bool,
) -> int:
    """Grade the files; results to stdout, progress to stderr."""
    from qkv._files import write_whole
    from qkv.check.grading.batch import grade_all
    from qkv.check.grading.grading import Grade
    from qkv.check.grading.remote import clean
    from qkv.check.grading.rubric import find_rubric, load_rubric
    from qkv.check.grading.writing import as_csv, number, table

    loaded = load_rubric(rubric)
    paths = [Path(file) for file in dict.fromkeys(files)]
    _usable(paths, csv, seed, jobs, loaded.interface.signature)

    def progress(grade: Grade, done: int, count: int) -> None:
        points = f"{number(grade.total)} of {number(grade.possible)}"
        err().print(f"{done} of {count}: {clean(grade.student)}: {points}", markup=False)

    hidden = [find_rubric(rubric).absolute().parent, *([csv.absolute().parent] if csv else [])]
    grades = grade_all(loaded, paths, seed=seed, jobs=jobs, walls=not unsafe, hidden=hidden, progress=progress)
    if csv is not None:
        write_whole(csv, as_csv(grades, loaded))
    if json:
        print_json({"rubric": loaded.name, "seed": grades[0].seed, "grades": [grade.as_dict() for grade in grades]})
    else:
        out().print(table(grades, loaded))
    err().print(f"seed {grades[0].seed}: the same grades come with --seed {grades[0].seed}", markup=False)
    return 0


def _usable(paths: Sequence[Path], csv: Path | None, seed: int | None, jobs: int, signature: str) -> None:
    if not paths:
        supplied = " ".join(signature.split())
        raise ValueError(f"name the submissions: qkv check --rubric … submissions/*.py. Students supply: {supplied}")
    for path in paths:
        if not path.is_symlink() and not path.exists():
            raise ValueError(f"there is no file {path}")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; name the files in it: {path}/*.py")
    if csv is not None and (not csv.absolute().parent.is_dir() or csv.is_dir()):
        raise ValueError(f"grades cannot be written to {csv}: name a file in a folder that exists")
    if csv is not None and csv.absolute() in [path.absolute() for path in paths]:
        raise ValueError(f"{csv} is one of the submissions: name another file for the grades")
    if jobs < 1:
        raise ValueError(f"--jobs is a number from 1; got {jobs}")
    if seed is not None and not 0 <= seed < 2**62:
        raise ValueError(f"--seed is a number from 0 to 2^62; got {seed}")


def list_rubrics(json: bool) -> int:
    """The rubrics that come with qkv, with what a student supplies."""
    from qkv.check.grading.rubric import load_rubric, shipped

    rubrics = [load_rubric(name) for name in shipped()]
    if json:
        print_json(
            [
                {
                    "name": r.name,
                    "title": r.title,
                    "points": r.total,
                    "interface": r.interface.signature,
                    "properties": {p.name: p.points for p in r.properties},
                    "file": str(shipped()[r.name]),
                }
                for r in rubrics
            ]
        )
        return 0
    for rubric in rubrics:
        out().print(f"{rubric.name}: {rubric.title}, {rubric.total:g} points", markup=False, style="bold")
        out().print(rubric.interface.signature, markup=False)
        parts = ", ".join(f"{part.name} {part.points:g}" for part in rubric.properties)
        out().print(f"points: {parts}\n", markup=False, style="dim")
    return 0
