"""`verify` says what happened: solved factors, copying errors, terms left out, the reading of exponentials."""

import numpy as np
import pytest

from qkv.byhand import make_problem, verify

Q = np.array([[1.5, 1.0], [-0.5, 0.5], [0.5, -1.0]])
K = np.array([[0.5, -1.5], [2.0, 1.0], [-1.0, 1.5]])
V = np.array([[-1.0, 1.0], [0.5, -0.5], [-1.5, 2.0]])
TARGET = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
BETA = 2**-0.5


def softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(-1, keepdims=True)


def text(table, places=3):
    return [[f"{value:.{places}f}" for value in row] for row in table]


def first(sheet, places=3, columns=False, **settings):
    """The first wrong number of a sheet for Q, K and V."""
    turn = np.transpose if columns else np.array
    given = {"q": turn(Q).tolist(), "k": turn(K).tolist(), "v": turn(V).tolist(), **settings}
    if columns:
        given["convention"] = "columns"
    answer = {step: text(turn(table), places) for step, table in sheet.items()}
    remark = verify(make_problem(given), answer).first
    assert remark is not None
    return remark


def gradients(slips=None):
    """All steps up to dQ and dK, some of them computed in another way."""
    slips = slips or {}
    steps = {
        "weights": lambda t: softmax(Q @ K.T * BETA),
        "output": lambda t: t["weights"] @ V,
        "dO": lambda t: 2 * (t["output"] - TARGET),
        "dA": lambda t: t["dO"] @ V.T,
        "r": lambda t: (t["weights"] * t["dA"]).sum(1, keepdims=True),
        "dZ": lambda t: t["weights"] * (t["dA"] - t["r"]),
        "dS": lambda t: t["dZ"] * BETA,
        "dQ": lambda t: t["dS"] @ K,
        "dK": lambda t: t["dS"].T @ Q,
    }
    tables = {}
    for step, compute in steps.items():
        tables[step] = slips.get(step, compute)(tables)
    return tables


LOSS = {"loss": "squared-error", "target": TARGET.tolist()}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("divisor", [1.14, 1.7, 2.3])
@pytest.mark.parametrize("shown", [True, False])
def test_verify_solves_for_any_wrong_scale(divisor, shown, columns):
    scaled = Q @ K.T / divisor
    sheet = {"scaled": scaled} if shown else {}
    remark = first(sheet | {"weights": softmax(scaled)}, places=4, columns=columns)
    assert f"= 1/{divisor} instead of 0.7071" in remark.mistake
    assert not shown or remark.mistake.startswith(f"every number is {2**0.5 / divisor:.3f}"[:-1])


@pytest.mark.parametrize("step", ["dA", "dZ", "dQ"])
def test_verify_names_a_factor_of_all_numbers_of_a_gradient(step):
    right = gradients()
    sheet = gradients({step: lambda t: 1.37 * right[step]})
    assert first({name: sheet[name] for name in ("weights", "output", "dO", "dA", "dZ", "dQ")}, 4, **LOSS).mistake == (
        "every number is 1.37 times the right one"
    )


@pytest.mark.parametrize("negative", [1.0, -1.0])
def test_verify_reads_exponentials_in_the_way_that_explains_the_sheet(negative):
    """One number is that of e^(x − max) by chance; all of them are e^(−x)."""
    q, k = negative * np.array([[1.0], [0.5], [-1.5]]), np.array([[1.5], [0.75], [-0.75]])
    scores = q @ k.T
    exponentials = np.exp(-scores)
    weights = exponentials / exponentials.sum(1, keepdims=True)
    problem = make_problem({"q": q.tolist(), "k": k.tolist(), "v": V.tolist(), "scale": "1"})
    remark = verify(problem, {"exponentials": text(exponentials), "weights": text(weights)}).first
    assert remark.mistake.startswith("e^(−x) instead of e^x")
    assert abs(float(remark.expected) - np.exp(scores[0, 0])) < 0.001


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("columns", [False, True])
def test_verify_names_an_exponential_that_was_left_out_of_a_sum(column, columns):
    keys = K - K[1]  # the second score is 0 for every query: an exponential of exactly 1
    powers = np.exp(Q @ keys.T * BETA)
    sums = powers.sum(1, keepdims=True)
    sums[1] -= powers[1, column]
    turn = np.transpose if columns else np.array
    settings = {"q": turn(Q).tolist(), "k": turn(keys).tolist(), "v": turn(V).tolist()}
    settings["convention"] = "columns" if columns else "rows"
    sheet = {"exponentials": text(turn(powers)), "sums": text(turn(sums)), "weights": text(turn(powers / sums))}
    remark = verify(make_problem(settings), sheet).first
    place = (column + 1, 2) if columns else (2, column + 1)
    assert remark.mistake == f"exponentials[{place[0]},{place[1]}] was left out"


@pytest.mark.parametrize("with_r", [True, False])
@pytest.mark.parametrize("subtracted", ["mean", "sum"])
def test_verify_explains_wrong_row_sums_whether_or_not_they_are_written(with_r, subtracted):
    sheet = gradients({"r": lambda t: getattr(t["dA"], subtracted)(axis=1, keepdims=True)})
    if not with_r:
        del sheet["r"]
    remark = first(sheet, 4, **LOSS)
    assert remark.step == ("r" if with_r else "dZ")
    names = " ".join((remark.mistake, *remark.alternatives))
    assert ("mean of dA" if subtracted == "mean" else "the factor the weights is missing") in names


def test_verify_says_that_a_sign_was_lost_when_a_right_number_was_copied():
    copied = K.copy()
    copied[0, 1] *= -1
    settings = {"x": Q.tolist(), "wq": [[1, 0], [0, 1]], "wk": [[1, 1], [0, -1]], "wv": [[1, 0], [0, 1]]}
    keys = Q @ np.array([[1.0, 1.0], [0.0, -1.0]])
    copied = keys.copy()
    copied[1, 1] *= -1
    scores = Q @ copied.T
    sheet = {"keys": text(keys, 2), "scores": text(scores, 2)}
    remark = verify(make_problem(settings), sheet).first
    assert remark.mistake.endswith("sign when keys[2,2] was copied for the scores") or "too many when" in remark.mistake


def test_verify_says_in_which_gradient_a_sign_was_copied_wrongly():
    def wrong(t):
        d_scores = t["dS"].copy()
        d_scores[1, 1] *= -1
        return d_scores @ K

    remark = first(gradients({"dQ": wrong}), 4, **LOSS)
    assert "when dS[2,2] was copied for dQ" in remark.mistake


@pytest.mark.parametrize("step", ["dQ", "dK"])
def test_verify_says_in_which_gradient_the_scale_is_missing(step):
    right = gradients()
    sheet = {name: table for name, table in right.items() if name not in ("r", "dS")}
    sheet[step] = right[step] / BETA
    assert first(sheet, 4, **LOSS).mistake == f"forgotten 1/√d: dZ was not scaled (only in {step})"


@pytest.mark.parametrize("with_sums", [True, False])
def test_verify_says_that_the_scale_is_missing_only_in_the_numerators(with_sums):
    scaled = Q @ K.T * BETA
    sums = np.exp(scaled).sum(1, keepdims=True)
    sheet = {"scaled": scaled, "weights": np.exp(Q @ K.T) / sums}
    if with_sums:
        sheet["sums"] = sums
    assert first(sheet).mistake.startswith("forgotten 1/√d only in the numerators")


def test_verify_names_a_missing_head_before_a_relu():
    heads = {"q": np.hstack([Q, Q]), "k": np.hstack([K, K]), "v": np.hstack([np.abs(V), -np.abs(V)])}
    weights = softmax(Q @ K.T * BETA)
    output = np.hstack([weights @ np.abs(V), np.zeros((3, 2))])
    problem = make_problem({name: table.tolist() for name, table in heads.items()} | {"heads": 2})
    assert verify(problem, {"output": text(output)}).first.mistake.startswith("head 2 is missing")
