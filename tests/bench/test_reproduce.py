"""A row is trained, measured, kept and drawn; a killed one goes on; a run trained by hand is entered."""

import contextlib
import io
import json
import shlex
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import jaxtyping
import pytest

from qkv.bench.reproduce import ROWS, row
from qkv.bench.reproduce.carry_out import Budget, default_keep, enter, reproduce
from qkv.bench.reproduce.measured import Measured, keep, read
from qkv.bench.reproduce.reading import curve, differences, part_recipe, thinned, train_command, with_teacher
from qkv.bench.reproduce.rows import EXACT, Part, Row
from qkv.cli.main import run
from qkv.training import Report
from qkv.training.recipes import open_run, system
from qkv.training.recipes.plain import read_toml
from qkv.training.recipes.time_budget import of_steps

STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def _no_reports():
    """Runs without their page: it is tested elsewhere, and takes longer than these runs do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.training.recipes.report.report_page", lambda run, task, samples: "")
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """digits, two seeds of a few steps, by the command; what it printed, and where it was."""
    home = tmp_path_factory.mktemp("reproduce")
    jaxtyping.config.update("jaxtyping_disable", True)
    said = io.StringIO()
    words = ["reproduce", "digits", "--steps", str(STEPS), "--seeds", "2", "--folder", str(home / "runs")]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        assert run([*words, "--keep", str(home / "kept"), "--json"]) == 0
    jaxtyping.config.update("jaxtyping_disable", False)
    return home, json.loads(said.getvalue())


def test_what_is_printed_is_what_is_kept_and_tells_what_the_runs_did(done):
    home, printed = done
    parts = read(home / "kept", "digits")
    assert [Measured.of(plain) for plain in printed["parts"]] == parts
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


def test_the_speed_is_that_of_the_log(done):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["timing"]["items_per_second"] for line in lines if "timing" in line]
    (part, _) = read(home / "kept", "digits")
    assert part.items_per_second == pytest.approx(len(speeds) / sum(1 / speed for speed in speeds), rel=1e-3)


def test_what_is_finished_is_neither_trained_nor_measured_again(done, unchecked):
    home, _ = done
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    kept = (home / "kept" / "digits.json").read_text()
    told = []
    found = reproduce(
        row("digits"),
        seeds=2,
        budget=Budget(steps=STEPS),
        home=home / "runs",
        kept=home / "kept",
        note=told.append,
    )
    assert sum("finished already" in text for text in told) == 2
    assert (home / "kept" / "digits.json").read_text() == kept
    assert list(found.parts) == read(home / "kept", "digits")
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*")}


class Killer(Report):
    """Ends the process, as it were, after some steps."""

    def progress(self, progress):
        if progress.step >= STEPS // 2:
            raise KeyboardInterrupt


def test_a_killed_one_goes_on_where_it_stopped_to_the_same_numbers(done, tmp_path, unchecked):
    home, _ = done
    words = {"budget": Budget(steps=STEPS), "home": tmp_path / "runs", "kept": tmp_path / "kept"}
    with pytest.raises(KeyboardInterrupt):
        reproduce(row("digits"), **words, listen=lambda stage, settings: Killer())
    assert not (tmp_path / "kept").exists()
    (again,) = reproduce(row("digits"), **words).parts
    (whole, _) = read(home / "kept", "digits")
    assert again.test == whole.test
    assert [(step, value) for step, _, value in again.curve] == [(step, value) for step, _, value in whole.curve]


def test_a_run_trained_by_hand_is_entered_with_the_command_that_makes_it_again(done, tmp_path, capsys, unchecked):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed1"
    words = ["reproduce", "digits", "--from", str(folder), "--keep", str(tmp_path)]
    assert run(words) == 2  # its steps are not the row's
    assert "--label says which: vit" in capsys.readouterr().err
    assert run([*words, "--label", "vit", "--peak", "100"]) == 0
    shown = capsys.readouterr().out
    assert f"train.steps={STEPS}" in shown and "the aim: 97 %" in shown
    (entered,) = read(tmp_path, "digits")
    (_, own) = read(home / "kept", "digits")
    assert entered.command.startswith(f"qkv train vit-digits --set train.steps={STEPS} --set ")
    assert run([*shlex.split(entered.command)[1:], "--show"]) == 0
    assert tomllib.loads(capsys.readouterr().out) == read_toml(folder / "recipe.toml")
    assert entered.peak_gigaflops == 100.0
    assert (entered.share_of_peak or 0) * 100 == pytest.approx((own.share_of_peak or 0) * own.peak_gigaflops, rel=0.01)
    assert (entered.test, entered.curve, entered.began) == (own.test, own.curve, own.began)
    status = json.loads((folder / "run.json").read_text())
    assert entered.commit == status["commit"]


def test_one_label_and_seed_is_kept_once_in_the_rows_order(done, tmp_path):
    home, _ = done
    one, two = read(home / "kept", "digits")
    keep(tmp_path, row("digits"), two)
    keep(tmp_path, row("digits"), replace(one, steps=1))
    path = keep(tmp_path, row("digits"), one)
    assert read(tmp_path, "digits") == [one, two]
    assert json.loads(path.read_text()) == {
        "row": "digits",
        "parts": json.loads(json.dumps([asdict(one), asdict(two)])),
    }
    path.write_text('{"parts": [{"label": "vit"}]}')
    with pytest.raises(ValueError, match=r"digits\.json is not what `qkv reproduce` keeps: .* is missing"):
        read(tmp_path, "digits")


def test_trials_are_kept_apart_from_results(tmp_path, monkeypatch):
    assert default_keep(tmp_path, Budget(minutes=2)) == tmp_path / "trials"
    assert default_keep(tmp_path).parts[-2:] == ("docs", "results")
    monkeypatch.setattr("qkv.bench.reproduce.carry_out.checkout", lambda: None)
    assert default_keep(tmp_path) == tmp_path / "results"


@pytest.mark.parametrize("name", ROWS)
def test_every_part_has_a_recipe_of_its_own_and_differs_from_it_in_nothing(name):
    each = row(name)
    assert len({part.label for part in each.parts}) == len(each.parts)
    for part in each.parts:
        recipe = part_recipe(part, 3)
        recipe = with_teacher(recipe, "some/run") if part.teacher else recipe
        assert recipe.seed == 3 and differences(recipe, part) == ()


def test_who_is_taught_comes_after_the_teacher_and_is_told_from_who_is_not():
    variants = row("birthplaces-variants")
    taught = [(place, part) for place, part in enumerate(variants.parts) if part.teacher]
    assert [part.label for _, part in taught] == ["perceiver"]
    for place, part in taught:
        assert part.teacher in [earlier.label for earlier in variants.parts[:place]]
        alone = part_recipe(part, 0)
        assert differences(alone, part) == ('data.teacher=""',)
        command = train_command(part, with_teacher(alone, "/home/someone/runs/rope"))
        assert "--set data.teacher=RUN_OF_ROPE" in command and "someone" not in command


def school(*labels: str) -> Row:
    """A row whose last part, the pupil, is taught by the part before it."""
    small = {"data.people": 30, "model.dim": 16, "model.layers": 1, "model.heads": 2}
    parts = [Part(label, "birthplaces", "small", changes=small) for label in (*labels, "pupil")]
    taught = replace(parts[-1], teacher=labels[-1])
    return Row("school", "Readers and a pupil", (*parts[:-1], taught), (EXACT,), "exact")


def test_a_pupil_learns_from_the_run_of_its_own_seed_and_row(tmp_path, unchecked):
    made = reproduce(school("reader"), seeds=2, budget=Budget(steps=2), home=tmp_path, kept=tmp_path / "kept")
    told = [(part.label, part.seed) for part in made.parts]
    assert told == [("reader", 0), ("pupil", 0), ("reader", 1), ("pupil", 1)]
    for seed in range(2):
        pupil = open_run(tmp_path / "school" / f"pupil-2steps-seed{seed}")
        assert Path(pupil.recipe.data.teacher) == tmp_path / "school" / f"reader-2steps-seed{seed}"


def test_one_part_alone_is_trained_after_the_one_that_teaches_it(tmp_path, unchecked):
    held, made_by = school("other", "reader"), {"budget": Budget(steps=2), "home": tmp_path, "kept": tmp_path / "kept"}
    made = reproduce(held, "pupil", **made_by)
    assert [part.label for part in made.parts] == ["reader", "pupil"]
    assert made.parts[1].command == "qkv reproduce school --label pupil --steps 2"
    made = reproduce(held, "other", **made_by)
    assert [part.label for part in made.parts] == ["other"]
    assert [part.label for part in read(tmp_path / "kept", "school")] == ["other", "reader", "pupil"]


def test_what_minutes_decide_is_no_departure_and_what_a_person_changed_is():
    part = row("cifar10-20").part("course")
    known = system("vit-cifar10")
    recipe = known.recipe({"model.dim": 128, "train.optimiser.lr": 0.002}, preset="course")
    fitted = replace(recipe, stages={"train": of_steps(recipe.stages["train"], 200, looks=10)})
    assert differences(fitted, part) == ("model.dim=128", "train.optimiser.lr=0.002")
    with pytest.raises(ValueError, match="course is a run of vit-cifar10, vit; this one is of vit-cifar10, cnn"):
        differences(known.recipe(model="cnn"), part)


def test_curves_are_thin_and_keep_their_end(done):
    home, _ = done
    points = [(step, step / 10, 0.5) for step in range(1001)]
    thin = thinned(points)
    assert len(thin) <= 60 and thin[0] == points[0] and thin[-1] == points[-1] and thinned(points[:60]) == points[:60]
    assert curve(open_run(home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"), "no such number") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digit"], "there is no row 'digit' in the results table; did you mean digits?"),
        (["zzz"], "there are digits, cifar10-20"),
        (["digits", "--seeds", "0"], "seeds are counted from 1; got 0"),
        (["digits", "--minutes", "0"], "minutes are above 0; got 0"),
        (["digits", "--minutes", "nan"], "minutes are above 0; got nan"),
        (["digits", "--steps", "-3"], "steps are at least 1; got -3"),
        (["digits", "--steps", "3", "--minutes", "1"], "minutes or steps, not both"),
        (["multi30k"], "multi30k reads multi30k: --data FOLDER says which folder has it"),
        (["cifar10-20", "--data", "no/such"], "--data no/such is not a folder; expected one that has cifar10.npz or"),
        (["cifar10-20", "--data", "."], ". has no cifar10.npz or cifar-10-batches-bin, which cifar10-20 reads"),
        (["digits", "--from", "docs"], "docs is not a run: it has no recipe.toml"),
        (["digits", "--from", "docs", "--seeds", "2"], "--seeds is for training one"),
        (["digits", "--label", "vti"], "digits has no part 'vti'; did you mean vit?"),
        (["digits", "--commit", "abc"], "--commit tells about a finished run: it goes with --from RUN"),
        (["digits", "--peak", "9"], "--peak tells about a finished run"),
        (["--from", "docs"], "--from goes with the name of a row"),
        (["--draw", "--keep", "src"], "src has no results to draw"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, said, capsys, unchecked):
    assert run(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_a_run_that_is_not_finished_or_of_another_label_is_refused(done, tmp_path, unchecked):
    home, _ = done
    folder = home / "runs" / "digits" / f"vit-{STEPS}steps-seed0"
    with pytest.raises(ValueError, match=r"digits has no part 'vti'; did you mean vit\?"):
        enter(row("digits"), folder, "vti", kept=tmp_path)
    with pytest.raises(ValueError, match="ours is a run of vit-cifar10, vit; this one is of vit-digits, vit"):
        enter(row("cifar10-20"), folder, "ours", kept=tmp_path)
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    for name in ("recipe.toml", "run.json"):
        (unfinished / name).write_text((folder / name).read_text().replace('"finished": true', '"finished": false'))
    with pytest.raises(ValueError, match="is not finished"):
        enter(row("digits"), unfinished, "vit", kept=tmp_path)


def test_rows_are_listed_with_what_they_need(capsys):
    assert run(["reproduce", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == list(ROWS)
    assert told["cifar10-20"]["needs"] == ["cifar10.npz"] and told["cifar10-20"]["minutes"] == 40
    assert run(["reproduce"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ROWS)
    assert max(map(len, shown.splitlines())) <= 80


def test_the_commit_is_that_of_the_checkout_and_unknown_elsewhere(monkeypatch, tmp_path):
    import subprocess

    import qkv
    from qkv.training.recipes.source import checkout, commit

    root = Path(__file__).resolve().parents[2]
    if checkout() == root:
        told = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
        assert not told or told.startswith(commit().removesuffix("-dirty"))
    monkeypatch.setattr(qkv, "__file__", str(tmp_path / "site-packages" / "qkv" / "__init__.py"))
    assert checkout() is None and commit() == "unknown"
