"""`qkv byhand` on the command line."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli.main import run


@pytest.fixture
def qkv(capsys):
    """Run one command line and return exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["byhand", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_byhand_example_prints_every_number_of_the_textbook(qkv):
    code, out, _ = qkv("--example", "three-tokens")
    assert code == 0
    for number in (
        *("5/2", "-1/2", "-3/2", "7/2", "-5/2", "-7/2", "17/2", "-53/4"),
        *("-1.9545", "-2.9815", "-1.9934", "-2.9910", "1.0562", "0.3563"),
        *("-1.9932", "-2.9976", "-1.9996", "-2.9994", "1.1786", "0.1989"),
    ):
        assert number in out
    assert max(map(len, out.splitlines())) <= 80


def test_byhand_json_solves_inline_matrices(qkv):
    code, out, _ = qkv("--q", "1 0", "--k", "1 0; 0 1", "--v", "4; 8", "--scale", "1", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["scores"] == {"exact": [["1", "0"]], "decimal": [[1.0, 0.0]]}
    assert content["weights"]["exact"] == [["e/(e+1)", "1/(e+1)"]]
    assert content["float64"]["agrees"]


def test_byhand_reads_negative_numbers_as_values(qkv):
    assert qkv("--x", "-1 -2; 0 2", "--scale", "-1/2")[0] == 0


def test_byhand_options_change_an_example(qkv):
    code, out, _ = qkv("--example", "three-tokens", "--beta", "1", "--json")
    assert code == 0
    assert [round(number, 4) for number in json.loads(out)["output"]["decimal"][2]] == [1.1786, 0.1989]
    code, out, _ = qkv("--example", "causal", "--no-causal", "--json")
    assert (code, json.loads(out)["mask"]) == (0, None)


def test_byhand_html_writes_the_page(qkv, tmp_path):
    path = tmp_path / "page.html"
    code, out, err = qkv("--example", "causal", "--html", str(path))
    assert (code, out) == (0, "")
    assert err == f"wrote {path}\n"
    assert path.read_text().startswith("<!doctype html>")


def test_byhand_latex_goes_to_stdout(qkv):
    code, out, _ = qkv("--example", "copy", "--latex")
    assert code == 0
    assert r"\begin{pmatrix}" in out


def test_byhand_examples_lists_them(qkv):
    code, out, _ = qkv("--examples")
    assert code == 0
    assert {"three-tokens", "copy", "average", "causal", "two-heads"} <= {line.split()[0] for line in out.splitlines()}


def test_byhand_help_has_examples(capsys):
    assert run(["byhand", "--help"]) == 0
    text = capsys.readouterr().out
    assert "qkv byhand --example three-tokens" in text
    assert "qkv byhand --verify answer.toml" in text


ANSWERS = {
    "a lost minus sign": "Q = [[1, 3], [1, 1], [2.5, -2]]",
    "forgotten 1/√d": "output = [[-1.9932, -2.9976], [-1.9996, -2.9994], [1.1786, 0.1989]]",
    "softmax over the wrong axis: down the columns": """
weights = [[0.0070, 0.0006, 0.8044], [0.0002, 0.0003, 0.1956], [0.9928, 0.9991, 0.0000]]
""",
}


@pytest.mark.parametrize("mistake", ANSWERS)
def test_byhand_verify_names_the_mistake_and_exits_with_1(qkv, tmp_path, mistake):
    path = tmp_path / "answer.toml"
    path.write_text(f'example = "three-tokens"\n{ANSWERS[mistake]}\n')
    code, out, _ = qkv("--verify", str(path))
    assert code == 1
    assert mistake in next(line for line in out.splitlines() if line.startswith("First wrong number"))


def test_byhand_verify_names_and_accepts_early_rounding(qkv, tmp_path):
    path = tmp_path / "answer.toml"
    path.write_text(
        'example = "three-tokens"\nscale = 1\nweights = [[0.00, 0.00, 1.00], [0.00, 0.00, 1.00], [0.62, 0.38, 0.00]]\n'
        "output = [[-2, -3], [-2, -3], [1.17, 0.21]]\n"
    )
    code, out, _ = qkv("--verify", str(path))
    assert code == 0
    assert "early rounding: the weights were rounded to two digits before the last product" in out
    assert qkv("--verify", str(path), "--tolerance", "0.001")[0] == 1


def test_byhand_verify_accepts_a_right_answer(qkv, tmp_path):
    path = tmp_path / "answer.json"
    path.write_text('{"q": [[1]], "k": [[1], [2]], "v": [[1], [3]], "scores": [[1, 2]], "weights": [[0.27, 0.73]]}')
    code, out, _ = qkv("--verify", str(path))
    assert (code, out.splitlines()[-1]) == (0, "All right.")
    content = json.loads(qkv("--verify", str(path), "--json")[1])
    assert content["ok"] is True
    assert [check["verdict"] for check in content["steps"]] == ["right", "right"]


HUNDRED = "; ".join([" ".join(["1"] * 100)] * 100)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--x", "1 2; 3"], "x is ragged: row 1 has 2 numbers, row 2 has 1"),
        (["--x", "1 2; 3 4", "--wq", "1; 2; 3"], "x (2×2) and wq (3×1) cannot be multiplied: wq needs 2 rows"),
        (["--x", "1 two"], "x[1,2]: expected a number such as 3, -1/2, 0.25 or √2, got 'two'"),
        (["--x", "1 1/0"], "x[1,2]: '1/0' divides by zero"),
        (["--x", HUNDRED], "x is 100×100: by hand goes up to 16×16"),
        (["--x", ""], "x: the matrix has an empty row"),
        (["--example", "three-token"], "did you mean three-tokens?"),
        (["--example", "zzz"], "expected one of three-tokens, copy, average, causal, two-heads"),
        (["missing.toml"], "no such file or folder: missing.toml"),
        (["--verify", "missing.toml"], "no such file or folder: missing.toml"),
        ([], "nothing to solve: give --example three-tokens"),
        (["--q", "1 2", "--k", "1 2"], "v missing"),
        (["--q", "1 2", "--k", "1; 2", "--v", "1; 2"], "q has 2, k has 1 numbers per token"),
        (["--q", "1", "--k", "1; 2", "--v", "1"], "every key needs its value"),
        (["--x", "1 2 3", "--heads", "2"], "heads that fit: 1, 3"),
        (["--x", "1 2", "--heads", "0"], "heads: expected a whole number from 1 up"),
        (["--x", "1 2; 3 4", "--mask", "1 0"], "mask needs the shape of the scores, 2×2: it is 1×2"),
        (["--x", "1 2", "--mask", "2"], "mask[1,1]: expected 1 (may attend) or 0 (may not), got '2'"),
        (["--x", "1 2", "--scale", "soft"], "scale: expected a number"),
        (["--x", "1 2", "--positions", "learned"], "positions: expected sinusoidal or a matrix"),
        (["--x", "1 2", "--positions", "1 2 3"], "both need the same shape"),
        (["--x", "1 2", "--q", "1 2"], "not both"),
        (["--x", "1 2", "--wo", "1 2"], "cannot be multiplied: wo needs 2 rows"),
        (["--x", "1 2", "--convention", "diagonal"], "diagonal"),
        (["--x", "1 2", "--digits", "99"], "--digits: expected 0 to 30"),
        (["--x", "1 2", "--html", "/no/such/folder/out.html"], "there is no folder /no/such/folder"),
        (["--x", "1 2", "--html", "/"], "it is a folder"),
    ],
)
def test_byhand_wrong_use_is_one_sentence_and_exit_code_2(qkv, arguments, sentence):
    code, out, err = qkv(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_byhand_command_is_imported_without_torch():
    code = "import sys, qkv.cli.byhand; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PAGE = Path(__file__).parents[2] / "docs" / "byhand.md"
SHOWN = re.findall(r"```console\n\$ qkv byhand (.*)\n([\s\S]*?)```", PAGE.read_text("utf-8"))


def without_rounding(text: str) -> str:
    """Drop the float64 difference, which depends on the machine."""
    return re.sub(r"difference \S+", "difference", text)


@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[command for command, _ in SHOWN])
def test_docs_byhand_page_shows_what_the_command_prints(qkv, tmp_path, monkeypatch, command, expected):
    answer = next(
        block for block in re.findall(r"```toml\n([\s\S]*?)```", PAGE.read_text("utf-8")) if "queries" in block
    )
    written = tmp_path / "docs" / "examples" / "answer.toml"
    written.parent.mkdir(parents=True)
    written.write_text(answer)
    monkeypatch.chdir(tmp_path)
    _, out, err = qkv(*shlex.split(command))
    place, printed = 0, " ".join(without_rounding(out + err).split())  # the page breaks long lines
    for part in re.split(r"^\.\.\.\n", without_rounding(expected), flags=re.MULTILINE):
        place = printed.find(" ".join(part.split()), place)
        assert place >= 0, f"not printed:\n{part}"


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--example", "three-tokens", "--loss", "sum"], {"torch", "numpy", "matplotlib"}),
        (["--example", "two-heads", "--json"], {"torch", "numpy", "matplotlib"}),
        (["--verify", "docs/examples/answer.toml"], {"torch", "matplotlib"}),
    ],
)
def test_byhand_does_not_import_torch(arguments, unwanted):
    code = (
        "import sys; from qkv.cli.main import run; run(['byhand', *sys.argv[1:]]); print(*sys.modules, file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    modules = {*shown.stderr.split()}
    assert "qkv.byhand" in modules and not unwanted & modules


def test_byhand_says_scale_1_where_one_over_the_root_is_one(capsys):
    assert run(["byhand", "--x", "1; 2"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "one token per row · 1 head of dimension 1 · scale 1"
