"""The commands `qkv claims` and `qkv questions`, and the HTML report."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from qkv import claims
from qkv._figures import Bars, Heatmap, Histogram, Lines, draw_svg
from qkv.claims import courses
from qkv.claims.explanations import REASONS
from qkv.claims.mutants import wrong_implementation
from qkv.claims.questions import QUESTIONS, as_markdown, search_questions
from qkv.claims.report import render_page
from qkv.cli import claims as claims_command
from qkv.cli.main import run


def test_the_list_names_every_claim_in_80_columns(capsys):
    assert run(["claims"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in claims.claim_names())
    assert max(len(line) for line in shown.splitlines()) <= 80
    words = " ".join(shown.split())
    assert "copy When does attention copy one value? instant" in words  # a claim is titled by its question


def test_the_list_as_json_has_family_cost_and_knobs(capsys):
    assert run(["claims", "--json"]) == 0
    found = {claim["name"]: claim for claim in json.loads(capsys.readouterr().out)}
    assert found["copy"]["knobs"]["beta"] == 50
    assert all(claim["question"].endswith("?") for claim in found.values())
    assert found["pretraining"]["cost"] == "minutes"


def test_some_claims_run_and_answer_in_json(capsys):
    assert run(["claims", "run", "copy", "distribution", "--seed", "3", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [claim["name"] for claim in found] == ["copy", "distribution"]
    assert set(found[0]) == {"name", "statement", "verdict", "condition", "numbers", "seed"}
    assert found[0]["verdict"] == "holds-if" and found[0]["seed"] == 3
    assert found[1]["numbers"]["exp without the shift"] is None  # JSON has no word for nan
    assert "1/2 copy" in shown.err


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupted_claims_print_those_that_were_run(as_json, capsys, monkeypatch):
    whole = claims_command._run

    def interrupted(names, *given):
        yield from whole(names[:1], *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(claims_command, "_run", interrupted)
    assert run(["claims", "run", "copy", "distribution", *(["--json"] if as_json else [])]) == 130
    shown = capsys.readouterr()
    assert "interrupted: 1 of 2 claims were run" in shown.err
    if as_json:
        assert [claim["name"] for claim in json.loads(shown.out)] == ["copy"]
    else:
        assert "copy" in shown.out and "holds" in shown.out and "distribution" not in shown.out


def test_a_claim_that_fails_as_expected_is_exit_code_0(capsys):
    assert run(["claims", "run", "two-heads-wrong"]) == 0
    shown = capsys.readouterr().out
    assert "fails  two-heads-wrong" in shown
    assert "¾ v_a + ¼ v_b" in shown


def test_a_wrong_implementation_overturns_a_claim(capsys):
    assert run(["claims", "run", "copy", "--wrong", "uniform", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["verdict"] != "holds-if"


def test_a_claim_broken_by_a_knob_is_exit_code_1(capsys):
    assert run(["claims", "run", "copy", "--set", "beta=1"]) == 1
    assert "correct attention function: holds if" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["claims", "run", "coppy"], "did you mean copy?"),
        (["claims", "run"], "name the claims to run, or use --all"),
        (["claims", "run", "copy", "--all"], "name the claims to run, or use --all"),
        (["claims", "copy"], "to run one: qkv claims run copy"),
        (["claims", "run", "copy", "--set", "gamma=3"], "copy has no setting 'gamma'"),
        (["claims", "run", "copy", "--wrong", "unmasked"], "--wrong for copy must be one of uniform"),
        (["claims", "run", "equivariance", "--set", "n=1"], "n (tokens) must be an integer from 2 to 128"),
        (["claims", "run", "copy", "--set", "beta=nan"], "must be a number from 0 to 1,000, such as 50; got nan"),
        (["claims", "run", "identity", "--set", "n=9"], "9 orthonormal vectors need a dimension of at least 9, got 8"),
        (["claims", "run", "copy", "--seed", "-1"], "a seed must be an integer from 0 to 2147483647, got -1"),
        (["claims", "run", "copy", "--set", "beta"], "such as beta=30; got 'beta'"),
        (["claims", "run", "copy", "--set", "beta=much"], "such as beta=30; got 'beta=much'"),
        (["claims", "run", "copy", "--report", "no/such/folder/r.html"], "there is no folder"),
        (["claims", "--all"], "qkv claims run --all"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(arguments, said, capsys):
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_qkv_claims_show_prints_question_statement_reason_and_method_without_running(capsys, monkeypatch):
    monkeypatch.setattr("qkv.claims.run", None)
    assert run(["claims", "show", "identity", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["question"] == "Can self-attention be the identity?"
    assert "largest cosine" in found["statement"] and "(n − 1)e^(−β(1 − ρ))" in found["reason"]
    assert "random unit vectors" in found["method"] and found["knobs"]["beta"]["default"] == 12
    assert run(["claims", "show", "identity", "copy"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("statement", "expected", "reason", "method", "qkv claims run copy"))
    assert run(["claims", "show"]) == 2


def test_every_claim_has_a_reason_and_a_method():
    assert list(REASONS) and sorted(REASONS) == sorted(claims.claim_names())
    assert all(text.endswith(".") for texts in REASONS.values() for text in texts)


def test_the_report_is_one_page_without_network(tmp_path, capsys):
    target = tmp_path / "claims.html"
    assert run(["claims", "run", "average", "two-heads-wrong", "--report", str(target)]) == 0
    capsys.readouterr()
    text = target.read_text()
    assert text.count("<article") == 2 and text.count("<svg") == 2
    assert "<h3>How does attention average two values?</h3>" in text
    assert text.index("holds") < text.index("<svg")
    links = re.findall(r"""(?:src|href)=["']([^"']*)["']""", text)
    assert all(link.startswith("#") for link in links)
    assert "<script" not in text and "@import" not in text
    ids = re.findall(r'id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert [path.name for path in tmp_path.iterdir()] == ["claims.html"]


def test_render_page_names_unexpected_verdicts():
    result = claims.run("copy", beta=1.0)
    assert "Not the verdict of a correct attention: copy" in render_page([result], {"copy": "function"})


def test_render_page_typesets_formulas_and_counts_the_expected_verdicts():
    results = [claims.run("two-heads-wrong"), claims.run("kqv")]
    page = render_page(results, {result.name: "heads" for result in results})
    assert "2 of 2 verdicts are as expected" in page
    text = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "u<sub>b</sub>" in text and not re.search(r"\^|\b[a-z]_[a-z0-9]\b", text.partition("<body>")[2])


def test_a_caption_names_another_implementation_as_the_condition():
    wrong = claims.run("copy", **wrong_implementation("uniform"))
    assert wrong.figure.partition("ndecided with ")[2].startswith("another implementation than qkv's, m = 10")
    assert "another implementation" not in claims.run("copy", beta=1.0).figure


@pytest.mark.parametrize("title", ["a long title that says in many words what a figure of this width shows", "short"])
def test_draw_svg_breaks_a_title_that_is_wider_than_its_panel(title):
    svg = draw_svg((Bars(title, "", "", ["one", "two"], {"a": [1, 2]}),), name="test")
    lines = [line for line in re.findall(r">([^<>]+)</text>", svg) if line in title]
    assert " ".join(lines) == title and max(map(len, lines)) <= 45


def test_draw_svg_draws_every_kind_of_panel():
    panels = (
        Lines("lines", "x", "y", [1, 2, 3], {"a": [1, 2, 3], "b": [3, 2, 1]}, roles={"b": "formula"}),
        Bars("bars", "", "y", ["one", "two"], {"a": [1, 2]}, level=(1.5, "chance")),
        Heatmap("map", "key", "query", [[0.0, 1.0], [1.0, 0.0]]),
        Histogram("histogram", "x", "y", {"a": [1.0, 2.0, 2.0]}),
    )
    svg = draw_svg(panels, name="test")
    ElementTree.fromstring(svg)
    assert "currentColor" in svg and "#1b1f24" not in svg
    assert svg == draw_svg(panels, name="test")


def test_every_claim_answers_one_question_and_docs_questions_md_is_up_to_date():
    assert sorted(entry.claim for entry in QUESTIONS) == sorted(claims.claim_names())
    page = Path(__file__).parents[2] / "docs" / "questions.md"
    assert page.read_text(encoding="utf-8") == as_markdown(), "run: make generated"


def test_qkv_questions_finds_a_question_by_its_words(capsys):
    assert run(["questions", "average", "pooling", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["claim"] == "diffuse" and found["command"] == "qkv claims run diffuse"
    assert run(["questions", "average", "pooling"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "it makes it the mean of the values" in shown and "qkv questions N1d" in shown
    assert run(["questions", "zebra", "attention"]) == 2
    assert "no question contains 'zebra attention'" in capsys.readouterr().err


def test_qkv_questions_prints_the_model_answer_to_an_item(capsys):
    assert run(["questions", "n1c"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("N1c When a value vector is preserved (NYU Deep Learning, homework 4)")
    assert "Usual mistake" in shown and "exp(−margin)" in shown and "<!--" not in shown
    assert run(["questions", "P3b", "C2a", "--json"]) == 0
    assert [entry["items"] for entry in json.loads(capsys.readouterr().out)] == [["P3a", "P3b"], ["C2a", "C2b"]]


@pytest.mark.parametrize(
    ("asked", "items"),
    [("P3a,b", ["P3a"]), ("C1a-c", ["C1a", "C1b", "C1c"]), ("c1d–e", ["C1d", "C1e"]), ("A1", ["A1"]), ("N6", ["N6"])],
)
def test_qkv_questions_takes_items_as_the_sheets_write_them(asked, items, capsys):
    assert run(["questions", asked, "--json"]) == 0
    assert [entry["items"][0] for entry in json.loads(capsys.readouterr().out)] == items


def test_qkv_questions_lists_the_items_of_a_group_and_names_the_items_for_an_unknown_one(capsys):
    assert run(["questions", "C2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("C2 The pretrained transformer") and "C2b the London baseline" in shown
    assert all(f"qkv questions C2{letter}" in shown for letter in "acdefg")
    for unknown in ("N9", "C1a-z", "C2,b"):
        assert run(["questions", unknown]) == 2
        assert "Homework problems: N1a to N6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found", "missing"),
    [
        ("hallucination", ["C3b", "C3c"], ["N1a"]),
        ("sqrt", ["N1b", "P2a"], ["N1g"]),
        ("layernorm", ["N4e"], ["A2"]),
        ("layer norm", ["N4e"], ["A2"]),
        ("positional", ["N3b", "N5b"], ["N1a"]),
        ("ormal", [], ["N4e"]),
        ("multi-head", ["N4c", "P2c"], ["N1a"]),
        ("Multi head attention", ["N4c"], ["N1a"]),
        ("vision", ["N5a", "N5b", "N5c", "N5d", "N6"], ["N1a"]),
        ("convolutions", ["N2b", "N3d", "N5a"], ["A1"]),
        ("real time", ["N3e"], ["A1"]),
    ],
)
def test_qkv_questions_matches_the_start_of_words_and_synonyms(words, found, missing):
    items = {item for entry in courses.search_answers(words) for item in entry.items}
    assert items.issuperset(found) and items.isdisjoint(missing)


@pytest.mark.parametrize(
    ("sheet", "course"), [("N", "NYU"), ("a", "Attention"), ("cs224n", "CS224N"), ("P", "CSCI 5922")]
)
def test_qkv_questions_lists_the_items_of_a_sheet(sheet, course, capsys):
    assert run(["questions", sheet]) == 0
    first, *lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] != " " or "questions" in line]
    assert first.startswith(course) and len(lines) >= 5
    assert len({line.split()[2][0] for line in lines if line.startswith("  qkv questions ")}) == 1


def test_qkv_questions_without_words_lists_every_claim_and_every_homework_problem(capsys):
    assert run(["questions"]) == 0
    shown = capsys.readouterr().out
    assert all(entry.command in shown for entry in QUESTIONS)
    assert all(f"qkv questions {answer.items[0]} " in shown for answer in courses.read_answers())


def test_search_questions_finds_a_claim_by_a_synonym():
    def found(words: str) -> set[str]:
        return {entry.claim for entry in search_questions(words)}

    assert {"heads-formula", "heads-count", "two-heads"} <= found("multi-head")
    assert "patches-are-convolution" in found("cnn") and "class-token" in found("CLS")


def test_a_model_answer_names_the_command_for_the_answers_that_it_links_to(capsys):
    assert run(["questions", "P2c"]) == 0
    assert "See also: qkv questions N4c" in " ".join(capsys.readouterr().out.split())


def test_claims_show_explains_the_wrong_implementations_and_names_the_homework_problems(capsys):
    assert run(["claims", "show", "residual-norm"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "itself: each token attends only to itself" in shown and "qkv questions N4e" in shown
    used = [courses.answers_with_claim(claim) for claim in claims.claim_names()]
    assert sum(map(bool, used)) > 40


@pytest.mark.parametrize("item", ["N2a", "N3b", "P3a"])
def test_qkv_questions_prints_tables_without_markup_in_80_columns(item, capsys):
    assert run(["questions", item]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "|---" not in shown and "**" not in shown and "───" in shown


def test_the_model_answers_are_those_of_the_pages():
    folder = Path(__file__).parents[2] / "docs" / "courses"
    assert courses.FILE.read_text("utf-8") == courses.courses_text(folder), "run: make generated"
    assert len(courses.read_answers()) == 59


def test_every_question_names_a_usual_mistake():
    assert all(entry.mistake for entry in QUESTIONS)
