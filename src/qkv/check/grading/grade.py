"""Grade submissions against a rubric: one file or many. Each gets a grade with a reason for every point lost."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv.check.grading.client import Sandbox, SandboxUnavailableError, SubmissionError, clean
from qkv.check.grading.exercises import EXERCISES, Exercise
from qkv.check.grading.exercises.common import (
    DETERMINISM,
    EXPLAINED,
    GradedCheck,
    NoiseError,
    SecretDraws,
    apply_cause,
    quiet_down,
)
from qkv.check.grading.exercises.names import BATCH_FIRST, LINES, LINES_OF_CAUSES, SYNONYMS
from qkv.check.grading.reading import Line, RefusedError, Submission, read_submission
from qkv.check.grading.reading.submission import MAX_LINE
from qkv.check.grading.rubric import GradedExercise, Property, Rubric
from qkv.check.report import BUG_FAMILIES, Finding

ENOUGH_FAILURES = 3  # if the first sandboxes all fail, this many of them, the system allows none
NOT_GRADED = "not graded"
STAGES = {
    "import": "the file does not run",
    "name": "the interface is not met",
    "build": "it could not be built",
    "time": "it was stopped",
}
REMEDIES = {
    "it did not answer within": "a loop does not end, or something long runs while the file is loaded (training?): "
    'put it under if __name__ == "__main__":',
    "No module named": "hand in that file as well, in a zip archive, or leave the import out",
    "EOFError": "the file asks for input while it is loaded: leave that out",
    "NotImplementedError": "this part is still to be written",
    "the file defines no": "use the name that the exercise asks for",
    "no file defines": "use the name that the exercise asks for",
    "view size is not compatible": "after transpose or permute use .reshape(…), or .contiguous() before .view(…)",
    "'Tensor' and 'tuple'": "a part returns a pair, as nn.MultiheadAttention does (output and weights): take [0] of it",
    "'tuple' and 'Tensor'": "a part returns a pair, as nn.MultiheadAttention does (output and weights): take [0] of it",
    "does not require grad and does not have a grad_fn": "the loss has no gradient: compute it outside "
    "torch.no_grad(), and without detach() or item()",
    "You can only torch.load from a file": "there may be no path: load only if it is not None",
    "heads and tokens are swapped": "x is (batch, heads, tokens, dim): positions run along axis 2",
    "expected two numbers: total and correct": "return (total, correct)",
    "the return is missing": "return what the function computes",
    "Resource temporarily unavailable": "it starts processes, which is not allowed here: leave that out",
    "SystemExit": "the code ends its process: leave exit() and sys.exit() out",
    "No such file or directory": "it opens a file that is not there while it is graded: leave that out",
    "can't allocate memory": "it needs more memory than a submission may use: a list or a tensor grows too large",
    "MemoryError": "it needs more memory than a submission may use: a list or a tensor grows too large",
    "File too large": "it writes or prints too much: leave that out",
    "NaN or infinite values": "a softmax over scores that are all −∞ gives NaN: a mask that hides every key of a "
    "query (an inverted one, or one that hides a token from itself), or a softmax over another axis than the keys; or "
    "a division by zero",
}  # by what an error says
SIZES = re.compile(r"The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
CUTS = {
    r"(mask|tril|bias)\b.*\[.*:": "the scores are longer than the mask: cut what gives them, too: w2[:, :T] and b2[:T]",
    r"mask|tril|bias\b": "cut the mask to the length of the sequence: mask[:, :, :T, :T]",
    r"w2|b2": "cut w2 and b2 to the length of the sequence: w2[:, :T] and b2[:T]",
    r"pos": "there must be one position vector for each token, the class token too: num_patches + 1",
    r"cache|cos|sin": "cut the cache to the length of the sequence: rope_cache[:T]",
}  # by what the line with two sizes that do not fit is about
PLACE = re.compile(r"\((?:(?P<file>[^()]+?\.\w+), )?(?:cell (?P<cell>\d+), )?line (?P<line>\d+)\)")
Progress = Callable[["Grade", int, int], None]


@dataclass(frozen=True)
class PropertyGrade:
    """The points of one property, and what its checks found."""

    name: str
    points: float
    possible: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Mistake:
    """What cost points: the property, what was measured, the usual fix, and the place in the student's file."""

    property: str
    points: float
    check: str
    evidence: str
    fix: str | None
    where: Line | None = None


@dataclass(frozen=True)
class Grade:
    """The points of one submission.

    remark: the first thing that cost points, in a sentence; None if nothing did.
    refused: why the file could not be graded at all; None if it was.
    notes: what was not executed or left out. seconds: how long the grading took.
    """

    student: str
    path: str
    properties: tuple[PropertyGrade, ...]
    remark: str | None
    seed: int
    mistakes: tuple[Mistake, ...] = ()
    refused: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def total(self) -> float:
        return sum(part.points for part in self.properties)

    @property
    def possible(self) -> float:
        return sum(part.possible for part in self.properties)

    def to_dict(self) -> dict[str, Any]:
        return {"total": self.total, "possible": self.possible, **asdict(self)}

    @staticmethod
    def from_dict(table: dict[str, Any]) -> Grade:
        """The grade that `to_dict` wrote; raises TypeError or KeyError if it is another table."""
        fields = {name: value for name, value in table.items() if name not in ("total", "possible")}
        fields["properties"] = tuple(
            PropertyGrade(**{**part, "findings": tuple(Finding(**finding) for finding in part["findings"])})
            for part in table["properties"]
        )
        fields["mistakes"] = tuple(
            Mistake(**{**part, "where": Line(**part["where"]) if part["where"] else None}) for part in table["mistakes"]
        )
        return Grade(**{**fields, "notes": tuple(table["notes"])})


def grade_files(
    rubric: Rubric,
    paths: Sequence[Path],
    *,
    seed: int | None = None,
    jobs: int = 2,
    isolated: bool = True,
    hidden: Sequence[Path] = (),
    progress: Progress | None = None,
    finished: dict[int, Grade] | None = None,
) -> list[Grade]:
    """Grade many submissions at once; one that fails never affects another, and each gets a grade.

    Raises ValueError if this system allows no sandbox at all. If only some sandboxes fail, the remarks of those grades
    say so.

    Args:
        seed: draws the inputs; a fresh one by default. Every grade records it.
        jobs: how many submissions run at the same time.
        isolated: run them in the sandbox; without, only time, memory and file sizes are limited.
        hidden: directories that no submission may see, besides those of the submissions themselves.
        progress: called with each grade, the number done and the number of files.
        finished: grades by index of the file that need not be made again.
    Returns:
        Grades in the order of the files.
    """
    seed = secrets.randbits(62) if seed is None else seed
    students = student_names(paths)
    folders = tuple({path.absolute().parent for path in paths} | set(hidden))
    stop, running = threading.Event(), set[Sandbox]()

    def grade_one(index: int) -> Grade | None:
        if stop.is_set():
            return None
        return grade_file(
            rubric, paths[index], students[index], seed, isolated=isolated, hidden=folders, running=running
        )

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="grade")
    try:
        grades = dict(finished or {})
        indices: dict[Future[Grade | None], int] = {
            pool.submit(grade_one, i): i for i in range(len(paths)) if i not in grades
        }
        num_without_sandbox = 0
        for future in as_completed(indices):
            index = indices[future]
            try:
                grade = future.result()
                assert grade is not None
            except SandboxUnavailableError as error:
                num_without_sandbox += 1
                none_worked = num_without_sandbox == len(grades) - len(finished or {}) + 1
                if none_worked and num_without_sandbox >= min(len(indices), ENOUGH_FAILURES):
                    raise sandbox_required(error) from None
                reason = f"{NOT_GRADED}: its sandbox failed ({clean(str(error))})"
                grade = _zero_grade(rubric, paths[index], students[index], seed, reason)
            grades[index] = grade
            if progress is not None:
                progress(grade, len(grades), len(paths))
        return [grades[index] for index in range(len(paths))]
    finally:
        stop.set()
        for sandbox in list(running):
            sandbox.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def sandbox_required(error: SandboxUnavailableError) -> ValueError:
    """The error to raise where the system allows no sandbox."""
    return ValueError(
        f"this system allows no sandbox ({error}): grading needs Linux with namespaces, as root or as a user who may "
        "create them. With --unsafe submissions run with your privileges, limited only in time and memory"
    )


def student_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its stem, with as many parent directories as it takes to tell the files apart.

    >>> student_names([Path("in/ada/attention.py"), Path("in/alan/attention.py")])
    ['ada/attention', 'alan/attention']
    >>> student_names([Path("in/ada.py"), Path("in/alan.py")])
    ['ada', 'alan']
    """
    parts = [path.absolute().with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1)):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            return found
    return [str(path) for path in paths]


def grade_file(
    rubric: Rubric,
    path: Path,
    student: str,
    seed: int,
    *,
    isolated: bool = True,
    hidden: Sequence[Path] = (),
    running: set[Sandbox] | None = None,
) -> Grade:
    """Grade one file. It is read here and runs in the sandbox; whatever it does, there is a grade.

    running: its sandbox is kept here while it runs, so that another thread can stop it.
    """
    started = time.monotonic()
    try:
        submission = read_submission(path)
    except RefusedError as error:
        return _zero_grade(rubric, path, student, seed, str(error))
    sandbox = Sandbox(
        source=_with_stubs(submission, rubric),
        name="",
        build=None,
        seed=seed,
        limits=rubric.limits,
        isolated=isolated,
        hidden=tuple(hidden),
    )
    running = set() if running is None else running
    running.add(sandbox)
    try:
        with sandbox, SecretDraws(seed):
            alone = len(rubric.exercises) == 1
            graded = [_grade_exercise(sandbox, exercise, submission, alone=alone) for exercise in rubric.exercises]
    except SandboxUnavailableError:
        raise
    except RefusedError as error:
        return _zero_grade(rubric, path, student, seed, str(error))
    except Exception as error:  # whatever a submission causes is its own grade
        return _zero_grade(rubric, path, student, seed, f"it cannot be graded: {_describe_error(error)}")
    finally:
        running.discard(sandbox)
    parts = [part for found, _ in graded for part in found]
    properties = [replace(part, name=listed.name) for part, listed in zip(parts, rubric.properties, strict=True)]
    mistakes = [mistake for _, found in graded for mistake in found]
    if len(graded) > 1:
        mistakes = _merge_exercises(rubric, [found for _, found in graded])
    return Grade(
        student=student,
        path=str(path),
        properties=tuple(properties),
        remark=_first_remark(mistakes, rubric),
        seed=seed,
        mistakes=tuple(mistakes),
        notes=(*submission.notes, *sandbox.notes),
        seconds=round(time.monotonic() - started, 2),
    )


def _merge_exercises(rubric: Rubric, found: Sequence[Sequence[Mistake]]) -> list[Mistake]:
    """The mistakes of all exercises, by name; what stops several of them (a syntax error) is one entry."""
    merged: list[Mistake] = []
    for exercise, mistakes in zip(rubric.exercises, found, strict=True):
        for mistake in mistakes:
            same = [m for m in merged if m.check == mistake.check == "submission" and m.evidence == mistake.evidence]
            if not same:
                merged.append(replace(mistake, property=f"{exercise.name}: {mistake.property}"))
                continue
            names = f"{same[0].property.partition(': ')[0]}, {exercise.name}: {mistake.property}"
            points = same[0].points + mistake.points
            merged[merged.index(same[0])] = replace(same[0], property=names, points=points)
    whole = len(merged) == 1 and merged[0].check == "submission" and merged[0].points == rubric.total
    return [replace(merged[0], property="all properties")] if whole else merged


def _with_stubs(submission: Submission, rubric: Rubric) -> Submission:
    """The submission with the grader's stand-ins for course modules that a student need not hand in."""
    stubs: dict[str, str] = {}
    for exercise in rubric.exercises:
        stubs |= EXERCISES[exercise.exercise].stubs
    return replace(submission, stubs=stubs)


def _grade_exercise(
    sandbox: Sandbox, exercise: GradedExercise, submission: Submission, *, alone: bool = False
) -> tuple[list[PropertyGrade], list[Mistake]]:
    """The properties of one exercise. If it cannot be called at all, each of them fails for the same reason.

    alone: it is the only exercise, so that a submission in which two files claim it is refused as a whole.
    """
    found: dict[str, Finding] | Finding
    name = exercise.interface.name
    try:
        name = _select(sandbox, exercise, submission)
        found = run_checks(sandbox, exercise)
    except SandboxUnavailableError:
        raise
    except RefusedError as error:
        if alone:
            raise
        found = Finding("submission", "fail", None, f"{STAGES['name']}: {error}")
    except SubmissionError as error:
        stage = "call" if error.stage == "build" and exercise.interface.build is None else error.stage
        found = Finding("submission", "fail", None, f"{STAGES.get(stage, 'the call failed')}: {error}")
    except Exception as error:
        found = Finding("submission", "fail", None, f"it cannot be graded: {_describe_error(error)}")
    parts = [_grade_property(part, found) for part in exercise.properties]
    return parts, _find_mistakes(parts, exercise, submission, name)


def _select(sandbox: Sandbox, exercise: GradedExercise, submission: Submission) -> str:
    """Choose the file and the name that meet the interface; raises RefusedError if two files claim it."""
    interface = exercise.interface
    also = EXERCISES[exercise.exercise].also
    found = submission.find_definition(interface.names)
    file, name = (found[0].path, found[1]) if found else (None, interface.name)
    if found is None and len(submission.files) > 1:
        held = ", ".join(file.path for file in submission.files[:8])
        raise SubmissionError(f"no file defines {name!r}; there are {held}", "name")
    sandbox.select(name, interface.build, file, also, SYNONYMS)
    return name


def run_checks(sandbox: Sandbox, exercise: GradedExercise) -> dict[str, Finding]:
    """Run the checks that the rubric asks for; findings by check name."""
    kind = EXERCISES[exercise.exercise]

    def prepare() -> Any:
        prepared = kind.prepare(sandbox, exercise)
        kind.require_response(prepared)
        return prepared

    try:
        prepared = prepare()
    except NoiseError:
        if DETERMINISM.names[0] not in exercise.checks:
            raise
        prepared = kind.prepare(sandbox, exercise)
    findings: dict[str, Finding] = {}
    # whether it is deterministic comes first: if not, all other checks would fail for that reason
    for check in sorted(kind.checks, key=lambda check: check is not DETERMINISM):
        wanted = [name for name in check.names if name in exercise.checks]
        if not wanted:
            continue
        found = {finding.check: finding for finding in _run_check(check, prepared, wanted)}
        findings |= {name: found.get(name) or _inconclusive(name, found) for name in wanted}
        if check is DETERMINISM and findings[check.names[0]].verdict == "fail":
            prepared, random = quiet_down(sandbox, check, prepare, findings[check.names[0]])
            findings[check.names[0]] = random
    return apply_cause(findings, kind)


def _run_check(check: GradedCheck, prepared: Any, wanted: list[str]) -> list[Finding]:
    """Run one check. An error of the submission is a failing finding, never the end of the grading."""
    try:
        return check.find(prepared)
    except SandboxUnavailableError:
        raise
    except Exception as error:
        return [Finding(name, "fail", None, f"the call failed: {_describe_error(error)}") for name in wanted]


def _describe_error(error: Exception) -> str:
    return clean(str(error)) or type(error).__name__


def _inconclusive(name: str, found: dict[str, Finding]) -> Finding:
    """A check without a finding gives the reason that another finding of the same function gives."""
    other = next(iter(found.values()), None)
    return Finding(name, "inconclusive", None, other.evidence if other else "nothing could be measured")


def _grade_property(part: Property, findings: dict[str, Finding] | Finding) -> PropertyGrade:
    """All or nothing: every check of the property must pass; with `partial`, each earns its share."""
    if isinstance(findings, Finding):
        return PropertyGrade(part.name, 0.0, part.points, (findings,))
    found = tuple(findings[check] for check in part.checks)
    passed = sum(finding.verdict == "pass" for finding in found)
    share = passed / len(found) if part.partial else float(passed == len(found))
    return PropertyGrade(part.name, round(part.points * share, 2), part.points, found)


def _find_mistakes(
    parts: Sequence[PropertyGrade], exercise: GradedExercise, submission: Submission, name: str
) -> list[Mistake]:
    """What cost points, one entry for each cause: a failure that several properties share is listed once."""
    kind = EXERCISES[exercise.exercise]
    mistakes: list[Mistake] = []
    for part in parts:
        finding = next((finding for finding in part.findings if finding.verdict != "pass"), None)
        if finding is None or part.points == part.possible:
            continue
        lost = part.possible - part.points
        if finding.check == "submission" and mistakes:
            mistakes[0] = replace(mistakes[0], points=mistakes[0].points + lost, property="all properties")
            continue
        where = _place_of_error(finding.evidence, submission)
        for owner in (*kind.owners.get(finding.check, ()), name) if finding.check != "submission" else ():
            where = where or submission.find_line(owner, _patterns(finding, kind))
        fix = finding.hint or (BUG_FAMILIES.get(finding.family) if finding.family else None)
        from_source = _hint_from_source(finding, submission)
        where = where or (submission.find_line(name, (BATCH_FIRST,)) if from_source else None)
        fix = from_source or fix or _hint_from_error(finding.evidence, where) or kind.fixes.get(finding.check)
        evidence, fix = clean(finding.evidence, 600), clean(fix, 600) if fix else None
        known = bool(fix) and (fix.startswith(EXPLAINED) or fix == from_source)
        cause = fix if known else None
        same = next((i for i, m in enumerate(mistakes) if m.evidence == evidence or (cause and m.fix == cause)), None)
        if same is None:
            mistakes.append(Mistake(part.name, lost, finding.check, evidence, fix, where))
        else:  # one cause, several properties
            first = mistakes[same]
            names = f"{first.property}, {part.name}"
            mistakes[same] = replace(first, property=names, points=first.points + lost, fix=first.fix or fix)
    return mistakes


def _patterns(finding: Finding, kind: Exercise) -> tuple[str, ...]:
    """What the line that a finding is about looks like: of its cause, where it is proven, and then of its check."""
    of_check = kind.lines.get(finding.check) or LINES.get(finding.check, ())
    of_cause: tuple[str, ...] = ()
    if finding.family is not None:
        family = "heads merged" if "merged without" in str(finding.hint) else finding.family
        of_cause = kind.lines.get(family) or LINES_OF_CAUSES.get(family, ())
    setting = re.search(r"\b([a-z]\w+) is \S+, expected", finding.evidence)
    of_setting = (rf"\b{setting[1]}\b[\"']?\s*[=:](?!=)",) if setting else ()
    return (*of_setting, *of_cause, *of_check)


def _hint_from_source(finding: Finding, submission: Submission) -> str | None:
    """What the text of the submission tells about a failure that has many causes."""
    text = "\n".join(line.split("#")[0] for line in submission.text.split("\n"))
    about_rows = finding.check.startswith("batch") or finding.check in ("kind", "attention")
    layer = re.search(r"\b(MultiheadAttention|Transformer(?:Encoder|Decoder)Layer)\(", text)
    if layer and not re.search(r"batch_first\s*=\s*True", text) and (about_rows or "every input" in finding.evidence):
        return f"nn.{layer[1]} takes (tokens, batch, features) unless it is built with batch_first=True"
    if finding.check == "layer norms" and "BatchNorm" in text:
        return "BatchNorm normalizes a feature over the batch; a transformer normalizes each token: nn.LayerNorm(dim)"
    return None


def _hint_from_error(evidence: str, where: Line | None) -> str | None:
    """What to do about an error, by what it says and the line that raises it."""
    if SIZES.search(evidence) and where is not None:
        return next((words for part, words in CUTS.items() if re.search(part, where.text)), None)
    return next((words for part, words in REMEDIES.items() if part in evidence), None)


def _place_of_error(evidence: str, submission: Submission) -> Line | None:
    """The place that an error message names, with the text of that line."""
    found = PLACE.search(evidence)
    if found is None:
        return None
    cell, number = found["cell"], int(found["line"])
    for file in submission.files:
        if found["file"] not in (None, file.path) or file.is_notebook != (cell is not None):
            continue
        for each in file.cells:
            lines = each.source.split("\n")
            if (cell is None or each.number == int(cell)) and 1 <= number <= len(lines):
                return Line(found["file"] or "", int(cell) if cell else None, number, lines[number - 1][:MAX_LINE])
    return None


def _first_remark(mistakes: Sequence[Mistake], rubric: Rubric) -> str | None:
    if not mistakes:
        return None
    first = mistakes[0]
    if first.check == "submission" and len(rubric.exercises) == 1:
        return clean(f"{first.evidence}{f' ({first.fix})' if first.fix else ''}", 600)
    more = f"; {len(mistakes) - 1} more" if len(rubric.exercises) > 1 and len(mistakes) > 1 else ""
    return clean(f"{first.property}: {first.evidence}{f' ({first.fix})' if first.fix else ''}{more}", 600)


def _zero_grade(rubric: Rubric, path: Path, student: str, seed: int, reason: str) -> Grade:
    reason = clean(reason, 600)
    finding = Finding("submission", "fail", None, reason)
    parts = tuple(PropertyGrade(part.name, 0.0, part.points, (finding,)) for part in rubric.properties)
    mistake = Mistake("all properties", rubric.total, "submission", reason, None)
    return Grade(student, str(path), parts, reason, seed, (mistake,), refused=reason)
