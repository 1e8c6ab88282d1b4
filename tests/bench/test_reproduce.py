"""A row is trained, measured and recorded; a killed one resumes; a run of `qkv train` is entered."""

import contextlib
import io
import json
import shlex
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from qkv._config import read_toml
from qkv.bench.reproduce import ROWS, get_row
from qkv.bench.reproduce.measurement import (
    count_epoch_flops,
    find_differences,
    part_config,
    read_curve,
    thin_curve,
    train_command,
    with_teacher,
)
from qkv.bench.reproduce.records import Record, read_records, write_records
from qkv.bench.reproduce.rows import EXACT_MATCH, ResultRow, RowPart
from qkv.bench.reproduce.runner import Budget, default_results_folder, enter_run, reproduce
from qkv.cli.main import run
from qkv.data.images.dataset import ImageBatches
from qkv.data.images.load import load_images
from qkv.training import TrainCallback, open_run
from qkv.training.objectives import classification
from qkv.training.recipes import get_recipe
from qkv.training.time_budget import rescale_steps

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def _no_reports():
    """Runs without their report, which is tested elsewhere and takes longer than these runs do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.training.report.report_page", lambda run, task, samples: "")
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The row digits, two seeds of a few steps, by the command: its folder and what it printed."""
    home = tmp_path_factory.mktemp("reproduce")
    jaxtyping.config.update("jaxtyping_disable", True)
    said = io.StringIO()
    words = ["reproduce", "digits", "--steps", str(STEPS), "--seeds", "2", "--folder", str(home / "runs")]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        assert run([*words, "--results", str(home / "kept"), "--json"]) == 0
    jaxtyping.config.update("jaxtyping_disable", False)
    return home, json.loads(said.getvalue())


def test_reproduce_prints_the_records_of_the_runs(done):
    home, printed = done
    parts = read_records(home / "kept", "digits")
    assert [Record.from_dict(content) for content in printed["parts"]] == parts
    assert [(part.label, part.seed, part.steps) for part in parts] == [("vit", 0, STEPS), ("vit", 1, STEPS)]
    for part in parts:
        trained = open_run(home / "runs" / "digits" / f"vit-{STEPS}steps-seed{part.seed}")
        assert part.test["accuracy"] == trained.result["test"]["accuracy"]
        assert part.parameters == trained.parameters == 152_202
        assert part.minutes == pytest.approx(trained.seconds / 60, abs=0.006)
        assert part.threads == 1 and part.peak_gigaflops > 0 and 0 < (part.share_of_peak or 0) < 5
        assert part.differs == (f"train.steps={STEPS}",)
        assert part.command == f"qkv reproduce digits --seeds 2 --steps {STEPS}"
        assert "confusion" not in part.test
        steps, minutes, values = zip(*part.curve, strict=True)
        assert steps[-1] == STEPS and list(minutes) == sorted(minutes)
        assert any(value == pytest.approx(trained.result["validation"]["accuracy"], abs=1e-6) for value in values)


def test_reproduce_records_the_speed_of_the_metrics_file(done):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["timing"]["items_per_second"] for line in lines if "timing" in line]
    (part, _) = read_records(home / "kept", "digits")
    assert part.items_per_second == pytest.approx(len(speeds) / sum(1 / speed for speed in speeds), rel=1e-3)


def test_reproduce_does_not_train_or_measure_finished_parts_again(done, unchecked):
    home, _ = done
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    kept = (home / "kept" / "digits.json").read_text()
    told = []
    found = reproduce(
        get_row("digits"),
        seeds=2,
        budget=Budget(steps=STEPS),
        runs=home / "runs",
        results=home / "kept",
        on_note=told.append,
    )
    assert sum("finished already" in text for text in told) == 2
    assert (home / "kept" / "digits.json").read_text() == kept
    assert list(found.records) == read_records(home / "kept", "digits")
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*")}


class Killer(TrainCallback):
    """Interrupts the training after some steps, as a kill would."""

    def on_log(self, progress):
        if progress.step >= STEPS // 2:
            raise KeyboardInterrupt


def test_reproduce_resumes_a_killed_run_to_the_same_numbers(done, tmp_path, unchecked):
    home, _ = done
    words = {"budget": Budget(steps=STEPS), "runs": tmp_path / "runs", "results": tmp_path / "kept"}
    with pytest.raises(KeyboardInterrupt):
        reproduce(get_row("digits"), **words, callback=lambda stage, settings: Killer())
    assert not (tmp_path / "kept").exists()
    (again,) = reproduce(get_row("digits"), **words).records
    (whole, _) = read_records(home / "kept", "digits")
    assert again.test == whole.test
    assert [(step, value) for step, _, value in again.curve] == [(step, value) for step, _, value in whole.curve]


def test_reproduce_from_a_finished_run_records_the_command_that_makes_it_again(done, tmp_path, capsys, unchecked):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed1"
    words = ["reproduce", "digits", "--from", str(folder), "--results", str(tmp_path)]
    assert run(words) == 2  # its steps are not the row's
    assert "choose one with --label: vit" in capsys.readouterr().err
    assert run([*words, "--label", "vit", "--peak", "100"]) == 0
    shown = capsys.readouterr().out
    assert f"train.steps={STEPS}" in shown and "stretch target: 97%" in shown
    (entered,) = read_records(tmp_path, "digits")
    (_, own) = read_records(home / "kept", "digits")
    assert entered.command.startswith(f"qkv train vit-digits --set train.steps={STEPS} --set ")
    assert run([*shlex.split(entered.command)[1:], "--show"]) == 0
    assert tomllib.loads(capsys.readouterr().out) == read_toml(folder / "recipe.toml")
    assert entered.peak_gigaflops == 100.0
    assert (entered.share_of_peak or 0) * 100 == pytest.approx((own.share_of_peak or 0) * own.peak_gigaflops, rel=0.01)
    assert (entered.test, entered.curve, entered.began) == (own.test, own.curve, own.began)
    status = json.loads((folder / "run.json").read_text())
    assert entered.commit == status["commit"]


def test_write_records_keeps_each_label_and_seed_once_in_order(done, tmp_path):
    home, _ = done
    one, two = read_records(home / "kept", "digits")
    write_records(tmp_path, get_row("digits"), two)
    write_records(tmp_path, get_row("digits"), replace(one, steps=1))
    path = write_records(tmp_path, get_row("digits"), one)
    assert read_records(tmp_path, "digits") == [one, two]
    assert json.loads(path.read_text()) == {
        "row": "digits",
        "parts": json.loads(json.dumps([asdict(one), asdict(two)])),
    }
    path.write_text('{"parts": [{"label": "vit"}]}')
    with pytest.raises(ValueError, match=r"digits\.json is not a file of `qkv reproduce`: .* is missing"):
        read_records(tmp_path, "digits")


def test_default_results_folder_keeps_trials_apart_from_results(tmp_path, monkeypatch):
    assert default_results_folder(tmp_path, Budget(minutes=2)) == tmp_path / "trials"
    assert default_results_folder(tmp_path).parts[-2:] == ("docs", "results")
    monkeypatch.setattr("qkv.bench.reproduce.runner.find_checkout", lambda: None)
    assert default_results_folder(tmp_path) == tmp_path / "results"


@pytest.mark.parametrize("name", ROWS)
def test_every_row_part_has_its_own_label_and_no_differences_from_its_recipe(name):
    each = get_row(name)
    assert len({part.label for part in each.parts}) == len(each.parts)
    for part in each.parts:
        config = part_config(part, 3)
        config = with_teacher(config, "some/run") if part.teacher else config
        assert config.seed == 3 and find_differences(config, part) == ()


def test_a_part_with_a_teacher_comes_after_it_and_differs_from_one_without():
    variants = get_row("birthplaces-variants")
    with_teachers = [(place, part) for place, part in enumerate(variants.parts) if part.teacher]
    assert [part.label for _, part in with_teachers] == ["perceiver"]
    for place, part in with_teachers:
        assert part.teacher in [earlier.label for earlier in variants.parts[:place]]
        alone = part_config(part, 0)
        assert find_differences(alone, part) == ('data.teacher=""',)
        command = train_command(part, with_teacher(alone, "/home/someone/runs/rope"))
        assert "--set data.teacher=RUN_OF_ROPE" in command and "someone" not in command


def test_a_part_of_some_epochs_is_the_first_part_of_its_schedule(tmp_path, unchecked):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), dtype=np.uint8)
    labels = np.arange(24) % 3
    np.savez(tmp_path / "cifar100.npz", train_x=pixels, train_y=labels, test_x=pixels[:6] // 2, test_y=labels[:6])
    (part,) = get_row("cifar100-nyu-hw4").parts
    small = {
        "model.dim": 8,
        "model.heads": 2,
        "model.layers": 1,
        "data.batch_size": 8,
        "train.schedule.total_steps": 30,
    }
    small |= {"train.checkpoint.evaluate_every": 3}
    row = replace(get_row("cifar100-nyu-hw4"), parts=(replace(part, changes=small, epochs=2),))
    (record,) = reproduce(row, data=tmp_path, runs=tmp_path / "runs", results=tmp_path / "kept").records
    assert record.steps == 6 and record.differs == (), "two epochs of three batches; the schedule is as it was"
    trained = open_run(tmp_path / "runs" / "cifar100-nyu-hw4" / "nyu-hw4-seed0")
    assert trained.config.stages["train"].schedule.total_steps == 30
    batches = ImageBatches(load_images(tmp_path / "cifar100.npz", validation=0).train, 8)
    epoch_flops, items = count_epoch_flops(trained.model, classification(), batches)
    assert items == 24 and record.flops == pytest.approx(2 * epoch_flops, rel=0.001), "of both epochs"
    assert Budget(minutes=1).apply(part).epochs is None and Budget().apply(part).epochs == 10


def school(*labels: str) -> ResultRow:
    """A row whose last part, the student, learns the pseudo-labels of the part before it."""
    small = {"data.people": 30, "model.dim": 16, "model.layers": 1, "model.heads": 2}
    parts = [RowPart(label, "birthplaces", "small", changes=small) for label in (*labels, "student")]
    student = replace(parts[-1], teacher=labels[-1])
    return ResultRow("school", "Teachers and a student", (*parts[:-1], student), (EXACT_MATCH,), "exact")


def test_reproduce_teaches_a_student_by_the_run_of_the_same_seed_and_row(tmp_path, unchecked):
    made = reproduce(school("reader"), seeds=2, budget=Budget(steps=2), runs=tmp_path, results=tmp_path / "kept")
    told = [(part.label, part.seed) for part in made.records]
    assert told == [("reader", 0), ("student", 0), ("reader", 1), ("student", 1)]
    for seed in range(2):
        student = open_run(tmp_path / "school" / f"student-2steps-seed{seed}")
        assert Path(student.config.data.teacher) == tmp_path / "school" / f"reader-2steps-seed{seed}"


def test_reproduce_label_trains_the_teacher_first(tmp_path, unchecked):
    row = school("other", "reader")
    made_by = {"budget": Budget(steps=2), "runs": tmp_path, "results": tmp_path / "kept"}
    made = reproduce(row, "student", **made_by)
    assert [part.label for part in made.records] == ["reader", "student"]
    assert made.records[1].command == "qkv reproduce school --label student --steps 2"
    made = reproduce(row, "other", **made_by)
    assert [part.label for part in made.records] == ["other"]
    assert [part.label for part in read_records(tmp_path / "kept", "school")] == ["other", "reader", "student"]


def test_find_differences_ignores_what_minutes_decide():
    part = get_row("cifar10-20").get_part("nyu-hw4")
    known = get_recipe("vit-cifar10")
    config = known.resolve({"model.dim": 128, "train.optimizer.lr": 0.002}, preset="nyu-hw4")
    fitted = replace(config, stages={"train": rescale_steps(config.stages["train"], 200, evaluations=10)})
    assert find_differences(fitted, part) == ("model.dim=128", "train.optimizer.lr=0.002")
    with pytest.raises(ValueError, match="nyu-hw4 is a run of vit-cifar10, vit; this one is of vit-cifar10, cnn"):
        find_differences(known.resolve(model="cnn"), part)


def test_thin_curve_keeps_the_last_point(done):
    home, _ = done
    points = [(step, step / 10, 0.5) for step in range(1001)]
    thin = thin_curve(points)
    assert (
        len(thin) <= 60 and thin[0] == points[0] and thin[-1] == points[-1] and thin_curve(points[:60]) == points[:60]
    )
    assert read_curve(open_run(home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"), "no such number") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digit"], "the results table has no row 'digit'; did you mean digits?"),
        (["zzz"], "expected one of digits, cifar10-20"),
        (["digits", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["digits", "--minutes", "0"], "minutes must be above 0, got 0"),
        (["digits", "--minutes", "nan"], "minutes must be above 0, got nan"),
        (["digits", "--steps", "-3"], "steps must be at least 1, got -3"),
        (["digits", "--steps", "3", "--minutes", "1"], "minutes or steps, not both"),
        (["multi30k"], "multi30k needs multi30k: give the folder that contains it with --data FOLDER"),
        (
            ["cifar10-20", "--data", "no/such"],
            "--data no/such is not a folder; expected one that contains cifar10.npz",
        ),
        (["cifar10-20", "--data", "."], ". has no cifar10.npz or cifar-10-batches-bin, which cifar10-20 needs"),
        (["digits", "--from", "docs"], "docs is not a run: it has no recipe.toml"),
        (["digits", "--from", "docs", "--seeds", "2"], "--seeds is for training one"),
        (["digits", "--label", "vti"], "digits has no part 'vti'; did you mean vit?"),
        (["digits", "--commit", "abc"], "--commit describes a finished run: it goes with --from RUN"),
        (["digits", "--peak", "9"], "--peak describes a finished run"),
        (["--from", "docs"], "--from needs a row"),
        (["--draw", "--results", "src"], "src has no results to draw"),
    ],
)
def test_reproduce_wrong_use_is_one_sentence(arguments, said, capsys, unchecked):
    assert run(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_enter_run_rejects_an_unfinished_run_and_another_label(done, tmp_path, unchecked):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"
    with pytest.raises(ValueError, match=r"digits has no part 'vti'; did you mean vit\?"):
        enter_run(get_row("digits"), folder, "vti", results=tmp_path)
    with pytest.raises(ValueError, match="ours is a run of vit-cifar10, vit; this one is of vit-digits, vit"):
        enter_run(get_row("cifar10-20"), folder, "ours", results=tmp_path)
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    for name in ("recipe.toml", "run.json"):
        (unfinished / name).write_text((folder / name).read_text().replace('"finished": true', '"finished": false'))
    with pytest.raises(ValueError, match="is not finished"):
        enter_run(get_row("digits"), unfinished, "vit", results=tmp_path)


def test_reproduce_lists_the_rows_with_the_data_they_need(capsys):
    assert run(["reproduce", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == list(ROWS)
    assert told["cifar10-20"]["needs"] == ["cifar10.npz"] and told["cifar10-20"]["minutes"] == 40
    assert run(["reproduce"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ROWS)
    assert max(map(len, shown.splitlines())) <= 80


def test_git_commit_is_that_of_the_checkout_and_unknown_elsewhere(monkeypatch, tmp_path):
    import subprocess

    import qkv
    from qkv.training.runs import find_checkout, git_commit

    root = Path(__file__).resolve().parents[2]
    if find_checkout() == root:
        told = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
        assert not told or told.startswith(git_commit().removesuffix("-dirty"))
    monkeypatch.setattr(qkv, "__file__", str(tmp_path / "site-packages" / "qkv" / "__init__.py"))
    assert find_checkout() is None and git_commit() == "unknown"
