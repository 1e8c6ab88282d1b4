"""The backward pass: exact gradients against torch's autograd, closed formulas, and the step graph."""

from decimal import Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.byhand import EXAMPLES, example, make_problem, solve, solve_problem
from qkv.byhand.graph import DECIMALS, GRADIENT_OF, StepGraph
from qkv.byhand.loss import LOSSES

small = st.fractions(min_value=-2, max_value=2, max_denominator=4)


@st.composite
def problems(draw):
    """Random rational problems with a loss: masks, scales, heads, positions, identity weights."""
    heads = draw(st.integers(1, 2))
    t, s, d, e, c = (draw(st.integers(1, 3)) for _ in range(5))

    def matrix(rows, columns):
        return [[draw(small) for _ in range(columns)] for _ in range(rows)]

    found = {"heads": heads, "causal": draw(st.booleans())}
    if draw(st.booleans()):
        s = t
        identity = draw(st.sampled_from(["", "wq", "wk", "wv"]))
        c = heads * d if identity in ("wq", "wk") else c
        e = d if identity == "wv" else e
        c = heads * e if identity == "wv" else c
        found |= {"x": matrix(t, c), "wq": matrix(c, heads * d), "wk": matrix(c, heads * d), "wv": matrix(c, heads * e)}
        found.pop(identity, None)
        if draw(st.booleans()):
            found["positions"] = matrix(t, c)
    else:
        found |= {"q": matrix(t, heads * d), "k": matrix(s, heads * d), "v": matrix(s, heads * e)}
    width = heads * e
    if draw(st.booleans()):
        width = draw(st.integers(1, 3))
        found["wo"] = matrix(heads * e, width)
    if draw(st.booleans()):
        found["mask"] = [[draw(st.integers(0, 1)) for _ in range(s)] for _ in range(t)]
    if draw(st.booleans()):
        found["scale"] = draw(small)
    loss = draw(st.sampled_from(list(LOSSES)))
    found["loss"] = loss
    if loss.startswith("cross-entropy"):
        found["target"] = [draw(st.integers(1, width)) for _ in range(t)]
        if t > 1 and draw(st.booleans()):
            found["target"][0] = "-"
    elif LOSSES[loss]:
        found[LOSSES[loss]] = matrix(t, width)
    return found


def autograd(problem):
    """Output and gradients of every step by torch's autograd, one token per row."""

    def leaf(rows):
        return torch.tensor([[float(cell) for cell in row] for row in rows], dtype=torch.float64, requires_grad=True)

    steps = {name: leaf(problem[name]) for name in ("x", "wq", "wk", "wv", "wo") if name in problem}
    if "x" in problem:
        inputs = steps["x"] + leaf(problem["positions"]) if "positions" in problem else steps["x"]
        for name, short in (("queries", "wq"), ("keys", "wk"), ("values", "wv")):
            steps[name] = inputs @ steps[short] if short in steps else inputs * 1
    else:
        steps |= {name: leaf(problem[name[0]]) for name in ("queries", "keys", "values")}
    q, k, v = (steps[n].unflatten(-1, (problem["heads"], -1)).transpose(0, 1) for n in ("queries", "keys", "values"))
    steps["scores"] = (q @ k.mT).flatten(0, 1)
    scale = float(problem["scale"]) if "scale" in problem else q.shape[-1] ** -0.5
    steps["scaled"] = steps["scores"] * scale
    mask = torch.tensor(problem.get("mask", [[1] * k.shape[1]] * q.shape[1])).bool()
    mask = mask.tril(k.shape[1] - q.shape[1]) if problem["causal"] else mask
    mask = mask.repeat(problem["heads"], 1)
    masked = steps["scaled"].masked_fill(~mask, float("-inf")).masked_fill(~mask.any(-1, keepdim=True), 0.0)
    steps["weights"] = masked.softmax(-1) * mask
    heads = steps["weights"].unflatten(0, (problem["heads"], -1)) @ v
    steps["concatenated"] = heads.transpose(0, 1).flatten(1)
    steps["output"] = steps["concatenated"] @ steps["wo"] if "wo" in steps else steps["concatenated"] * 1
    for tensor in steps.values():
        tensor.retain_grad()
    loss_of(problem, steps["output"]).backward()
    gradients = {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in steps.items()}
    return steps["output"], gradients


def loss_of(problem, output):
    name = problem["loss"]
    if name in ("sum", "mean"):
        return getattr(output, name)()
    if name == "upstream":
        upstream = [[float(c) for c in row] for row in problem["upstream"]]
        return (output * torch.tensor(upstream, dtype=torch.float64)).sum()
    if name.startswith("cross"):
        classes = torch.tensor([-1 if one == "-" else one - 1 for one in problem["target"]])
        reduction = "sum" if name.endswith("sum") else "mean"
        return torch.nn.functional.cross_entropy(output, classes, ignore_index=-1, reduction=reduction)
    error = output - torch.tensor([[float(c) for c in row] for row in problem["target"]], dtype=torch.float64)
    square = error.square()
    return {"s": square.sum(), "h": square.sum() / 2, "m": square.mean()}[name[0]]


def columns_of(problem):
    """The same problem with one token per column."""
    turned = ("x", "wq", "wk", "wv", "wo", "q", "k", "v", "positions", "mask", "upstream")
    found = {n: [list(row) for row in zip(*m, strict=True)] if n in turned else m for n, m in problem.items()}
    if "target" in problem and not problem["loss"].startswith("cross"):
        found["target"] = [list(row) for row in zip(*problem["target"], strict=True)]
    return found | {"convention": "columns"}


def difference(matrix, tensor):
    return float((torch.tensor(matrix.decimal, dtype=torch.float64) - tensor.detach()).abs().max())


@settings(max_examples=40, deadline=None)
@given(problems(), st.booleans())
def test_solve_gradients_equal_autograd_to_1e_12_in_both_conventions(problem, columns):
    solution = solve(**(columns_of(problem) if columns else problem))
    output, expected = autograd(problem)
    assert solution.agrees and solution.gradient_agreement.difference <= 1e-12
    assert difference(solution.output, output.T if columns else output) <= 1e-12
    assert solution.gradients
    for name, matrix in solution.gradients.items():
        gradient = expected[GRADIENT_OF[name]]
        assert difference(matrix, gradient.T if columns else gradient) <= 1e-12, name


def test_solve_gives_the_gradients_of_two_keys_in_closed_form():
    solution = solve(q="1 0; 0 1", k="1 0; 0 1", v="4 1; 8 0", loss="sum", scale=1)
    assert solution.gradients["dA"].exact == [["5", "8"], ["5", "8"]]
    assert solution.gradients["dZ"].exact == [["-3e/(e+1)^2", "3e/(e+1)^2"], ["-3e/(1+e)^2", "3e/(1+e)^2"]]
    assert solution.gradients["dV"].exact == [["1", "1"], ["1", "1"]]  # e/(e+1) + 1/(1+e)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("loss", ["sum", "cross-entropy-sum"])
def test_solve_gradients_of_each_example_are_transposed_in_the_column_convention(name, loss):
    tokens = len(solve_problem(example(name)).result)
    target = {} if loss == "sum" else {"target": [1] * tokens}
    rows, columns = (solve_problem(example(name, convention=c, loss=loss, **target)) for c in ("rows", "columns"))
    assert rows.agrees and columns.agrees
    for step, matrix in rows.gradients.items():
        assert [list(row) for row in zip(*matrix.decimal, strict=True)] == columns.gradients[step].decimal


def test_solve_loss_of_a_cross_entropy_is_minus_the_logarithm_of_the_probability():
    solution = solve(q="0", k="1; 2", v="1 1; 1 1", loss="cross-entropy", target=2)
    assert solution.to_dict()["loss"] == {"name": "cross-entropy", "exact": "ln(2)", "decimal": pytest.approx(0.693147)}
    assert solution.gradients["dO"].exact == [["1/2", "-1/2"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "huber"}, "loss: expected one of sum, mean"),
        ({"loss": "squared-error"}, "loss squared-error needs target"),
        ({"loss": "sum", "target": "1 2"}, "loss sum takes no target"),
        ({"target": "1 2"}, "target goes with a loss"),
        ({"loss": "squared-error", "target": "1 2 3"}, "target needs the shape of the output, 1×2: it is 1×3"),
        ({"upstream": "1; 2"}, "upstream needs the shape of the output, 1×2: it is 2×1"),
        ({"loss": "cross-entropy", "target": "3"}, "target of token 1: expected a class from 1 to 2"),
        ({"loss": "cross-entropy", "target": "1 1"}, "one class for each token (- for none): expected 1, got 2"),
        ({"loss": "cross-entropy", "target": "-"}, "no token has a class"),
    ],
)
def test_make_problem_says_what_is_wrong_with_a_loss(changes, said):
    with pytest.raises(ValueError) as error:
        make_problem({"q": "1 0", "k": "1 0; 0 1", "v": "4 1; 8 0", **changes})
    assert said in str(error.value)


@settings(max_examples=12, deadline=None)
@given(problems(), st.data())
def test_step_graph_reached_from_covers_every_cell_that_a_change_moves(problem, data):
    problem = make_problem(problem)
    graph = StepGraph(problem)
    tables = graph.given_tables(DECIMALS)
    for name in graph.steps:
        tables[name] = graph.compute(name, tables, DECIMALS)
    start = data.draw(st.sampled_from(sorted(graph.steps)))
    rows, columns = graph.shapes[start]
    cell = (start, data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1)))
    changed = {**tables, start: [list(row) for row in tables[start]]}
    changed[start][cell[1]][cell[2]] += Decimal("0.37")
    for name in list(graph.steps)[list(graph.steps).index(start) + 1 :]:
        changed[name] = graph.compute(name, changed, DECIMALS)
    moved = {
        (name, i, j)
        for name in graph.steps
        for i, row in enumerate(tables[name])
        for j, number in enumerate(row)
        if abs(changed[name][i][j] - number) > Decimal("1e-15")
    } - {cell}
    assert moved <= graph.reached_from([cell])
    assert all((len(tables[name]), len(tables[name][0])) == graph.shapes[name] for name in graph.steps)
