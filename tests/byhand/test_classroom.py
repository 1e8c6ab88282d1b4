"""A class: generated sheets are readable and solvable; a folder of answers is graded with points and feedback."""

import csv
import json

import pytest

from qkv.byhand import make_problem, solve_problem, verify
from qkv.byhand.classroom import grade_answers, write_class
from qkv.byhand.files import read_answer
from qkv.byhand.generate import asked_steps, generate_problems
from qkv.byhand.graph import DECIMALS, StepGraph
from qkv.cli.main import run

pytestmark = pytest.mark.usefixtures("unchecked")  # shape checks of every number would take a minute

SETTINGS = [
    {},
    {"causal": True, "convention": "columns"},
    {"heads": 2},
    {"scale": "1", "loss": "sum"},
    {"loss": "cross-entropy", "convention": "columns"},
    {"loss": "squared-error", "heads": 2, "causal": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_generate_problems_are_readable_different_and_the_same_for_a_seed(settings):
    problems = generate_problems(4, 7, settings)
    assert problems == generate_problems(4, 7, settings) != generate_problems(4, 8, settings)
    assert len({problem["x"] for problem in problems}) == 4
    for one in problems:
        problem = make_problem(one)
        solution = solve_problem(problem)
        assert solution.agrees
        given = [n.fraction for rows in (problem.x, *problem.projections) for row in rows for n in row]
        assert all(abs(number) <= 2 and number.denominator <= 2 for number in given)
        mask = problem.mask or [[True] * 3] * 3
        for i, row in enumerate(solution.tables["weights"]):
            seen = [float(n.decimal) for n, flag in zip(row, mask[i % 3], strict=True) if flag]
            assert len(seen) == 1 or 0.02 <= min(seen) < max(seen) <= 0.92


@pytest.mark.parametrize("settings", SETTINGS)
def test_write_class_keys_are_right_and_sheets_are_blank(settings, tmp_path):
    write_class(tmp_path / "class", 2, 1, settings)
    for name in ("sheet-01", "sheet-02"):
        for suffix in (".toml", ".tex", ".html"):
            assert (tmp_path / "class" / "sheets" / name).with_suffix(suffix).read_text("utf-8")
            assert (tmp_path / "class" / "keys" / name).with_suffix(suffix).read_text("utf-8")
        with pytest.raises(ValueError, match="no step to check"):
            read_answer(tmp_path / "class" / "sheets" / f"{name}.toml")
        given, answer = read_answer(tmp_path / "class" / "keys" / f"{name}.toml")
        assert list(answer) == asked_steps(make_problem(given))
        result = verify(make_problem(given), answer)
        assert result.ok, result.first
        assert (tmp_path / "class" / "sheets" / f"{name}.tex").read_text("utf-8").isascii()


def slipped_answer(problem, step, row, column):
    """The answer of somebody who loses or adds a minus sign in one number and continues from there, to five digits."""
    graph = StepGraph(problem)
    tables = graph.given_tables(DECIMALS)
    for name in graph.steps:
        tables[name] = [list(line) for line in graph.compute(name, tables, DECIMALS)]
        if name == step:
            tables[name][row][column] *= -1
    return {
        name: [[f"{number:.5f}" if number != number.to_integral_value() else f"{number:.0f}" for number in line]
               for line in tables[name]]
        for name in asked_steps(problem)
    }  # fmt: skip


def test_byhand_grades_a_class_of_30_with_15_slips_with_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["byhand", "--generate", "30", "--seed", "7", "--folder", "class"]) == 0
    answers, planted = tmp_path / "answers", {}
    answers.mkdir()
    for number in range(1, 31):
        name = f"sheet-{number:02}"
        key = (tmp_path / "class" / "keys" / f"{name}.toml").read_text("utf-8")
        if number > 15:
            (answers / f"student-{number}.toml").write_text(key.replace('student = "key"', ""), "utf-8")
            continue
        problem = make_problem(read_answer(tmp_path / "class" / "keys" / f"{name}.toml")[0])
        step = ("queries", "keys", "values", "scores", "output")[number % 5]
        table = solve_problem(problem).tables[step]
        sizes = {(i, j): abs(n.decimal) for i, row in enumerate(table) for j, n in enumerate(row)}
        row, column = max(sizes, key=sizes.__getitem__)
        planted[f"student-{number}"] = f"{step}[{row + 1},{column + 1}]"
        content = {"sheet": name, "answer": slipped_answer(problem, step, row, column)}
        (answers / f"student-{number}.json").write_text(json.dumps(content), "utf-8")
    (answers / "unreadable.toml").write_bytes(b"x = [[1, \xff\n")
    (answers / "ragged.toml").write_text('sheet = "sheet-01"\nscores = [[1, 2], [3]]\n')
    (answers / "lost.toml").write_text('sheet = "sheet-99"\nscores = "1"\n')
    capsys.readouterr()
    assert run(["byhand", "--verify", "answers", "--folder", "class", "--csv", "grades.csv"]) == 0
    with open("grades.csv", encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert len(rows) == 33
    for name, row in rows.items():
        if name in planted:
            assert 8 < float(row["points"]) < 10 and row["remark"].startswith(planted[name]), row
        elif name.startswith("student"):
            assert (row["points"], row["remark"]) == ("10", ""), row
        markdown = (tmp_path / "feedback" / f"{name}.md").read_text("utf-8")
        assert f"{row['points']} of 10 points" in markdown
        assert f"{row['points']} of 10 points" in (tmp_path / "feedback" / f"{name}.html").read_text("utf-8")
    assert "save it as UTF-8" in rows["unreadable"]["remark"] and rows["unreadable"]["points"] == "0"
    assert "scores is ragged" in rows["ragged"]["remark"]
    assert "there is no sheet 'sheet-99'" in rows["lost"]["remark"]


def test_grade_answers_finds_slips_in_the_backward_pass_of_a_class(tmp_path):
    write_class(tmp_path / "class", 3, 5, {"loss": "squared-error", "convention": "columns"})
    answers = tmp_path / "answers"
    answers.mkdir()
    for number, step in enumerate(("dA", "dQ", "dW_V"), 1):
        problem = make_problem(read_answer(tmp_path / "class" / "keys" / f"sheet-0{number}.toml")[0])
        table = solve_problem(problem).tables[step]
        sizes = {(i, j): abs(n.decimal) for i, row in enumerate(table) for j, n in enumerate(row)}
        answer = slipped_answer(problem, step, *max(sizes, key=sizes.__getitem__))
        turned = {name: [list(row) for row in zip(*rows, strict=True)] for name, rows in answer.items()}
        content = {"sheet": f"sheet-0{number}", "answer": turned}
        (answers / f"{number}.json").write_text(json.dumps(content), "utf-8")
    grades = grade_answers(answers, class_folder=tmp_path / "class", points=20)
    assert [grade.remark.split("[")[0] for grade in grades] == ["dA", "dQ", "dW_V"]
    assert all(18 < grade.points < 20 for grade in grades)


def test_grade_answers_credits_steps_that_a_later_step_shows(tmp_path):
    (tmp_path / "ada.toml").write_text(
        'q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\nscale = 1\n[answer]\noutput = "5.0758"\n'
    )
    (tmp_path / "bob.toml").write_text('q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\nscale = 1\n[answer]\nscores = "1 0"\n')
    ada, bob = grade_answers(tmp_path)
    assert ada.points == 10 and [part.step for part in ada.steps] == ["scores", "weights", "output"]
    assert bob.points == pytest.approx(3.33)
    assert [part.note for part in bob.steps] == ["right", "missing", "missing"]


def test_grade_answers_counts_wrong_exponentials_with_the_weights(tmp_path):
    # e^(-x) in both of two numbers; the sum and the weights follow, so two of five numbers of the softmax are wrong
    answer = """q = "1"
k = "1; 3"
v = "4; 8"
scale = 1
exponentials = "0.3679 0.0498"
sums = "0.4177"
weights = "0.8808 0.1192"
output = "4.4768"
"""
    (tmp_path / "kim.toml").write_text(answer)
    grade = next(iter(grade_answers(tmp_path)))
    weights = next(part for part in grade.steps if part.step == "weights")
    assert weights.points == pytest.approx(weights.possible * 3 / 5, abs=1e-3)
    assert weights.note == "follows; wrong exponentials"
    assert grade.points == pytest.approx(grade.possible - weights.possible * 2 / 5, abs=0.01)


def test_write_class_leaves_an_existing_folder_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        write_class(tmp_path, 2, 1, {})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--generate", "0"], "expected 1 to 1000 sheets, got 0"),
        (["--generate", "3", "--tokens", "9"], "expected 1 to 6 tokens, got 9"),
        (["--generate", "3", "--x", "1 2"], "--x and --generate were given"),
        (["--generate", "3", "--loss", "hinge"], "loss: expected one of sum"),
        (["--generate", "3", "--example", "copy"], "--example and --generate were given"),
        (["--csv", "grades.csv", "--example", "copy"], "--csv goes with --verify and a folder"),
        (["--folder", "class", "--example", "copy"], "--folder goes with --generate"),
        (["--verify", "."], "contains no answers"),
        (["--verify", ".", "--heads", "2"], "the problems of a folder are those of its answers"),
        (["--verify", ".", "--folder", "."], "is not a class"),
    ],
)
def test_byhand_class_options_are_explained_in_one_sentence(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["byhand", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
