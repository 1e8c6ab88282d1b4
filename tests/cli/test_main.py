"""The command line as a stranger meets it."""

import json
import math
import subprocess
import sys
import tomllib

import pytest

from qkv.cli.checkpoint import trained
from qkv.cli.console import print_json
from qkv.cli.main import COMMANDS, run


def test_help_lists_every_command_without_importing_torch():
    code = "import sys; from qkv.cli.main import run; run(['--help']); sys.exit('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert all(name in shown.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_json(name, capsys):
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert f"qkv {name}" in shown.partition("Examples:")[2]
    assert "[default: False]" not in shown


def test_the_commands_are_listed_in_the_order_in_which_they_are_met(capsys):
    run(["--help"])
    shown = capsys.readouterr().out
    assert sorted(COMMANDS, key=lambda name: shown.index(f"│ {name} ")) == list(COMMANDS)


def test_an_unknown_command_names_the_nearest(capsys):
    assert run(["tuor"]) == 2
    assert capsys.readouterr().err == "qkv: there is no command 'tuor'; did you mean tour? Try: qkv --help\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doctor", "--jsn"], "Unknown option"),
        (["tour", "--steps", "many"], "many"),
        (["tour", "--steps", "-1"], "steps is a number, 0 or more; got -1"),
        (["doctor", "--device", "abacus"], "there is no device 'abacus' here"),
        (["check", "layer.py:Layer", "--seed", "3"], "belong to grading"),
        (["check", "layer.py:Layer", "--matrix"], "--matrix goes with --zoo"),
        (["check", "--zoo", "mask", "strickt"], "the zoo has no mutant 'mask strickt'; did you mean mask strict"),
        (["check", "--zoo", "nothing of the kind"], "`qkv check --zoo` walks through all of them"),
        (["check", "--zoo", "--matrix", "mask strict"], "leave the name of the mutant out"),
        (["check", "layer.py:Layer", "--family", "causal"], "belong to hf:all"),
        (["check", "layer.py:Layer", "--kind", "window"], "--kind window --window 128"),
        (["check", "--rubric", "rope"], "name the submissions"),
        (["use", "runs/gpt-text-1", "a text", "--count", "0"], "1 or more; got 0"),
        (["use", "qkv:digits", "a.png", "--top", "0"], "--top is how many classes are shown, 1 or more; got 0"),
        (["use", "qkv:biographies", "Who?", "--threshold", "nan"], "from 0 to 1; got nan"),
        (["byhand", "--example", "nothing"], "there are three-tokens"),
        (["byhand", "tests"], "tests is a folder; expected a file"),
        (["check", "torch.nn:MultiheadAttentoin"], "did you mean MultiheadAttention?"),
        (["check", "torch.nn:MultiheadAttention", "--html", "no/such/page.html"], "there is no folder no/such"),
        (["claims", "run", "copy", "--report", "tests"], "tests is a folder"),
        (["studio", "--runs", "README.md"], "README.md is not a folder; --runs is the folder in which runs are kept"),
        (["train", "vit-digits", "--folder", "README.md"], "README.md is a file; a run wants a folder of its own"),
        (["train", "vit-digits", "--steps", "9" * 20], "at most 1,000,000,000,000"),
        (["train", "vit-digits", "--set", f"train.steps={'9' * 400}"], "steps is at most"),
        (["train", "vit-digits", "--minutes", "nan"], "minutes are above 0"),
        (["train", "vit-digits", "--set", "model.dim=99999999999"], "has not the memory"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(arguments, said, capsys):
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("qkv: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("command", [["use"], ["look"], ["convert", "--to", "hf"], ["eval"]], ids=lambda line: line[0])
def test_a_run_that_is_not_finished_is_told_so_with_the_command_that_goes_on(command, capsys, tmp_path):
    place = tmp_path / "run"
    (place / "checkpoints").mkdir(parents=True)
    assert run(["train", "vit-digits", "--set", "model.layers=2", "--show"]) == 0
    (place / "recipe.toml").write_text(capsys.readouterr().out)
    (place / "run.json").write_text('{"finished": false, "parameters": 1}')
    assert run([*command, str(place), *(["hello"] if command[0] != "eval" else [])]) == 2
    assert f"go on with it: qkv train --config {place / 'recipe.toml'} --folder {place}\n" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_not_asked_of_the_hub(capsys, tmp_path, monkeypatch):
    (tmp_path / "runs" / "digits-1").mkdir(parents=True)
    (tmp_path / "runs" / "digits-1" / "recipe.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert run(["use", "runs/digits-2", "seven.png"]) == 2
    assert capsys.readouterr().err == "qkv: there is no run runs/digits-2; `qkv runs runs` lists those there are\n"


def test_a_model_that_ships_is_found_in_a_folder_of_runs_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/recipe.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert run(["use", "qkv:digits", "none.png"]) == 2
    assert "none.png" in capsys.readouterr().err
    assert trained("gpt2") == "gpt2"


def test_json_has_no_number_that_json_does_not_know(capsys):
    print_json({"delay": math.inf, "losses": [math.nan, 1.5]})
    assert json.loads(capsys.readouterr().out) == {"delay": None, "losses": [None, 1.5]}


def test_a_recipe_that_is_shown_is_toml_however_narrow_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["train", "gpt-text", "--show"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"]["position"]["kind"] == "Rope"


def test_debug_shows_where_an_error_happened():
    with pytest.raises(ValueError, match="steps is a number"):
        run(["tour", "--steps", "-1", "--debug"])


def test_the_tour_works_the_textbook_example_trains_looks_and_checks(capsys, unchecked):
    assert run(["tour", "--json", "--steps", "150"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [[round(number, 4) for number in row] for row in found["example"]["output"]] == [
        [-1.9545, -2.9815],
        [-1.9934, -2.9910],
        [1.0562, 0.3563],
    ]
    assert found["digits"]["accuracy"] > 0.3  # chance is a tenth
    assert sum(map(sum, found["digits"]["weights"])) == pytest.approx(1)
    assert [finding["check"] for finding in found["checked"]["shown"] if finding["verdict"] == "fail"]


def test_the_tour_tells_its_story_in_80_columns_and_leaves_a_report(capsys, tmp_path, unchecked):
    assert run(["tour", "--steps", "2", "--folder", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "What to try next" in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_the_doctor_measures_this_machine(capsys):
    assert run(["doctor", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    speeds = {speed["dtype"]: speed["gigaflops"] for speed in found["speeds"]}
    assert speeds["float32"] > 0
    assert found["best_dtype"] in speeds
    assert run(["doctor", "--device", "cpu"]) == 0
    assert "Train in" in capsys.readouterr().out
