"""Run a row of the results table: train each part in its own folder, measure it and keep its record.

Nothing is done twice: finished runs and existing records are reused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.bench import OnNote, machine
from qkv.bench.reproduce.measurement import (
    find_differences,
    measure_run,
    part_config,
    read_environment,
    use_threads,
    with_data,
    with_teacher,
)
from qkv.bench.reproduce.records import Record, read_records, record_file, write_records
from qkv.bench.reproduce.rows import ResultRow, RowPart
from qkv.data.batches import generator_for, randint_inclusive
from qkv.data.text.question_answering import QuestionAnswer
from qkv.training import Run, open_run, run_recipe
from qkv.training.inference import load_predictor
from qkv.training.recipes import get_recipe
from qkv.training.recipes.birthplaces import load_facts
from qkv.training.recipes.definition import RecipeConfig, Task
from qkv.training.recipes.question_answering import Answer
from qkv.training.run_state import read_status
from qkv.training.runs import UNKNOWN_COMMIT, CallbackFactory, find_checkout

RUNS = Path("runs/reproduce")
NAME_IN_QUESTION = re.compile(r"(Where was )(\S.*\S)( born\?)")
UNKNOWN_PEOPLE_STREAM = 13  # the random stream that combines first and last names
NUM_UNKNOWN_PEOPLE = 100


@dataclass(frozen=True)
class Budget:
    """A length of training other than the row's: minutes or steps, or neither."""

    minutes: float | int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and self.steps is not None:
            raise ValueError("give minutes or steps, not both")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes must be above 0, got {self.minutes}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    @property
    def name(self) -> str:
        """The budget in the names of run folders; "" for the row's own length."""
        if self.minutes is not None:
            return f"{self.minutes:g}min"
        return "" if self.steps is None else f"{self.steps}steps"

    def apply(self, part: RowPart) -> RowPart:
        """The part with this length of training."""
        return replace(part, minutes=self.minutes, epochs=None) if self.name else part


@dataclass(frozen=True)
class ReproduceResult:
    """The records of a row. stopped: the signal that ended it before all parts were measured."""

    row: ResultRow
    records: tuple[Record, ...]
    file: Path | None
    stopped: str | None = None


def reproduce(
    row: ResultRow,
    label: str | None = None,
    *,
    data: Path | None = None,
    seeds: int = 1,
    budget: Budget | None = None,
    runs: Path = RUNS,
    results: Path | None = None,
    callback: CallbackFactory | None = None,
    on_note: OnNote = lambda text: None,
) -> ReproduceResult:
    """Train and measure the parts of a row, seed by seed.

    label: one part only, preceded by its teacher if it has one.
    data: the folder with the data. runs: the folder of the runs. results: the folder of the records.
    """
    budget = budget or Budget()
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    parts = row.parts if label is None else _with_teacher(row, row.get_part(label))
    paths = {part.label: find_data(row, part, data) for part in parts}
    results = default_results_folder(runs, budget) if results is None else results
    command = _reproduce_command(row, label, seeds, budget)
    peaks: dict[int, float] = {}
    records: list[Record] = []
    file: Path | None = None
    for seed in range(seeds):
        for part in parts:
            on_note(f"{row.name}: {part.label}, seed {seed}")
            run = _train_part(row, part, seed, paths[part.label], budget, runs, callback, on_note)
            if run.stopped:
                return ReproduceResult(row, tuple(records), file, run.stopped)
            record = _find_record(results, row, part.label, run)
            if record is None:
                record = _measure_part(run, row, budget.apply(part), paths[part.label], peaks, on_note, command)
                file = write_records(results, row, record)
            records.append(record)
    return ReproduceResult(row, tuple(records), file or record_file(results, row.name))


def enter_run(
    row: ResultRow,
    folder: Path,
    label: str | None = None,
    *,
    data: Path | None = None,
    results: Path | None = None,
    commit: str | None = None,
    peak: float | int | None = None,
    on_note: OnNote = lambda text: None,
) -> ReproduceResult:
    """Keep the record of a run that `qkv train` has already finished.

    label: the part of the row; found by the run's recipe if not given. commit: of qkv, if the run does not know it.
    peak: GFLOPS of a large float32 matrix product with the run's threads; measured now if not given.
    """
    if peak is not None and not peak > 0:
        raise ValueError(f"peak must be above 0 GFLOPS, got {peak}")
    run = open_run(folder)
    if not run.finished:
        raise ValueError(f"{folder} is not finished: `qkv train` with its --folder resumes it")
    part = row.get_part(label) if label is not None else find_part(row, run)
    find_differences(run.config, part)  # raises if the run is of another part
    path = find_data(row, part, data) if data is not None else None
    peaks = {} if peak is None else {read_environment(run)["threads"]: float(peak)}
    record = _measure_part(run, row, part, path, peaks, on_note, "")
    if record.commit == UNKNOWN_COMMIT:
        if commit is None:
            on_note(f"{folder} does not know the commit of qkv that trained it; give it with --commit")
        record = replace(record, commit=commit or UNKNOWN_COMMIT)
    results = default_results_folder(RUNS) if results is None else results
    return ReproduceResult(row, (record,), write_records(results, row, record))


def find_data(row: ResultRow, part: RowPart, data: Path | None) -> str | None:
    """The place of a part's data; None if it needs none."""
    if not part.data:
        return None
    wanted = (" and " if part.whole_folder else " or ").join(part.data)
    if data is None:
        raise ValueError(f"{row.name} needs {wanted}: give the folder that contains it with --data FOLDER")
    if not data.is_dir():
        raise ValueError(f"--data {data} is not a folder; expected one that contains {wanted}")
    found = [data / name for name in part.data if (data / name).exists()]
    if len(found) < (len(part.data) if part.whole_folder else 1):
        raise ValueError(f"{data} has no {wanted}, which {row.name} needs; docs/training.md says where to get it")
    return str(data if part.whole_folder else found[0])


def default_results_folder(runs: Path, budget: Budget | None = None) -> Path:
    """docs/results in a checkout, otherwise next to the runs; records of trials are kept separately."""
    if budget is not None and budget.name:
        return runs / "trials"
    root = find_checkout()
    return runs / "results" if root is None else root / "docs" / "results"


def find_part(row: ResultRow, run: Run) -> RowPart:
    """The one part of a row with a run's recipe."""
    found = [part for part in row.parts if part.recipe == run.config.recipe and _matches(run, part)]
    if len(found) != 1:
        labels = ", ".join(part.label for part in row.parts)
        raise ValueError(f"{run.folder} matches no single part of {row.name}; choose one with --label: {labels}")
    return found[0]


def _matches(run: Run, part: RowPart) -> bool:
    try:
        return not find_differences(run.config, part)
    except ValueError:  # another model
        return False


def _with_teacher(row: ResultRow, part: RowPart) -> tuple[RowPart, ...]:
    return (row.get_part(part.teacher), part) if part.teacher else (part,)


def _train_part(
    row: ResultRow,
    part: RowPart,
    seed: int,
    data: str | None,
    budget: Budget,
    runs: Path,
    callback: CallbackFactory | None,
    on_note: OnNote,
) -> Run:
    config = with_data(part_config(part, seed), data)
    if part.teacher:
        config = with_teacher(config, str(_run_folder(row, row.get_part(part.teacher), seed, budget, runs)))
    fitted = budget.apply(part)
    return run_recipe(
        config,
        folder=_run_folder(row, part, seed, budget, runs),
        minutes=fitted.minutes,
        epochs=fitted.epochs,
        steps=budget.steps,
        callback=callback,
        on_note=on_note,
    )


def _run_folder(row: ResultRow, part: RowPart, seed: int, budget: Budget, runs: Path) -> Path:
    words = [part.label, *([budget.name] if budget.name else []), f"seed{seed}"]
    return runs / (part.home or row.name) / "-".join(words)


def _find_record(results: Path, row: ResultRow, label: str, run: Run) -> Record | None:
    """The existing record of this very run."""
    key = (label, run.config.seed, read_status(run.folder).get("began"))
    records = read_records(results, row.name)
    return next((record for record in records if (record.label, record.seed, record.began) == key), None)


def _measure_part(
    run: Run,
    row: ResultRow,
    part: RowPart,
    data: str | None,
    peaks: dict[int, float],
    on_note: OnNote,
    command: str,
) -> Record:
    config, threads = with_data(run.config, data), read_environment(run)["threads"]
    with use_threads(threads):
        if threads not in peaks:
            on_note(f"measuring the speed of matrix products with {threads} threads")
            peaks[threads] = machine.peak_gigaflops()
        task = _build_task(run, config, on_note)
        test: dict[str, Any] = dict(run.result.get("test", {}))
        if row.measure == "answers":
            on_note("asking the trained model")
            test = measure_answers(run, config)
        return measure_run(run, row, part, task=task, test=test, peak=peaks[threads], command=command)


def _build_task(run: Run, config: RecipeConfig, on_note: OnNote) -> Task | None:
    """The run's data and model, to count operations with; None if the data cannot be read."""
    try:
        return get_recipe(config.recipe).build(config, None)
    except (ValueError, OSError) as error:
        on_note(f"operations of {run.folder} are not counted: {error} (--data FOLDER says where its data is)")
        return None


def _reproduce_command(row: ResultRow, label: str | None, seeds: int, budget: Budget) -> str:
    words = [f"qkv reproduce {row.name}"]
    words += [f"--label {label}"] if label is not None else []
    words += ["--data DATA"] if any(part.data for part in row.parts) else []
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    words += [f"--minutes {budget.minutes:g}"] if budget.minutes is not None else []
    words += [f"--steps {budget.steps}"] if budget.steps is not None else []
    return " ".join(words)


def measure_answers(run: Run, config: RecipeConfig) -> dict[str, Any]:
    """How a run answers questions in `qkv use`, in percent.

    Precision at 50 and 90 % coverage of the dev questions, the share answered by the model itself and its precision,
    and the share of refused questions about people who are not in the corpus. config: the run's, with its data's place.
    """
    predictor = load_predictor(run.folder)
    if predictor.task != "answer":
        raise ValueError(f"{run.folder} does {predictor.task}; expected a run of birthplaces, which answers questions")
    facts = load_facts(config.data, config.seed)
    predictions = [predictor(question.question) for question in facts.dev]
    answers = [Answer(str(p.more.get("model_answer", p.result)), p.confidence or 0.0) for p in predictions]
    by_model = [p.more["from"] == "the model" for p in predictions]
    right = sum(m and p.result == q.answer for m, p, q in zip(by_model, predictions, facts.dev, strict=True))
    unknown = make_unknown_people(facts.train + facts.dev, facts.documents)
    refused = [predictor(question.question).more["from"] == "nothing found" for question in unknown]
    return {
        "precision_at_50": precision_at_coverage(answers, facts.dev, 0.5),
        "precision_at_90": precision_at_coverage(answers, facts.dev, 0.9),
        "answered": 100 * sum(by_model) / len(predictions),
        "precision_of_answered": 100 * right / max(sum(by_model), 1),
        "refused": 100 * sum(refused) / len(refused),
        "threshold": float(predictor.purpose["threshold"]),
    }


def precision_at_coverage(answers: Sequence[Answer], questions: Sequence[QuestionAnswer], coverage: float) -> float:
    """The share of exact answers among the most confident ones, in percent; coverage: which share of all these are.

    >>> answers = [Answer("a", 0.9), Answer("x", 0.5), Answer("c", 0.7), Answer("y", 0.1)]
    >>> precision_at_coverage(answers, [QuestionAnswer("", right, "") for right in "abcd"], 0.5)
    100.0
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must be above 0 and at most 1, got {coverage}")
    if not questions:
        raise ValueError("there are no questions to measure on")
    order = torch.tensor([answer.confidence for answer in answers]).argsort(descending=True, stable=True).tolist()
    chosen = order[: max(round(coverage * len(order)), 1)]
    return 100 * sum(answers[i].text == questions[i].answer for i in chosen) / len(chosen)


def make_unknown_people(
    questions: Sequence[QuestionAnswer], documents: Sequence[str], count: int = NUM_UNKNOWN_PEOPLE
) -> list[QuestionAnswer]:
    """Questions about people not in the corpus: first and last names that appear in no document together."""
    names = [found[2].split() for question in questions if (found := NAME_IN_QUESTION.fullmatch(question.question))]
    if len(names) < 2:
        raise ValueError("expected questions such as 'Where was Ada Lovelace born?' to take names from")
    lines = [set(line.replace(".", " ").split()) for line in documents]
    generator, made = generator_for(UNKNOWN_PEOPLE_STREAM), dict[str, QuestionAnswer]()
    for _ in range(100 * count):
        first, last = (names[randint_inclusive(0, len(names) - 1, generator)] for _ in range(2))
        if not any(first[0] in words and last[-1] in words for words in lines):
            question = f"Where was {first[0]} {last[-1]} born?"
            made[question] = QuestionAnswer(question, None, "a combined name")
        if len(made) == count:
            break
    if not made:
        raise ValueError("every first name appears with every last name in the documents: nobody is unknown")
    return list(made.values())
