"""Answers as people write them: names, separators, decimal commas, blanks, and the parts of the softmax as steps."""

import json

import numpy as np
import pytest

from qkv.byhand import make_problem, verify
from qkv.byhand.classroom import grade_answers
from qkv.byhand.files import read_answer, split_answer

Q, K, V = [[1, 0.5], [-1, 2], [0.5, 1]], [[2, 0], [1, -1], [0, 1.5]], [[1, 0], [0, 2], [-1, 1]]
SCALED = np.array(Q) @ np.array(K).T / np.sqrt(2)
SETTINGS = {"q": Q, "k": K, "v": V}
CAUSAL = SETTINGS | {"causal": True}
TRIANGLE = np.tril(np.ones((3, 3)))
EXPONENTIALS = np.exp(SCALED)
WEIGHTS = EXPONENTIALS / EXPONENTIALS.sum(1, keepdims=True)
SMALL = {"q": [["1", "0"]], "k": [["1", "0"], ["0", "1"]], "v": [["4"], ["8"]]}  # weights 0.67 and 0.33, output 5.32


def rounded(matrix, places=3):
    return np.round(matrix, places).tolist()


def check(answer, settings=SETTINGS):
    return verify(make_problem(settings), answer)


@pytest.mark.parametrize(
    "answer",
    [
        {"exponentials": rounded(EXPONENTIALS), "weights": rounded(WEIGHTS)},
        {"exponentials": rounded(EXPONENTIALS), "sums": rounded(EXPONENTIALS.sum(1, keepdims=True))},
        {"sums": [rounded(EXPONENTIALS.sum(1))], "weights": rounded(WEIGHTS)},
        {"exponentials": rounded(np.exp(SCALED - SCALED.max(1, keepdims=True))), "weights": rounded(WEIGHTS)},
    ],
    ids=["exponentials", "both", "sums", "maximum subtracted"],
)
def test_verify_accepts_exponentials_and_sums(answer):
    assert check(answer).ok


@pytest.mark.parametrize("hidden", [TRIANGLE, np.ones((3, 3))], ids=["without masked numbers", "with them"])
def test_verify_accepts_exponentials_with_and_without_masked_numbers(hidden):
    powers = EXPONENTIALS * TRIANGLE
    answer = {"exponentials": EXPONENTIALS * hidden, "sums": powers.sum(1, keepdims=True)}
    answer["weights"] = powers / powers.sum(1, keepdims=True)
    assert check({step: rounded(matrix) for step, matrix in answer.items()}, CAUSAL).ok


@pytest.mark.parametrize(
    ("step", "change", "mistake"),
    [
        ("exponentials", lambda powers: np.exp2(SCALED), "2^x instead of e^x"),
        ("exponentials", lambda powers: 1 / powers, "e^(−x) instead of e^x: a lost sign in every exponent"),
        ("sums", lambda powers: powers.sum(0)[:, None], "summed over the wrong axis: row 1 uses the sum of column 1"),
        ("weights", lambda powers: powers, "not divided by the sum: these are the exponentials"),
    ],
)
def test_verify_names_a_slip_in_the_exponentials_or_sums(step, change, mistake):
    answer = {"scaled": SCALED, "exponentials": EXPONENTIALS}
    if step == "exponentials":
        answer[step] = change(EXPONENTIALS)
    answer["sums"] = answer["exponentials"].sum(1, keepdims=True) if step != "sums" else change(EXPONENTIALS)
    answer["weights"] = answer["exponentials"] / answer["sums"] if step != "weights" else change(EXPONENTIALS)
    answer["output"] = answer["weights"] @ np.array(V)
    result = check({name: rounded(matrix, 4) for name, matrix in answer.items()})
    wrong = [remark for part in result.steps for remark in part.remarks if not remark.accepted]
    assert len(wrong) == 1
    assert wrong[0].step == step
    assert wrong[0].mistake.startswith(mistake)


TOML_OR_CSV = pytest.mark.parametrize("suffix", ["toml", "csv"])


def write_sheet(path, content):
    """A file with decimal points and names = "..." (TOML), or with decimal commas and semicolons (CSV)."""
    if path.suffix == ".toml":
        lines = [f'{name} = "{"; ".join(" ".join(row) for row in rows)}"' for name, rows in content.items()]
    else:
        lines = [
            "\n".join((name, *(";".join(row).replace(".", ",") for row in rows))) for name, rows in content.items()
        ]
    path.write_text("\n".join(lines), "utf-8")
    return path


def texts(matrix, places=3):
    return [["-inf" if value == -np.inf else f"{value:.{places}f}" for value in row] for row in matrix]


def check_file(path):
    settings, steps = read_answer(path)
    return check(steps, settings)


HIDING = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]])  # in rows 1 and 2 the largest score is masked
HIDDEN_Q, HIDDEN_K = np.array([[1, 0], [-1, 1], [0, 1]]), np.array([[-1, 0], [2, 1], [0, 3]])


@TOML_OR_CSV
@pytest.mark.parametrize("largest", ["of all keys", "of the keys that count", "of either, by row"])
@pytest.mark.parametrize("masked_step", ["scores", "scaled", ""])
def test_verify_accepts_the_maximum_over_all_keys_and_over_those_that_count(tmp_path, suffix, masked_step, largest):
    scores = HIDDEN_Q @ HIDDEN_K.T * 1.0
    scaled, hidden = scores / 2, np.where(HIDING, 0.0, -np.inf)
    over_all, over_seen = scaled.max(1, keepdims=True), (scaled + hidden).max(1, keepdims=True)
    assert (over_all > over_seen).sum() == 2
    maximum = {"of all keys": over_all, "of the keys that count": over_seen}.get(
        largest, np.where([[1], [0], [0]], over_all, over_seen)
    )
    powers = np.exp(scaled - maximum) * HIDING
    sums = powers.sum(1, keepdims=True)
    content = {"q": HIDDEN_Q, "k": HIDDEN_K, "v": HIDDEN_K, "scale": [[0.5]], "mask": HIDING}
    content = {name: [[f"{value:g}" for value in row] for row in matrix] for name, matrix in content.items()}
    masked = {"scores": scores + hidden, "scaled": scaled + hidden}
    steps = {masked_step: masked[masked_step]} if masked_step else {}
    steps |= {"exponentials": powers, "sums": sums, "weights": powers / sums}
    content |= {step: texts(matrix) for step, matrix in steps.items()}
    path = tmp_path / f"sheet.{suffix}"
    assert check_file(write_sheet(path, content)).ok
    wrong = [row[:] for row in content["exponentials"]]
    wrong[1][1] = f"{float(wrong[1][1]) + 0.5:.3f}"
    found = check_file(write_sheet(path, content | {"exponentials": wrong}))
    assert (found.first.step, found.first.row, found.first.column) == ("exponentials", 2, 2)


@TOML_OR_CSV
def test_verify_reads_weights_in_percent_also_if_some_rows_add_up_to_less(tmp_path, suffix):
    weights = 100 * WEIGHTS * TRIANGLE
    assert (weights.sum(1)[:2] < 90).all()
    matrices = SETTINGS | {"weights": texts(weights, 1), "output": texts(weights @ np.array(V) / 100, 2)}
    content = {name: [[str(cell) for cell in row] for row in matrix] for name, matrix in matrices.items()}
    content["mask"] = [[f"{value:g}" for value in row] for row in TRIANGLE]
    result = check_file(write_sheet(tmp_path / f"sheet.{suffix}", content))
    (remark,) = [remark for part in result.steps for remark in part.remarks if not remark.accepted]
    assert remark.mistake.startswith("masked after the softmax, and not divided by the new sum")


@TOML_OR_CSV
def test_verify_does_not_read_exponentials_as_percent(tmp_path, suffix):
    powers = np.exp([[4.5, 2.0], [3.0, 2.0]])  # the first row adds up to 97.4
    content = {"q": [["4.5", "2"], ["3", "2"]], "k": [["1", "0"], ["0", "1"]], "v": [["1", "0"], ["0", "1"]]}
    content |= {"scale": [["1"]], "weights": texts(powers, 2)}
    found = check_file(write_sheet(tmp_path / f"sheet.{suffix}", content)).first
    assert found.mistake.startswith("not divided by the sum: these are the exponentials")


FILES = {
    "semicolons and decimal commas.csv": "q\n1;0\n\nk\n1;0\n0;1\n\nv\n4\n8\n\nweights\n0,67;0,33\n\noutput\n5,32\n",
    "tabs.csv": "q\n1\t0\nk\n1\t0\n0\t1\nv\n4\n8\nweights\n0.67\t0.33\noutput\n5.32\n",
    "names beside.csv": "q,1,0\nk,1,0\n,0,1\nv,4\n,8\ncausal,false\nweights,0.67,0.33\noutput,5.32\n",
    "settings below.csv": "q\n1,0\nk\n1,0\n0,1\nv\n4\n8\ncausal\nfalse\nheads\n1\nweights\n0.67,0.33\noutput\n5.32\n",
    "decimal commas.toml": 'q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\nweights = "0,67 0,33"\noutput = [["5,32"]]\n',
    "commas and spaces.toml": 'q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\nweights = "0,67, 0,33"\noutput = "5,32"\n',
    "one list.toml": 'q = [1, 0]\nk = ["1 0", "0 1"]\nv = "4; 8"\nweights = [0.67, 0.33]\noutput = [5.32]\n',
    "percent.toml": 'q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\nweights = "67 33"\noutput = "5.32"\n',
    "table.toml": 'q = "1 0"\nk = "1 0; 0 1"\nv = "4; 8"\n[steps]\nAttention_Weights = "0.67 0.33"\nO = "5.32"\n',
}


@pytest.mark.parametrize("name", FILES)
def test_read_answer_reads_the_layouts_of_spreadsheets_and_notes(name, tmp_path):
    path = tmp_path / name
    path.write_text(FILES[name], "utf-8")
    settings, steps = read_answer(path)
    result = check(steps, settings)
    assert result.ok
    assert [part.right for part in result.steps] == [2, 1]  # weights and output
    assert not check({"weights": "0.5 0.5"}, settings).ok


def test_read_answer_reads_one_matrix_for_each_head(tmp_path):
    q, k = np.array([[1, 2, 0, 1], [0, -1, 1, 2]]), np.array([[2, 0, 1, 1], [1, 1, -1, 0]])
    scores = [(q[:, part] @ k[:, part].T).tolist() for part in (slice(0, 2), slice(2, 4))]
    path = tmp_path / "heads.json"
    content = {"q": q.tolist(), "k": k.tolist(), "v": k.tolist(), "heads": 2, "scores": scores}
    path.write_text(json.dumps(content), "utf-8")
    settings, steps = read_answer(path)
    assert check(steps, settings).ok
    content |= {"scores": [np.transpose(head).tolist() for head in scores], "convention": "columns"}
    columns = {name: np.transpose(content[name]).tolist() for name in ("q", "k", "v")}
    settings, steps = split_answer(content | columns, "heads")
    assert check(steps, settings).ok


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("dL/dQ", "dQ"),
        ("∂L/∂W_Q", "dW_Q"),
        ("∇X", "dX"),
        ("grad_K", "dK"),
        ("Scaled scores", "scaled"),
        ("E", "exponentials"),
    ],
)
def test_split_answer_knows_the_usual_names_of_steps(key, step):
    assert list(split_answer({"x": "1", key: "1"}, "a")[1]) == [step]


def test_split_answer_takes_p_as_the_weights_unless_there_is_a_loss():
    assert "weights" in split_answer(SMALL | {"P": "1"}, "a")[1]
    assert "probabilities" in split_answer(SMALL | {"P": "1", "loss": "cross-entropy", "target": "1"}, "a")[1]


def test_verify_leaves_out_numbers_that_were_not_filled_in(tmp_path):
    result = check({"scaled": "0.71 ?", "weights": "? 0.5", "output": "5.32"}, SMALL)
    counts = [(part.right, part.wrong, part.blank) for part in result.steps]
    assert counts == [(1, 0, 1), (0, 1, 1), (1, 0, 0)]
    (tmp_path / "ada.toml").write_text('q="1 0"\nk="1 0; 0 1"\nv="4; 8"\nscores="1 0"\nweights="0.67 ?"\n', "utf-8")
    steps = {part.step: part for part in grade_answers(tmp_path)[0].steps}
    assert steps["weights"].points == pytest.approx(steps["weights"].possible / 2)


def test_verify_does_not_accept_a_large_error_as_rounding_of_hidden_numbers():
    q = "-2 2 -1/2 1/2; -1 0 0 -1/2; 2 -1 -1 1/2"
    k, v = "1/2 1 -1/2 1/2; 3 3 1 0; 1/2 -1/2 -1 1/2", "-1/2 -1 1 3; 1/2 -2 3/2 -1/2; -2 3 3 -1/2"
    problem = {"q": q, "k": k, "v": v, "heads": 2, "upstream": "1/2 2 1/2 1; 1/2 2 1/2 2; 1 -1 1 2"}
    answer = {"dA": "-2.25 -3.75 5; -2.25 -3.75 5; 0.5 2.5 -5; 3.5 0.25 1; 6.5 -0.25 0.5; 7 0.5 2"}
    answer["r"] = "-1.31; 0.97; 0.24; 1.79; 2.10; 3.68"  # the first is -2.17; the weights are not on the sheet
    result = check(answer, problem)
    assert result.first is not None
    assert (result.first.step, result.first.row) == ("r", 1)


def test_verify_accepts_zero_gradients_of_masked_weights():
    problem = make_problem(
        {"q": "1 0; 0 1", "k": "1 0; 0 1", "v": "4; 8", "causal": True, "scale": 1, "upstream": "1; 1"}
    )
    exact = {"dA": "4 8; 4 8", "r": "4; 6.9242"}
    assert verify(problem, exact).ok
    assert verify(problem, {**exact, "dA": "4 0; 4 8"}).ok
    wrong = verify(problem, {**exact, "dA": "4 0; 4 9"})
    assert not wrong.ok and (wrong.first.row, wrong.first.column) == (2, 2)


def test_verify_reads_exponentials_below_the_largest_beside_blank_scores():
    problem = make_problem({"q": "1 0; 0 1", "k": "1 0; 3 1", "v": "4; 8", "scale": 1})
    answer = {"scaled": "1 ?; 0 1", "exponentials": "0.1353 1; 0.3679 1", "sums": "1.1353; 1.3679"}
    assert verify(problem, answer).ok
