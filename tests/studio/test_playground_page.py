"""The Playground page in a browser: sliders, cells, masks, vectors and links show the numbers of the library."""

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.byhand import solve
from qkv.byhand.examples import EXAMPLES
from qkv.byhand.numbers import format_decimal
from qkv.studio.playground.files import random_example

HOSTILE = "<img src=x onerror=alert(1)>"
GIVEN = {name: text for name, text in EXAMPLES["three-tokens"].items() if name != "title"}


@pytest.fixture
def open_page(serving, visit):
    """Opens the playground at a state, in a new browser context."""
    place = serving()

    def enter(state: str = "") -> Any:
        page = visit(place).go(f"playground{state}")
        page.set_default_timeout(120_000)
        page.wait_for_selector("[data-testid=notice]")
        rest(page)
        return page

    return enter


def rest(page: Any) -> None:
    """Wait until everything on the page belongs to the last input."""
    page.wait_for_selector(".playground[data-rested=true]")


def slide(page: Any, to: int) -> str:
    """Move the slider of β and return the value in its field."""
    page.locator("#beta").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input', {bubbles: true})) }", to
    )
    rest(page)
    return page.get_by_label("β, typed").input_value()


def step(page: Any, name: str) -> list[list[str]]:
    """The numbers of a step as the page shows them."""
    rows = page.locator(f"[data-step='{name}'] tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def printed(matrix: Any) -> list[list[str]]:
    """As `qkv byhand` prints them, with the page's minus sign."""
    return [[format_decimal(number.decimal).replace("-", "−") for number in row] for row in matrix.numbers]


def same(page: Any, worked: Any) -> bool:
    found = {name: step(page, name) for name in ("scores", "weights", "output")}
    return found == {name: printed(getattr(worked, name)) for name in found}


def test_moving_a_slider_shows_the_numbers_of_the_library(open_page):
    page = open_page()
    assert same(page, solve(**GIVEN))
    beta = slide(page, 60)
    assert beta == "1.8"
    assert same(page, solve(**GIVEN, scale=beta))
    page.get_by_role("button", name="exact").click()
    page.locator("[data-step=weights] [data-cell='0,2']").click()
    told = page.get_by_test_id("derivation").inner_text()
    assert told.startswith("A[1,3] =") and "≈ 1" in told


def test_hard_attention_shows_no_scaled_scores(open_page):
    page = open_page()
    assert page.locator("[data-step=scaled]").count() == 1
    page.get_by_role("button", name="hard", exact=True).click()
    rest(page)
    assert page.locator("[data-step=scaled]").count() == 0 and page.get_by_text("β =").count() == 0
    weights = [[float(cell) for cell in row] for row in step(page, "weights")]
    assert all(sorted(row) == [0.0, 0.0, 1.0] for row in weights)


def test_sixty_four_tokens_show_the_numbers_of_qkv_attention(open_page):
    page = open_page("?example=random-64&query=3")
    beta = float(slide(page, 50))
    given = {name: rows for name, rows in random_example().items() if isinstance(rows, list)}
    x, wq, wk, wv = (
        torch.tensor([[float(cell) for cell in row] for row in given[name]], dtype=torch.float64)
        for name in ("x", "wq", "wk", "wv")
    )
    _, weights = qkv.attention(x @ wq, x @ wk, x @ wv, scale=beta, return_weights=True)
    shown = page.locator("td[data-weight]").all_inner_texts()
    large = {j: text for j, text in enumerate(shown) if weights[2, j] > 1e-3}
    assert large == {j: f"{weights[2, j]:.4f}" for j in large} and len(large) > 5
    assert "qkv.attention in float64" in page.get_by_test_id("by").inner_text()


def test_editing_a_cell_shows_its_numbers_and_a_bad_cell_its_message(open_page):
    page = open_page()
    cell = page.get_by_label("W_Q row 1 column 2")
    cell.fill("3/4")
    rest(page)
    wq = "0 3/4" + GIVEN["wq"].removeprefix("0 1")
    assert same(page, solve(**{**GIVEN, "wq": wq}))
    cell.fill("1/0")
    page.wait_for_selector("[aria-invalid=true]")
    assert "divides by zero" in page.get_by_role("alert").inner_text()
    assert same(page, solve(**{**GIVEN, "wq": wq}))  # the last valid numbers stay, and the page says so
    assert page.get_by_text("These are the steps of the last valid numbers.").is_visible()
    cell.fill("1")
    page.wait_for_selector("[aria-invalid=true]", state="detached")
    rest(page)
    assert same(page, solve(**GIVEN))


def test_clicking_the_mask_moving_a_vector_and_adding_heads(open_page):
    page = open_page()
    page.get_by_test_id("mask").click(position={"x": 50, "y": 10})  # query 1, key 3
    rest(page)
    assert same(page, solve(**GIVEN, mask="1 1 0; 1 1 1; 1 1 1"))
    page.get_by_role("button", name="none").click()
    rest(page)
    page.locator("[data-point=keys-2]").focus()
    page.keyboard.press("ArrowRight")
    rest(page)
    assert page.get_by_label("K row 3 column 1").input_value() == "-2.4"
    plain = solve(**GIVEN)
    moved = solve(q=plain.queries.exact, k=[*plain.keys.exact[:2], ["-2.4", "7/2"]], v=plain.values.exact)
    assert same(page, moved)
    end = page.locator("[data-point=keys-2] .reach").bounding_box()
    page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + 60, end["y"] + 40, steps=3)
    page.mouse.up()
    rest(page)
    dragged = [page.get_by_label(f"K row 3 column {column}").input_value() for column in (1, 2)]
    assert float(dragged[0]) > -2.4 and float(dragged[1]) < 3.5
    assert same(page, solve(q=plain.queries.exact, k=[*plain.keys.exact[:2], dragged], v=plain.values.exact))
    page.get_by_role("button", name="back to X and W").wait_for()
    page.get_by_role("group", name="Heads", exact=True).get_by_role("button", name="2").click()
    page.get_by_role("button", name="head 2").click()
    rest(page)
    both = solve(q=plain.queries.exact, k=[*plain.keys.exact[:2], dragged], v=plain.values.exact, heads=2)
    assert step(page, "weights-2") == printed(both.weights)[3:]
    assert step(page, "joined") == printed(both.output)


def test_a_link_opened_again_shows_the_same_and_a_hostile_name_is_only_text(open_page):
    page = open_page()
    page.get_by_label("Name of token 3").fill(HOSTILE)
    page.get_by_role("button", name="causal").click()
    slide(page, 40)
    link = page.evaluate("location.hash")
    again = open_page(link.removeprefix("#/playground"))
    for name in ("scores", "weights", "output"):
        assert step(again, name) == step(page, name)
    assert again.get_by_label("Name of token 3").input_value() == HOSTILE
    assert again.locator("img").count() == 0
    again.locator("[data-point=queries-2]").focus()
    again.keyboard.press("Enter")
    again.wait_for_selector("[data-testid=notice] >> text=onerror")


def test_files_are_saved_and_opened_again(open_page, tmp_path):
    page = open_page("?example=two-heads")
    slide(page, 30)
    shown = {name: step(page, name) for name in ("scores-1", "weights-1", "joined")}

    def saved(button: str, what: str = "weights") -> Path:
        page.get_by_label("a part", exact=True).select_option(what)
        with page.expect_download() as taken:
            page.get_by_role("button", name=button, exact=True).click()
        file = tmp_path / taken.value.suggested_filename
        taken.value.save_as(file)
        return file

    assert saved("PNG").read_bytes().startswith(b"\x89PNG") and saved("SVG", "asking").read_text().startswith("<svg")
    weights = [line.split(",")[1:] for line in saved("CSV").read_text().splitlines()[1:]]
    assert [[f"{float(cell):.4f}" for cell in row] for row in weights] == [
        [f"{float(cell):.4f}" for cell in row] for row in shown["weights-1"]
    ]
    assert "weights of head 2,1,1," in saved("CSV", "steps").read_text()
    file = saved("save file")
    page.get_by_label("Example").select_option("copy")
    rest(page)
    page.get_by_label("Problem file").set_input_files(file)
    page.wait_for_selector("[data-step='weights-1']")
    rest(page)
    assert {name: step(page, name) for name in shown} == shown


def test_arrow_keys_select_a_query_of_a_large_map(open_page):
    page = open_page("?example=random-64&query=3")
    page.get_by_role("img", name="Weights: 64 queries").focus()
    page.keyboard.press("ArrowDown")
    rest(page)
    assert page.get_by_label("Shown query").input_value() == "1"


def test_a_link_that_cannot_be_read_says_so_and_shows_an_example(open_page):
    page = open_page("?form=qkv&q=1,0")
    assert "the link lacks k" in page.get_by_role("alert").inner_text()
    assert same(page, solve(**GIVEN))
