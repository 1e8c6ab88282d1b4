"""The `qkv` command line: help, exit codes and one-sentence errors."""

import importlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tomllib

import pytest

from qkv.cli.console import print_json
from qkv.cli.main import COMMANDS, run


def test_help_lists_every_command_quickly_and_without_importing_torch():
    code = "import sys; from qkv.cli.main import run; run(['--help']); sys.exit('torch' in sys.modules)"
    before = os.times().children_user
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert os.times().children_user - before < 0.5  # processor time, which a busy machine does not change
    assert all(f"│ {name} " in shown.stdout for name in COMMANDS)


def test_commands_are_those_of_the_design():
    assert list(COMMANDS) == [
        *("tour", "byhand", "claims", "questions", "check", "grade", "mutants", "train", "runs", "eval", "use"),
        *("look", "studio", "convert", "bench", "reproduce", "doctor"),
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_examples_json_and_named_arguments(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: qkv {name} ") and "ARGS" not in shown.splitlines()[0]
    assert "--json" in shown
    assert "[default: False]" not in shown and "[default: None]" not in shown
    module, _, function = COMMANDS[name][0].partition(":")
    docstring = getattr(importlib.import_module(module), function).__doc__
    examples = re.findall(rf"^ +(qkv {name}\b.*)$", docstring.partition("Examples:")[2], re.MULTILINE)
    assert examples
    lines = [line.strip() for line in shown.splitlines()]
    assert all(example in lines for example in examples), "an example is wrapped at 80 columns"


def test_help_lists_the_commands_in_order(capsys):
    run(["--help"])
    shown = capsys.readouterr().out
    assert sorted(COMMANDS, key=lambda name: shown.index(f"│ {name} ")) == list(COMMANDS)


def test_run_suggests_a_command_for_an_unknown_one(capsys):
    assert run(["tuor"]) == 2
    assert capsys.readouterr().err == "qkv: unknown command 'tuor'; did you mean tour? Try: qkv --help\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doctor", "--jsn"], "Unknown option"),
        (["tour", "--steps", "many"], "many"),
        (["tour", "--steps", "-1"], "--steps must be at least 0, got -1"),
        (["doctor", "--device", "abacus"], "no device 'abacus' on this machine"),
        (["check", "layer.py:Layer", "--seed", "3"], "Unknown option: --seed"),
        (["mutants", "mask", "strickt"], "there is no mutant 'mask strickt'; did you mean mask strict"),
        (["mutants", "nothing of the kind"], "`qkv mutants` lists them"),
        (["mutants", "--markdown", "mask strict"], "omit the name"),
        (["check", "layer.py:Layer", "--family", "causal"], "need the target hf:all"),
        (["check", "layer.py:Layer", "--kind", "window"], "--kind window --window 128"),
        (["grade", "rope"], "name the submissions"),
        (["use", "runs/gpt-text-1", "a text", "--max-new-tokens", "0"], "must be at least 1, got 0"),
        (["use", "qkv:digits", "a.png", "--top", "0"], "--top must be at least 1, got 0"),
        (["use", "qkv:biographies", "Who?", "--threshold", "nan"], "--threshold must be in [0, 1], got nan"),
        (["byhand", "--example", "nothing"], "expected one of three-tokens"),
        (["byhand", "tests"], "tests is a folder; expected a file"),
        (["check", "torch.nn:MultiheadAttentoin"], "did you mean MultiheadAttention?"),
        (["check", "torch.nn:MultiheadAttention", "--html", "no/such/page.html"], "there is no folder no/such"),
        (["claims", "run", "copy", "--report", "tests"], "cannot write tests: it is a folder"),
        (["studio", "--runs", "README.md"], "README.md is not a folder; --runs takes the folder that contains"),
        (["train", "vit-digits", "--folder", "README.md"], "README.md is a file; a run needs its own directory"),
        (["train", "vit-digits", "--steps", "9" * 20], "at most 1,000,000,000,000"),
        (["train", "vit-digits", "--set", f"train.steps={'9' * 400}"], "steps must be at most"),
        (["train", "vit-digits", "--minutes", "nan"], "minutes must be above 0"),
        (["train", "vit-digits", "--set", "model.dim=99999999999"], "out of memory: try a smaller batch"),
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
def test_an_unfinished_run_is_rejected_with_the_command_that_resumes_it(command, capsys, tmp_path):
    place = tmp_path / "run"
    (place / "checkpoints").mkdir(parents=True)
    assert run(["train", "vit-digits", "--set", "model.layers=2", "--show"]) == 0
    (place / "recipe.toml").write_text(capsys.readouterr().out)
    (place / "run.json").write_text('{"finished": false, "parameters": 1}')
    assert run([*command, str(place), *(["hello"] if command[0] != "eval" else [])]) == 2
    assert f"qkv train --config {place / 'recipe.toml'} --folder {place}\n" in capsys.readouterr().err


def test_a_missing_run_is_not_looked_up_on_the_hub(capsys, tmp_path, monkeypatch):
    (tmp_path / "runs" / "digits-1").mkdir(parents=True)
    (tmp_path / "runs" / "digits-1" / "recipe.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert run(["use", "runs/digits-2", "seven.png"]) == 2
    assert capsys.readouterr().err == "qkv: there is no run runs/digits-2; `qkv runs runs` lists the runs\n"


def test_a_bundled_model_is_found_in_a_folder_of_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/recipe.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert run(["use", "qkv:digits", "none.png"]) == 2
    assert "none.png" in capsys.readouterr().err


def test_print_json_writes_null_for_nan_and_infinity(capsys):
    print_json({"delay": math.inf, "losses": [math.nan, 1.5]})
    assert json.loads(capsys.readouterr().out) == {"delay": None, "losses": [None, 1.5]}


def test_train_show_prints_toml_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["train", "gpt-text", "--show"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"]["position"]["kind"] == "Rope"


def test_debug_raises_the_error():
    with pytest.raises(ValueError, match="--steps must be at least 0"):
        run(["tour", "--steps", "-1", "--debug"])


def test_tour_json_has_the_example_the_training_and_the_check(capsys, unchecked):
    assert run(["tour", "--json", "--steps", "150"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [[round(number, 4) for number in row] for row in found["example"]["output"]] == [
        [-1.9545, -2.9815],
        [-1.9934, -2.9910],
        [1.0562, 0.3563],
    ]
    assert found["digits"]["accuracy"] > 0.3  # chance is a tenth
    assert sum(map(sum, found["digits"]["weights"])) == pytest.approx(1)
    assert [finding["check"] for finding in found["checked"]["problems"] if finding["verdict"] == "fail"]


def test_tour_prints_80_columns_and_writes_a_report(capsys, tmp_path, unchecked):
    assert run(["tour", "--steps", "2", "--folder", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "What to try next" in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_doctor_measures_this_machine(capsys):
    assert run(["doctor", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    speeds = {speed["dtype"]: speed["gigaflops"] for speed in found["speeds"]}
    assert speeds["float32"] > 0
    assert found["best_dtype"] in speeds
    assert run(["doctor", "--device", "cpu"]) == 0
    assert "Train in" in capsys.readouterr().out


def test_help_is_a_command_too(capsys):
    assert run(["help"]) == 0
    assert "Usage: qkv COMMAND" in capsys.readouterr().out
    assert run(["help", "look"]) == 0
    assert capsys.readouterr().out.startswith("Usage: qkv look ")


@pytest.mark.parametrize("command", ["look", "use"])
def test_look_and_use_without_a_checkpoint_list_the_bundled_models(command, capsys):
    assert run([command]) == 0
    shown = capsys.readouterr().out
    assert all(f"qkv:{name}" in shown for name in ("biographies", "digits", "shakespeare", "spoken-digits"))
    assert f"qkv {command} qkv:shakespeare" in shown
    assert run([command, "--json"]) == 0
    assert {"name", "summary"} == set(json.loads(capsys.readouterr().out)[0])


def test_byhand_accepts_mask_causal(capsys):
    for option in (["--mask", "causal"], ["--causal"]):
        assert run(["byhand", "--x", "1 0; 0 1", *option, "--json"]) == 0
    first, second = capsys.readouterr().out.strip().split("\n}\n")
    assert json.loads(first + "}") == json.loads(second)


def bad_inputs(folder):
    """Command lines whose input is the mistake, and what the message says."""
    deep, nested = folder / "deep.toml", "[" * 5000 + "]" * 5000
    deep.write_text(f"a = {nested}\n")
    (folder / "huge.toml").write_text(f"a = 1{'0' * 5000}\n")
    config = folder / "model" / "config.json"
    config.parent.mkdir()
    config.write_text("[" * 200_000 + "]" * 200_000)
    new = ["--folder", str(folder / "run"), "--steps", "2"]
    return {
        "nan temperature": (["use", "qkv:shakespeare", "a", "--temperature", "nan"], "temperature must be 0"),
        "infinite temperature": (["use", "qkv:shakespeare", "a", "--temperature", "inf"], "temperature must be 0"),
        "deep config": (["train", "--config", str(deep)], "is not TOML"),
        "huge config": (["train", "--config", str(folder / "huge.toml")], "is not TOML"),
        "deep value": (["train", "vit-digits", "--set", f"model.dim={nested}"], "cannot be read"),
        "deep rubric": (["grade", str(deep), str(deep)], "not valid TOML"),
        "huge rubric": (["grade", str(folder / "huge.toml"), str(deep)], "not valid TOML"),
        "deep model": (["look", str(config.parent), "a"], "is not JSON"),
        "no layers": (["train", "vit-digits", "--set", "model.layers=0", *new], "Muon needs matrices"),
        "unknown metric": (
            ["train", "vit-digits", "--set", "train.checkpoint.best_metric=f1", *new],
            "train.checkpoint.best_metric must be one of loss, accuracy, got 'f1'",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "nan temperature", "infinite temperature", "deep config", "huge config", "deep value",
        "deep rubric", "huge rubric", "deep model", "no layers", "unknown metric",
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_never_called_a_bug(name, tmp_path, capsys):
    arguments, said = bad_inputs(tmp_path)[name]
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert "bug in qkv" not in error
    assert not (tmp_path / "run").exists()


def test_print_json_and_errors_escape_a_lone_surrogate(monkeypatch):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    print_json({"path": "a\udcff"})
    assert run(["byhand", "a\udcff.toml"]) == 2
    written = []
    for stream in streams:
        stream.flush()
        written.append(stream.buffer.getvalue().decode())
    assert json.loads(written[0]) == {"path": "a\udcff"}
    assert written[1] == "qkv: no such file or folder: a\\udcff.toml\n"
