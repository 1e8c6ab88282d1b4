"""Answers that cannot be read get one sentence that says what is wrong."""

import pytest

from qkv.byhand import make_problem, verify
from qkv.byhand.files import read_answer

PROBLEM = 'q = "1 0; 0 1"\nk = "1 2; 0 1"\nv = "4 1; 8 2"\n'
CSV = "q\n1,0\n0,1\nk\n1,2\n0,1\nv\n4,1\n8,2\n"


def check(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    settings, steps = read_answer(path)
    return verify(make_problem(settings), steps)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", PROBLEM + 'weights = "0.6 0.4; 0.5 0.5"\nA = "0.7 0.3; 0.5 0.5"', "weights and a are two names of"),
        ("a.toml", PROBLEM + 'S = "1 0; 2 1"\n[answer]\nlogits = "1 0; 2 0"', "logits and s are two names of scores"),
        ("a.toml", PROBLEM + 'beta = 1\nscale = 2\nS = "1 0; 2 1"', "beta and scale are two names of scale"),
        ("a.json", '{"q": "1 0", "k": "1 0", "v": "1", "S": "1", "S": "2"}', "S is given twice"),
        ("a.csv", CSV + "weights\n0.6,0.4\n0.5,0.5\nweights\n0.7,0.3\n0.5,0.5\n", "weights is given twice"),
        ("a.toml", PROBLEM + f"weights = {[[0.5] * 40] * 40}", "weights: expected 2×2 numbers, got 40×40"),
        ("a.toml", PROBLEM + "heads = 2\nweights = [[[0.6, 0.4], [0.5, 0.5]]]", "weights: got 1 matrix for 2 heads"),
        ("a.toml", PROBLEM + "heads = 2\nweights = [[0.6, 0.4], [0.5, 0.5]]", "that is 1 matrix for 2 heads"),
        ("a.csv", CSV + 'weights\n0.6,0.4\n"0.5,0.5\n', r'line 12: a quote \("\) is not closed'),
        ("a.csv", CSV + 'scores\n1,"2\n0,1\n', r'line 11: a quote \("\) is not closed'),
        ("a.csv", CSV + "weights\nkey1,key2\n0.6,0.4\n0.5,0.5\n", "line 11: key1, key2 look like column headings"),
        ("a.csv", "dim1,dim2\n" + CSV, "line 1: dim1, dim2 look like column headings"),
        ("a.csv", CSV + "weights\ntoken1,0.6,0.4\n", "headings and labels of rows are not allowed"),
    ],
)
def test_read_answer_says_what_is_wrong(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        check(tmp_path / name, content)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_read_answer_asks_for_utf_8(tmp_path, encoding):
    with pytest.raises(ValueError, match="save it as UTF-8"):
        check(tmp_path / "a.csv", CSV + "student,Müller\nweights\n0.6,0.4\n0.5,0.5\n", encoding)


def test_read_answer_takes_one_matrix_in_a_list_for_one_head(tmp_path):
    result = check(tmp_path / "a.toml", PROBLEM + "scores = [[[1, 0], [2, 1]]]")
    assert result.steps[0].verdict == "right"


def test_read_answer_ignores_a_blank_step_beside_one_that_was_filled_in(tmp_path):
    result = check(tmp_path / "a.toml", PROBLEM + 'scores = "1 0; 2 1"\nlogits = "? ?; ? ?"')
    assert result.steps[0].verdict == "right"
