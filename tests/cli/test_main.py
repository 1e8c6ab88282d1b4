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
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from qkv.check.grading import bundled_rubrics
from qkv.cli import console
from qkv.cli.console import print_json
from qkv.cli.main import COMMANDS, run
from qkv.cli.use import _print_prediction
from qkv.training.inference import Prediction


def test_help_lists_every_command_quickly_and_without_importing_torch():
    code = "import sys; from qkv.cli.main import run; run(['--help']); sys.exit('torch' in sys.modules)"
    before = os.times().children_user
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert os.times().children_user - before < 0.5  # processor time, which a busy machine does not change
    assert all(f"│ {name} " in shown.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    "command",
    ["claims", "claims show copy", "claims --json", "questions", "questions average", "runs", "byhand --examples"],
)
def test_commands_that_only_read_do_not_import_torch(command, tmp_path):
    run_folder = tmp_path / "runs" / "one"
    run_folder.mkdir(parents=True)
    (run_folder / "recipe.toml").write_text(
        'recipe = "vit-digits"\nseed = 3\n[model]\nkind = "vit"\n[train]\nsteps = 5\n'
    )
    (run_folder / "run.json").write_text('{"finished": true, "result": {"test": {"accuracy": 0.5}}}')
    code = "import sys; from qkv.cli.main import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout
    if command == "runs":
        assert "vit-digits" in shown.stdout and "50.00%" in shown.stdout


HEAVY = ("torch._dynamo", "transformers", "matplotlib", "pandas", "scipy", "starlette")


@pytest.mark.parametrize(
    "command", ["use qkv:shakespeare Hello --max-new-tokens 8", "look qkv:shakespeare Hello", "check LAYER"]
)
def test_commands_that_compute_import_torch_but_no_other_heavy_module(command):
    layer = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'student.py'}:CausalSelfAttention"
    code = "import sys; from qkv.cli.main import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    arguments = [layer if word == "LAYER" else word for word in command.split()]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    imported = done.stderr.split()
    assert "torch" in imported and done.stdout
    assert [name for name in HEAVY if name in imported] == []


def test_commands_are_those_of_the_design():
    assert list(COMMANDS) == [
        *(
            "tour",
            "examples",
            "byhand",
            "claims",
            "questions",
            "check",
            "grade",
            "mutants",
            "train",
            "runs",
            "eval",
            "use",
        ),
        *("convert", "look", "studio", "bench", "reproduce", "doctor", "completion"),
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
        (["doctor", "--jsn"], "qkv: unknown option --jsn; did you mean --json? Try: qkv doctor --help"),
        (["doctor", "--nothing-like-it"], "qkv: unknown option --nothing-like-it. Try: qkv doctor --help"),
        (["--nope"], "qkv: unknown option --nope. Try: qkv --help"),
        (["tour", "extra"], "qkv: unexpected argument 'extra'; qkv tour takes fewer arguments. Try: qkv tour --help"),
        (["tour", "--steps", "many"], "qkv: --steps must be a whole number, got 'many'. Try: qkv tour --help"),
        (["tour", "--steps", "nan"], "qkv: --steps must be a whole number, got 'nan'."),
        (["tour", "--steps", "1.5"], "qkv: --steps must be a whole number, got '1.5'. Try: qkv tour --help"),
        (["byhand", "--example", "copy", "--digits=3.5"], "qkv: --digits must be a whole number, got '3.5'."),
        (["train", "vit-digits", "--minutes", "x"], "qkv: --minutes must be a number, got 'x'."),
        (["byhand", "--verify"], "qkv: --verify needs a value. Try: qkv byhand --help"),
        (
            ["check", "layer.py:Layer", "--kind", "casual"],
            "qkv: --kind must be one of causal, bidirectional, window, prefix, chunked; got 'casual'; "
            "did you mean causal? Try: qkv check --help",
        ),
        (["completion", "tcsh"], "qkv: SHELL must be one of bash, zsh, fish; got 'tcsh'"),
        (["examples", "README.md"], "qkv: README.md is a file; expected a folder to copy the examples into"),
        (["eval"], "qkv: RUN is missing. Try: qkv eval --help"),
        (["convert", "a", "b"], "qkv: --to is missing. Try: qkv convert --help"),
        (["byhand", ""], "the first argument is empty; expected a name"),
        (["check", ""], "the first argument is empty; expected a name"),
        (["eval", ""], "the first argument is empty; expected a name"),
        (["look", "", "x"], "the first argument is empty; expected a name"),
        (["convert", "", "x", "--to", "hf"], "the first argument is empty; expected a name"),
        (["tour", "--steps", "0", "--folder", ""], "--folder is empty; expected the name of a file or folder"),
        (["tour", "--steps", "0", "--folder", "x"], "--steps 0 trains nothing, so there is no run for --folder"),
        (["tour", "--steps", "-1"], "--steps must be at least 0, got -1"),
        (["doctor", "--device", "abacus"], "no device 'abacus' on this machine"),
        (["check", "layer.py:Layer", "--sed", "3"], "unknown option --sed; did you mean --seed?"),
        (["look", "qkv:shakespeare", "x", "--nope"], "unknown option --nope. Try: qkv look --help"),
        (["mutants", "mask", "strickt"], "there is no mutant 'mask strickt'; did you mean mask strict"),
        (["mutants", "nothing of the kind"], "docs/mutants.md lists them"),
        (["mutants", "--markdown", "mask strict"], "omit the name"),
        (["check", "layer.py:Layer", "--family", "causal"], "need the target hf:all"),
        (["check", "layer.py:Layer", "--kind", "window"], "--kind window --window 128"),
        (["grade", "rope", "--seed", "3"], "name the submissions"),
        (["grade", "rope", "a.py", "--seconds", "0"], "--seconds must be at least 1, got 0"),
        (["use", "runs/gpt-text-1", "a text", "--max-new-tokens", "0"], "must be at least 1, got 0"),
        (["use", "qkv:digits", "a.png", "--top", "0"], "--top must be at least 1, got 0"),
        (["use", "qkv:biographies", "Who?", "--threshold", "nan"], "--threshold must be in [0, 1], got nan"),
        (["use", "qkv:shakespeare", "To be", "--seed", "-1"], "--seed must be from 0 to 2^63 - 1, got -1"),
        (["use", "qkv:digits", "tests"], "tests: this is a folder; this model classifies image files"),
        (["use", "README.md", "x"], "README.md is not a model"),
        (["studio", "tests"], "tests has no config.json; a model is a folder with config.json and model.safetensors"),
        (["studio", "--port", "-1"], "--port must be from 0 to 65535, got -1"),
        (["claims", "run", "copy", "--set", "nope=1"], "copy has no setting 'nope'; its settings: "),
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
        (["train", "vit-digits", "--set", "model.dim=99999999996"], "a size is too large for any tensor"),
        (["train", "vit-digits", "--set", "model.dim=99999999999"], "is not divisible by heads"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(arguments, said, capsys):
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    err = shown.err.removeprefix("reading the data …\n")  # `qkv train` begins before it can see some mistakes
    assert err.startswith("qkv: ")
    assert said in err
    assert err.count("\n") == 1
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


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys):
    assert run(["tour", "--steps", "-1", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("qkv: --steps must be at least 0, got -1\n")


def test_claims_run_answers_a_wrong_setting_without_importing_torch():
    code = "import sys; from qkv.cli.main import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    line = [sys.executable, "-c", code, "claims", "run", "copy", "--set", "nope=1"]
    shown = subprocess.run(line, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr.startswith("qkv: copy has no setting 'nope'")) == (0, True)


def test_train_says_at_once_that_it_reads_the_data(capsys, tmp_path, monkeypatch):
    def build(config):
        raise ValueError(f"notes so far: {capsys.readouterr().err}")

    monkeypatch.setattr("qkv.training.runs._build_task", build)
    assert run(["train", "vit-digits", "--folder", str(tmp_path / "run")]) == 2
    assert "notes so far: reading the data …" in capsys.readouterr().err


def test_runs_compares_settings_and_names_the_test_metrics(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, dim in (("one", 32), ("two", 64)):
        place = tmp_path / "runs" / name
        place.mkdir(parents=True)
        assert run(["train", "vit-digits", "--set", f"model.dim={dim}", "--show"]) == 0
        (place / "recipe.toml").write_text(capsys.readouterr().out)
        (place / "run.json").write_text('{"finished": true, "parameters": 1, "result": {"test": {"accuracy": 0.5}}}')
    assert run(["runs", "runs/one", "runs/two"]) == 0
    shown = capsys.readouterr().out
    assert "test: accuracy" in " ".join(shown.split()) and " setting " in shown
    assert "field" not in shown


def _write_run(place, recipe, status, metrics=(), checkpoint=None):
    place.mkdir(parents=True)
    (place / "recipe.toml").write_text(recipe)
    (place / "run.json").write_text(json.dumps({"parameters": 1000, "finished": False, **status}))
    lines = [{"step": step, "loss": 1.0, "timing": {"seconds": seconds}} for step, seconds in metrics]
    (place / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if checkpoint:
        (place / "checkpoints" / f"step-{checkpoint:08d}").mkdir(parents=True)


@pytest.fixture
def unfinished_runs(tmp_path, capsys, monkeypatch):
    """Runs that ended early in different ways, with their metrics and checkpoints."""
    monkeypatch.chdir(tmp_path)
    console.out.cache_clear()
    assert run(["train", "vit-digits", "--steps", "300", "--show"]) == 0
    recipe = capsys.readouterr().out
    long_name = "a-run-with-a-rather-long-name-to-copy"
    _write_run(tmp_path / "runs" / "asked", recipe, {"stopped": "SIGTERM"}, [(10, 30.0), (40, 424.0)], checkpoint=43)
    _write_run(tmp_path / "runs" / "killed", recipe, {}, [(10, 30.0), (50, 96.0)])
    _write_run(tmp_path / "runs" / "lost", recipe, {"error": "step 2: the loss is nan"})
    result = {"test": {"loss": 2.338, "accuracy": 0.5}}
    _write_run(tmp_path / "runs" / long_name, recipe, {"finished": True, "seconds": 61.2, "result": result})
    return long_name


def test_runs_shows_minutes_step_and_reason_of_runs_that_are_not_finished(unfinished_runs, capsys):
    assert run(["runs"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "  7.1  " in lines["runs/asked"] and lines["runs/asked"].endswith("stopped at step 43 of 300")
    assert "  1.6  " in lines["runs/killed"] and "unfinished at step 50 of 300" in lines["runs/killed"]
    assert lines["runs/lost"].endswith("failed: step 2: the loss is nan")
    assert run(["runs", "--json"]) == 0
    found = {Path(each["folder"]).name: each for each in json.loads(capsys.readouterr().out)}
    assert (found["asked"]["step"], found["asked"]["seconds"], found["killed"]["seconds"]) == (43, 424.0, 96.0)


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_prints_names_and_metrics_unbroken(unfinished_runs, capsys, monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "80")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
    console.out.cache_clear()
    assert run(["runs"]) == 0
    console.out.cache_clear()
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if unfinished_runs in line)
    assert ("accuracy 50.00%" in lines[place]) is not terminal  # a line each in a pipe, so that grep finds the metric
    assert "test: loss 2.338, accuracy 50.00%" in lines[place + terminal]


def test_runs_of_a_folder_that_does_not_exist_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["runs", "nosuch"]) == 2
    assert capsys.readouterr().err == "qkv: there is no folder nosuch\n"


def test_train_says_how_to_resume_when_the_test_is_interrupted(capsys, tmp_path, monkeypatch, unchecked):
    def interrupted(task, model):
        raise KeyboardInterrupt

    line = ["train", "vit-digits", "--steps", "2", "--set", "model.dim=16", "--folder", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr("qkv.training.runs.evaluate_task", interrupted)
        assert run(line) == 130
    assert "stopped; run the same command to resume" in capsys.readouterr().err
    assert run(line) == 0
    assert "accuracy (test)" in capsys.readouterr().out


def test_use_prints_notes_once_marks_unsure_classes_and_gives_no_class_for_a_blank_image(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("one.png", "two.png"):
        drawn = Image.new("L", (64, 64), 255)
        ImageDraw.Draw(drawn).line((32, 8, 32, 56), fill=0, width=6)
        drawn.save(name)
    Image.new("L", (64, 64), 255).save("blank.png")
    assert run(["use", "qkv:digits", "one.png", "two.png", "blank.png"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("cropped, centered and resized") == 1 and "one.png, two.png: " in " ".join(shown.err.split())
    assert "blank.png: the image is probably no digit" in shown.err
    assert shown.out.splitlines()[2].split() == ["blank.png", "no", "digit"]
    assert run(["use", "qkv:digits", "blank.png", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["confidence"] is None


@pytest.mark.parametrize(("confidence", "unsure"), [(0.59, True), (0.61, False)])
def test_use_marks_a_class_below_60_percent_as_unsure(confidence, unsure, capsys):
    prediction = Prediction("classify", "six.png", "0", confidence, {"classes": {"0": confidence}})
    _print_prediction(prediction, single=True)
    assert capsys.readouterr().out.rstrip().endswith("unsure") is unsure


@pytest.mark.parametrize("why", ["no document is about 'John'", "the threshold is 99%"])
def test_use_says_why_an_answer_of_the_model_is_not_used(why, capsys):
    more = {"from": "nothing found", "model_answer": "[Leeds]", "threshold": 0.99, "why": why}
    _print_prediction(Prediction("answer", "Where?", "I do not know.", 0.98, more), single=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.endswith(f"the model's answer was '[Leeds]', 98% confident, but {why}")


@pytest.mark.parametrize(("translation", "shown"), [("", "(nothing)"), ("zwanzig", "zwanzig")])
def test_use_prints_an_empty_translation_as_nothing(translation, shown, capsys):
    _print_prediction(Prediction("translate", "twenty", translation), single=True)
    assert capsys.readouterr().out == f"{shown}\n"


def test_grade_lists_one_line_for_each_rubric(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console.out.cache_clear()
    assert run(["grade"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(bundled_rubrics()) + 2 and max(map(len, lines)) <= 80
    for name, line in zip(bundled_rubrics(), lines[1:], strict=False):
        assert line.startswith(f"{name} ")


def test_grade_with_a_rubric_alone_prints_its_interface_and_points(capsys):
    assert run(["grade", "causal-self-attention"]) == 0
    shown = capsys.readouterr().out
    assert "CausalSelfAttention(config) with config.n_embd" in shown
    assert "     1  deterministic, independent rows" in shown


def test_grade_fails_if_nothing_could_be_graded(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run(["grade", "rope", str(tmp_path / "empty")]) == 2
    assert "has no .py, .ipynb or .zip file to grade" in capsys.readouterr().err
    (tmp_path / "broken.zip").write_bytes(b"no archive")
    assert run(["grade", "rope", str(tmp_path / "broken.zip"), "--seed", "1"]) == 1
    assert "none of the submissions could be graded" in capsys.readouterr().err


def test_help_names_the_first_command_and_lists_debug(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Start with: qkv tour" in shown
    assert "│ --debug " in shown


SLOW = """
import sys, time, types
from qkv.cli import main
def slow(arguments):
    if "early" in arguments:
        print("a result")
    if "loading" in arguments:
        sys.modules["torch"] = types.SimpleNamespace(__spec__=types.SimpleNamespace(_initializing=True))
    time.sleep(1.6)
    return 0
main.run = slow
main.main()
"""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["loading"], "loading PyTorch …\n"),
        ([], "computing …\n"),
        (["early"], ""),
        (["--quiet"], ""),
        (["train", "--json"], ""),
        (["train", "--help"], ""),
        (["help", "train"], ""),
    ],
)
def test_main_says_that_it_is_loading_if_nothing_was_printed_for_a_second(arguments, shown):
    done = subprocess.run([sys.executable, "-c", SLOW, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == shown


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["check", "qkv:digits"], "is a bundled model; name its class"),
        (["check", "torch.nn:MultiheadAttention", "--scale", "nan"], '--scale must be "head" or a number'),
        (["byhand", "--verify", "nothing", "--folder", "class"], "there is no folder nothing"),
        (["use", "qkv:shakespeare", "Hello", "--max-new-tokens", "99999999999"], "must be at most 1,000,000"),
        (["use", "qkv:digits", ""], "the name of the file is empty"),
        (["look", "qkv:digits", __file__, __file__], "takes one input, got 2 files"),
    ],
)
def test_a_wrong_argument_is_explained_by_its_own_name(command, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    assert said in capsys.readouterr().err


def test_use_predicts_the_other_inputs_if_one_cannot_be_read(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("a.png", 0), ("b.png", 255)):
        Image.new("L", (8, 8), value).save(name)
    assert run(["use", "qkv:digits", "a.png", "nothing.png", "b.png", "--json"]) == 2
    said = capsys.readouterr()
    assert [row["input"] for row in json.loads(said.out)] == ["a.png", "b.png"]
    assert "nothing.png" in said.err


def test_an_error_that_quotes_a_file_is_short_and_has_no_control_characters(capsys):
    assert run(["train", "vit-digits", "--set", "a" * 100_000 + "\x1b[2J=1"]) == 2
    said = capsys.readouterr().err
    assert len(said) < 5000 and "\x1b" not in said


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


def test_claims_run_all_writes_the_report_of_what_was_run_when_interrupted(tmp_path, monkeypatch, capsys):
    import qkv.claims

    one = qkv.claims.run("copy")
    results = iter([one])

    def run_or_stop(name, *_, **__):
        for result in results:
            return result
        raise KeyboardInterrupt

    monkeypatch.setattr(qkv.claims, "run", run_or_stop)
    page = tmp_path / "claims.html"
    assert run(["claims", "run", "--all", "--report", str(page)]) == 130
    assert one.statement[:30] in page.read_text(encoding="utf-8")
    assert "interrupted: 1 of" in capsys.readouterr().err


def test_a_piped_bench_shows_its_progress_and_keeps_what_was_measured_when_interrupted(monkeypatch, capsys):
    from qkv import bench
    from qkv.bench.report import BenchmarkResult

    def load(name):
        def measure(quick, on_note):
            on_note("round 1")
            if name != names[0]:
                raise KeyboardInterrupt
            return BenchmarkResult(name, "a measurement", ())

        return measure

    names = list(bench.BENCHMARKS)[:2]
    monkeypatch.setattr(bench, "load_benchmark", load)
    monkeypatch.setattr("qkv.cli.console.LINE_SECONDS", 0.0)
    monkeypatch.setattr("qkv.bench.machine.describe_for_report", dict)
    assert run(["bench", *names, "--json"]) == 130
    printed = capsys.readouterr()
    assert f"{names[0]}: round 1" in printed.err and f"interrupted: {names[1]} not measured" in printed.err
    assert '"a measurement"' in printed.out
