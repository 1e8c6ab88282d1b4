"""The API of the Playground page: numbers of the library, commands that reproduce them, error messages."""

import asyncio
import contextlib
import io
import json
import shlex
from typing import Any

import numpy as np
import pytest
import torch
from starlette.applications import Starlette

import qkv
from qkv.byhand import EXAMPLES, solve
from qkv.byhand.numbers import format_decimal
from qkv.cli.main import run
from qkv.studio.api import playground
from qkv.studio.playground.files import list_examples
from qkv.studio.server import Studio

STATES: dict[str, dict[str, Any]] = {each["name"]: each["state"] for each in list_examples()}
THREE, MANY = STATES["three-tokens"], STATES["random-64"]
DIRECT = {"form": "qkv", "q": [["1", "0"]], "k": [["1", "0"], ["0", "1"]], "v": [["4"], ["8"]]}
ONE_WIDE = {"form": "qkv", "q": [["1"]], "k": [["1"], ["0"]], "v": [["4"], ["8"]]}
APP = Starlette(routes=playground.routes(Studio()))


def post(path: str, body: Any) -> tuple[int, bytes]:
    """The answer of the API to a body."""
    sent: list[dict[str, Any]] = []
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    method = "GET" if body is None else "POST"
    scope = {"type": "http", "method": method, "path": f"/api/playground/{path}", "headers": [], "query_string": b""}
    asyncio.run(APP(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def numbers(body: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    status, content = post("numbers", body)
    assert status == 200, content
    length = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + length])
    arrays = {}
    for name, place in head["arrays"].items():
        start, count = 4 + length + place["offset"], int(np.prod(place["shape"]))
        arrays[name] = np.frombuffer(content, place["dtype"], count, start).reshape(place["shape"])
    return head, arrays


def plain(path: str, body: Any) -> Any:
    status, content = post(path, body)
    assert status == 200, content
    return json.loads(content)


def refused(body: Any, path: str = "numbers") -> str:
    status, content = post(path, body)
    assert status == 400, content
    return json.loads(content)["error"]


def cells(matrix: list[list[str]]) -> torch.Tensor:
    return torch.tensor([[float(cell) for cell in row] for row in matrix], dtype=torch.float64)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_textbook_example_has_the_numbers_of_the_exact_solution(name):
    worked = solve(**{key: value for key, value in EXAMPLES[name].items() if key != "title"})
    _, found = numbers(STATES[name])
    np.testing.assert_allclose(
        found["weights"].reshape(-1, found["weights"].shape[-1]), worked.weights.decimal, 0, 1e-12
    )
    np.testing.assert_allclose(found["output"], worked.output.decimal, 0, 1e-12)
    answer = plain("exact", STATES[name])["solution"]
    for step in ("queries", "scores", "weights", "output"):
        matrix = getattr(worked, step)
        assert answer["steps"][step]["exact"] == matrix.exact
        assert answer["steps"][step]["decimal"] == [[format_decimal(n.decimal) for n in row] for row in matrix.numbers]


def test_sixty_four_tokens_are_computed_in_float64_and_the_answer_says_so():
    x, wq, wk, wv = (cells(MANY[name]) for name in ("x", "wq", "wk", "wv"))
    out, weights = qkv.attention(x @ wq, x @ wk, x @ wv, scale=1.5, causal=True, return_weights=True)
    _, found = numbers({**MANY, "scale": "3/2", "mask": "causal"})
    assert np.array_equal(found["weights"][0], weights.numpy()) and np.array_equal(found["output"], out.numpy())
    answer = plain("exact", MANY)
    assert answer["solution"] is None
    assert answer["why"] == "64 tokens: exact fractions stop at 8; these numbers are qkv.attention in float64."


def test_hard_attention_puts_all_weight_on_the_best_key():
    head, found = numbers({**THREE, "scale": "hard"})
    assert found["weights"][0].tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 0]]
    assert head["notice"].startswith("Hard attention: token 1 takes the value of token 3 alone")


def test_a_scaled_key_is_the_key_times_its_scale():
    _, found = numbers({**DIRECT, "key_scales": ["3/2", "1"]})
    assert found["keys"].tolist() == [[1.5, 0], [0, 1]]
    exact = plain("exact", {**DIRECT, "key_scales": ["3/2", "1"], "scale": "1"})
    assert exact["solution"]["steps"]["scores"]["exact"] == [["3/2", "0"]]


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({}, "β = 1/√2: token 1 gives 99 % of its weight to token 3: attention copies."),
        ({"scale": "", **ONE_WIDE}, "β = 1: "),
        ({"scale": "0"}, "β = 0: every weight of token 1 is about 1/3: attention averages."),
        ({"mask": "causal"}, "token 1 may attend only to token 1"),
        ({"mask": "custom", "mask_rows": ["000", "111", "111"]}, "token 1 may attend to nothing"),
        ({"query": 2, "names": ["a", "b", "the end"]}, "β = 1/√2: “the end” gives 59 % to “a” and 41 % to “b”"),
    ],
)
def test_describe_weights_says_what_to_notice(change, begins):
    assert numbers({**THREE, **change})[0]["notice"].startswith(begins)


def test_derivation_explains_a_number():
    derivation = plain("derivation", {**THREE, "step": "scores", "row": 0, "column": 0})
    assert (derivation["name"], derivation["lines"]) == ("S[1,1]", ["1·3 + 3·(-1/2)", "= 3/2", "≈ 1.5"])
    assert derivation["sources"] == ["queries-1-1", "queries-1-2", "keys-1-1", "keys-1-2"]


CHANGES = [
    {},
    {"scale": "3/2"},
    {"scale": "√2", "mask": "causal"},
    {"mask": "window", "left": 1, "right": 0},
    {"mask": "custom", "mask_rows": ["110", "011", "111"], "heads": 2},
    {"positions": "sinusoidal"},
    {"wo": [["2 1/2", "0"], ["1", "1"]]},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: ",".join(change) or "as it is")
def test_reproduce_prints_the_same_numbers(change):
    state = {**THREE, **change}
    _, found = numbers(state)
    again = plain("exact", state)["reproduce"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run([*shlex.split(again["command"])[1:], "--json"]) == 0
    solution = json.loads(printed.getvalue())
    np.testing.assert_allclose(solution["output"]["decimal"], found["output"], 0, 1e-12)
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(again["python"], scope)  # the lines are ours: a person would paste them
    assert scope["solution"].output.decimal == solution["output"]["decimal"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"mask": "window", "left": 3, "right": 2},
        {"mask": "custom", "mask_rows": ["10" * 32] * 64, "scale": "2"},
        {"heads": 2},
    ],
    ids=lambda change: ",".join(change) or "as it is",
)
def test_the_lines_for_many_tokens_read_the_saved_file(change, tmp_path, monkeypatch):
    state = {**MANY, **change}
    _, found = numbers(state)
    file = plain("file", state)
    monkeypatch.chdir(tmp_path)
    (tmp_path / file["name"]).write_text(file["text"], encoding="utf-8")
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(plain("exact", state)["reproduce"]["python"], scope)
    assert np.array_equal(scope["out"].numpy(), found["output"])


@pytest.mark.parametrize("name", STATES)
def test_a_saved_file_opens_to_the_same_state(name):
    state = {**STATES[name], "names": ["<b>", 'a "quoted" name']}
    opened = plain("open", {"name": "mine.toml", "text": plain("file", state)["text"]})
    assert opened == {"state": state, "problem": ""}


def test_save_file_writes_what_qkv_byhand_reads(tmp_path):
    file = tmp_path / "playground.toml"
    file.write_text(plain("file", {**THREE, "scale": "4", "names": ["a", "b", "c"]})["text"], encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(["byhand", str(file), "--json"]) == 0
    assert json.loads(printed.getvalue())["scale"] == "4"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("1/0", "divides by zero"),
        ("nan", "expected a number"),
        ("NaN", "expected a number"),
        ("inf", "expected a number"),
        ("", "the cell is empty"),
        ("one", "expected a number"),
        ("1e9", "out of range"),
        ("e^(e^99)", "too large to compute"),
        ("9" * 81, "at most 80 characters"),
        ("(" * 70, "expected a number"),
        ("1; import os", "expected a number"),
    ],
)
def test_a_bad_cell_is_reported_with_its_position_and_a_message(cell, says):
    head, arrays = numbers({**THREE, "wk": [[cell, "1"], *THREE["wk"][1:]]})
    (bad,) = head["bad"]
    assert (bad["matrix"], bad["row"], bad["column"]) == ("wk", 0, 0) and not arrays
    assert says in bad["message"]


def test_nan_and_infinity_in_json_are_bad_cells():
    body = json.dumps({**DIRECT, "q": [[float("nan"), float("inf")]]}).encode()
    assert [bad["column"] for bad in numbers(body)[0]["bad"]] == [0, 1]


def test_a_bad_scale_and_a_bad_key_scale_are_reported():
    head, _ = numbers({**DIRECT, "scale": "four", "key_scales": ["1", "x"]})
    assert [(bad["matrix"], bad["column"]) for bad in head["bad"]] == [("key_scales", 1), ("scale", 0)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"not json", "the request body is not JSON"),
        (b"[1]", "the request body must be a JSON object"),
        ({}, "the request lacks 'x'"),
        ({**DIRECT, "k": [["1", "0"]] * 65, "v": [["1"]] * 65}, "k is 65×2: the playground takes up to 64×16"),
        ({**DIRECT, "q": [["1"] * 17]}, "q is 1×17: the playground takes up to 64×16"),
        ({**DIRECT, "q": [["1", "0"], ["1"]]}, "q is ragged: every row needs as many cells as the first, 2"),
        ({**DIRECT, "q": []}, "q: expected rows of cells"),
        ({**DIRECT, "q": [[{"a": 1}, "0"]]}, "q: a cell is text or a number, got dict"),
        ({**DIRECT, "q": [[True, "0"]]}, "q: a cell is text or a number, got bool"),
        ({**DIRECT, "q": [["1", "0", "0"]]}, "queries and keys need the same width to have dot products: 3 and 2"),
        ({**DIRECT, "v": [["1"]]}, "every key needs its value: k has 2 rows, v has 1"),
        ({**DIRECT, "heads": 3}, "3 heads do not divide the width 2 of the queries and keys"),
        ({**DIRECT, "heads": 10**9}, "heads: expected a whole number from 1 to 8, got 1000000000"),
        ({**DIRECT, "heads": "2"}, "heads: expected a whole number from 1 to 8, got '2'"),
        ({**DIRECT, "mask": "custom", "mask_rows": ["1"]}, "mask_rows: expected 1 rows of 2 digits"),
        ({**DIRECT, "mask": "some"}, "mask: expected one of none, causal, window, custom, got 'some'"),
        ({**DIRECT, "names": ["a" * 41]}, "names: at most 40 characters, got 41"),
        ({**DIRECT, "key_scales": ["2"]}, "key_scales: expected one per key, 2; got 1"),
        ({**DIRECT, "form": "z"}, "form: expected x or qkv, got 'z'"),
        ({**THREE, "wq": [["1", "0"]]}, "x is 4 wide, so wq needs 4 rows; it has 1"),
    ],
)
def test_parse_request_refuses_bad_requests_with_one_sentence(body, says):
    assert refused(body).startswith(says)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "x = [", "cannot be read as TOML"),
        ("a.toml", 'x = "1 2"\nheads = 3', "3 heads do not divide"),
        ("a.toml", 'q = "1"', "all of q, k and v: k, v missing"),
        ("a.exe", "", "expected a file ending in .toml, .json or .csv"),
        ("a.json", '{"x": "1 1/0"}', "divides by zero"),
        ("../../a.csv", "x\n1,2,z", "expected a number"),
    ],
)
def test_open_file_says_what_is_wrong_with_a_file(name, text, says):
    opened = plain("open", {"name": name, "text": text})
    assert opened["state"] is None and says in opened["problem"]
