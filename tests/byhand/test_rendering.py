"""Solutions in the terminal, as LaTeX and as an HTML page; problem and answer files."""

import re
from html.parser import HTMLParser

import pytest

from qkv.byhand import EXAMPLES, example, make_problem, solve, solve_problem
from qkv.byhand.files import read_answer, read_settings
from qkv.byhand.html import html_page
from qkv.byhand.latex import latex_document
from qkv.byhand.terminal import terminal_lines


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_terminal_lines_fit_80_characters(name, convention):
    lines = [line.plain for line in terminal_lines(solve_problem(example(name, convention=convention)))]
    assert max(map(len, lines)) <= 80


LOSSES = [{"loss": "sum"}, {"loss": "squared-error", "target": "1 0; 0 1"}, {"loss": "cross-entropy", "target": "2 -"}]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_backward_pass_is_written_out_in_terminal_latex_and_html(loss, convention):
    solution = solve_problem(example("two-heads", convention=convention, causal=True, **loss))
    lines = [line.plain for line in terminal_lines(solution)]
    assert max(map(len, lines)) <= 80
    text, latex, page = "\n".join(lines), latex_document(solution), html_page(solution)
    product = "dQ1 = K1 dS1" if convention == "columns" else "dQ1 = dS1 K1"
    assert product in text
    assert "Gradient of W_Q" in text and "dZ2[1,1] = " in text
    assert latex.count("{") == latex.count("}") and latex.count(r"\left(") == latex.count(r"\right)")
    assert r"\mathrm{d}Z^{(2)}_{1,1} &= " in latex
    ids = set(re.findall(r'<td id="([^"]+)"', page))
    sources = {one for found in re.findall(r'data-from="([^"]*)"', page) for one in found.split()}
    assert sources <= ids, sources - ids
    assert "dW_Q-1-1" in ids and "dX-1-1" in ids


def test_backward_pass_names_each_number_of_the_softmax_gradient():
    text = "\n".join(line.plain for line in terminal_lines(solve("1 0; 0 1", scale=1, upstream="1 0; 0 0")))
    assert "dA[1,1] = 1·1 + 0·0 = 1" in text
    assert "r[1,1] = 0.7311·1 + 0.2689·0 ≈ 0.7311" in text
    assert "dS[1,2] = 0.2689·(0 − 0.7311) ≈ -0.1966" in text
    assert "dX = dQ + dK + dV" in text


def test_terminal_lines_of_a_wide_problem_fit_80_characters():
    solution = solve(
        [[f"{i - j}/7" for j in range(12)] for i in range(3)], positions="sinusoidal", heads=3, causal=True
    )
    assert max(len(line.plain) for line in terminal_lines(solution, places=8)) <= 80


def test_terminal_lines_write_out_each_dot_product():
    text = "\n".join(line.plain for line in terminal_lines(solve_problem(example("three-tokens"))))
    for line in (
        "Q[3,1] = (-2)·0 + 2·1 + (-1)·(-1/2) + 0·1 = 5/2",
        "S[1,1] = 1·3 + 3·(-1/2) = 3/2",
        "Z[1,1] = √2/2·3/2 = 3√2/4 ≈ 1.0607",
        "e^(3√2/4) = 2.8883",
        "sum 289.3058",
        "H[3,1] = 0.5875·5/2 + 0.4125·(-1) + 1.2e-7·(-2) ≈ 1.0562",
    ):
        assert line in text


def test_terminal_lines_put_weights_before_inputs_in_the_column_convention():
    text = "\n".join(
        line.plain for line in terminal_lines(solve_problem(example("three-tokens", convention="columns")))
    )
    assert "Q = W_Q X" in text
    assert "S = Kᵀ Q" in text
    assert "H = V A" in text
    assert "Q[1,3] = 0·(-2) + 1·2 + (-1/2)·(-1) + 1·0 = 5/2" in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_latex_document_closes_every_environment(name):
    text = latex_document(solve_problem(example(name)))
    opened = re.findall(r"\\begin\{(\w+\*?)\}", text)
    assert opened.count("pmatrix") == text.count(r"\end{pmatrix}")
    assert opened.count("align*") == text.count(r"\end{align*}")
    assert text.count("{") == text.count("}")
    assert text.count(r"\left(") == text.count(r"\right)")
    assert text.isascii() or all("%" in line for line in text.splitlines() if not line.isascii())


class Reader(HTMLParser):
    """Collects cells that can be reached by keyboard, their tooltips, and every address in the page."""

    def __init__(self):
        super().__init__()
        self.cells, self.tips, self.ids, self.addresses = {}, set(), set(), []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            assert found["id"] not in self.ids
            self.ids.add(found["id"])
        if found.get("tabindex") == "0":
            self.cells[found["id"]] = found
        if found.get("role") == "tooltip":
            self.tips.add(found["id"])
        self.addresses += [found[name] for name in ("src", "href") if name in found]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_html_page_gives_every_number_a_derivation_by_keyboard_and_its_sources(name, convention):
    solution = solve_problem(example(name, convention=convention))
    text = html_page(solution)
    reader = Reader()
    reader.feed(text)
    numbers = sum(len(row) for row in solution.weights.exact)
    assert sum(key.startswith("weights") for key in reader.cells) == numbers
    for cell in reader.cells.values():
        assert cell["aria-describedby"] in reader.tips
        assert set(cell["data-from"].split()) <= reader.ids
    assert reader.addresses == []
    assert "http" not in text.replace("http-equiv", "")


def test_html_page_typesets_the_names_of_matrices_in_titles_and_formulas():
    text = html_page(solve_problem(example("two-heads", title="Two heads, joined by W_O", loss="sum")))
    assert "<h1>Two heads, joined by W<sub>O</sub></h1>" in text
    shown = re.sub(
        r"<sub>|<style.*?</style>|<[^>]*>", lambda tag: "↓" if tag[0] == "<sub>" else "", text.partition("<body>")[2]
    )
    assert "dW↓O[1,1] = " in shown and "W_" not in shown


def test_html_page_escapes_the_title():
    problem = example("copy", title="<script>alert(1)</script>")
    assert "<script>alert" not in html_page(solve_problem(problem))


TOML = """
x = [[1, "-1/2"], ["2 1/2", 0.10]]
wq = "1 0; 0 1"
heads = 1
causal = true
scale = "1/sqrt(2)"
scores = [[1.25, 2.45], [2.45, 6.26]]
"""
JSON = """{"x": [[1, "-1/2"], ["2 1/2", 0.10]], "wq": "1 0; 0 1", "heads": 1, "causal": true, "scale": "1/sqrt(2)",
"scores": [[1.25, 2.45], [2.45, 6.26]]}"""
CSV = """x
1,-1/2
2 1/2,0.10
wq
1,0
0,1
heads,1
causal,true
scale,1/sqrt(2)

scores
1.25,2.45
2.45,6.26
"""


FILES = {"toml": TOML, "json": JSON, "csv": CSV}


@pytest.mark.parametrize("suffix", FILES)
def test_read_settings_reads_the_same_problem_from_toml_json_and_csv(tmp_path, suffix):
    path = tmp_path / f"problem.{suffix}"
    path.write_text(FILES[suffix])
    solution = solve_problem(make_problem(read_settings(path)))
    assert solution.queries.exact == [["1", "-1/2"], ["5/2", "1/10"]]
    assert solution.weights.exact[0] == ["1", "0"]
    assert read_answer(path)[1] == {"scores": [["1.25", "2.45"], ["2.45", "6.26"]]}


def test_read_answer_accepts_an_example_and_capital_letters(tmp_path):
    path = tmp_path / "answer.toml"
    path.write_text('example = "three-tokens"\nQ = [[1, 3], [-1, 1], [2.5, -2]]\n[answer]\nH = "1 2; 3 4; 5 6"\n')
    settings, steps = read_answer(path)
    assert settings["wq"] == EXAMPLES["three-tokens"]["wq"]
    assert set(steps) == {"queries", "output"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = [[1, 2]", "cannot be read as TOML"),
        ("a.json", "[1, 2]", "expected an object"),
        ("a.csv", "1,2\n", "numbers before any name"),
        ("a.txt", "x", "ending in .toml, .json or .csv"),
        ("a.toml", "x = [[1]]\nwqq = [[1]]", "no setting or step 'wqq'"),
        ("a.toml", "x = [[1]]", "has no step to check"),
        ("a.toml", 'x = [[1]]\n[answer]\nscores = "?"', "every step is missing or only"),
    ],
)
def test_read_answer_says_why_a_file_is_rejected(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_answer(path)
    assert "\n" not in str(error.value)
