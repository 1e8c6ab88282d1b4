"""The Claims page: it shows what the library measures, also when conditions or mutants break a claim."""

import re
from typing import Any

import pytest

from qkv import claims
from qkv.claims.explanations import WRONG_IMPLEMENTATIONS
from qkv.claims.mutants import wrong_implementation
from qkv.claims.report import VERDICTS, format_number
from qkv.studio.api.claims import BREAKS, _claim_json
from qkv.studio.tasks import run_claim

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
SOON = 180_000  # milliseconds: the worker process imports torch first, perhaps on a busy machine


@pytest.fixture(scope="module")
def studio(serving):
    return serving()


def test_claims_page_shows_the_numbers_of_the_library_and_a_knob_breaks_the_claim(studio, visit):
    visitor = visit(studio)
    page = visitor.go("claims?name=copy&seed=3")
    verdict = page.get_by_test_id("verdict")
    found = claims.run("copy", seed=3)
    expect(verdict).to_contain_text(VERDICTS[found.verdict], timeout=SOON)
    expect(verdict).to_contain_text(typeset(found.condition))
    _numbers_are(page, found)
    expect(page.locator("figure img")).to_have_count(len(found.panels), timeout=SOON)
    assert page.locator("figure img").first.evaluate("each => each.naturalWidth") > 100

    page.get_by_label("beta, typed").fill("")
    page.get_by_label("beta, typed").press("Enter")
    expect(page.get_by_label("beta, typed")).to_have_value("50")  # what the result belongs to

    page.get_by_label("beta, typed").fill("1")
    page.get_by_label("beta, typed").press("Enter")
    broken = claims.run("copy", seed=3, beta=1.0)
    assert broken.verdict == "fails"
    expect(verdict).to_contain_text("fails", timeout=SOON)
    expect(page.get_by_test_id("broken")).to_have_text(re.compile("^With the default settings .* “holds if”"))
    _numbers_are(page, broken)
    assert "set.beta=1" in page.url
    reproduce = page.get_by_test_id("reproduce")
    expect(reproduce).to_contain_text("qkv claims run copy --seed 3 --set beta=1.0")
    expect(reproduce).to_contain_text('claims.run("copy", seed=3, beta=1.0)')

    page.get_by_role("button", name="as claimed").click()
    expect(verdict).to_contain_text("holds if", timeout=SOON)
    page.get_by_label("Use a wrong implementation").select_option("uniform")
    expect(page.get_by_test_id("broken")).to_be_visible(timeout=SOON)
    _numbers_are(page, claims.run("copy", seed=3, **wrong_implementation("uniform")))
    expect(reproduce).to_contain_text("qkv claims run copy --seed 3 --wrong uniform")


def typeset(text):
    """The text of a formula on the page, with lowered indices and raised powers."""
    pattern = r"\^\(([^()]*)\)|\^(\w)|(?<=[^\W_])_([^\W_])(?![^\W_]{2})"
    return re.sub(pattern, lambda found: "".join(filter(None, found.groups())), text)


def _numbers_are(page, found):
    """The page shows every number of the result, rounded and with all digits."""
    rows = page.get_by_test_id("numbers").locator("tr")
    expect(rows).to_have_count(len(found.numbers))
    for place, (name, number) in enumerate(found.numbers.items()):
        value = number["value"] if isinstance(number, dict) else number
        expect(rows.nth(place).locator("th")).to_have_text(typeset(name))
        expect(rows.nth(place).locator("td")).to_have_attribute("data-exact", repr(value))
        expect(rows.nth(place).locator("td")).to_have_text(format_number(number))


def test_a_batch_of_claims_runs_in_order_and_can_be_cancelled(studio, visit):
    page = visit(studio).go("claims?name=copy")
    page.get_by_label("Search the claims").fill("values-only")
    page.get_by_role("button", name="run 1", exact=True).click()
    expect(page.locator("button.claim", has_text="values-only")).to_contain_text("holds", timeout=SOON)
    page.get_by_label("Search the claims").fill("two-uses")
    page.get_by_label("Claims to run").select_option("all")
    page.get_by_role("button", name="run 1", exact=True).click()
    going = page.locator(".tools")
    expect(going).to_contain_text("start 1 of 1", timeout=SOON)  # it trains
    for _ in range(7):  # more often than a browser has connections to one server
        page.get_by_role("link", name="Playground").click()
        page.get_by_role("link", name="Claims").click()
        expect(going.get_by_role("button", name="cancel")).to_be_visible()
    going.get_by_role("button", name="cancel").click()
    expect(going.get_by_role("button", name=re.compile("^run [0-9]"))).to_be_visible(timeout=SOON)
    expect(page.locator("button.claim", has_text="two-uses")).to_contain_text("minutes")


def test_claims_run_refuses_bad_requests_with_a_sentence(studio, post):
    for body, words in (
        ({"name": "<b>no</b>"}, "there is no claim '<b>no</b>'"),
        (
            {"name": "copy", "knobs": {"beta": 1e400}},
            "beta (inverse temperature of the copy) must be a number from 0 to 1,000, such as 50; got inf",
        ),
        ({"name": "copy", "knobs": {"m": 2.5}}, "m (keys) must be an integer from 4 to 256, such as 10; got 2.5"),
        ({"name": "copy", "knobs": {"gamma": 1}}, "copy has no knob 'gamma'"),
        ({"name": "copy", "mutant": "unmasked"}, "copy can be run with the mutants"),
        ({"name": "copy", "seed": -1}, "seed must be a whole number from 0"),
        ({}, "the request lacks 'name'"),
    ):
        status, answer = post(studio, "/api/claims/run", body)
        assert (status, words in answer["error"]) == (400, True), answer


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_every_offered_condition_breaks_its_claim(name):
    for knob, value, _ in BREAKS[name]:
        knobs: dict[str, Any] = {knob: value}
        assert claims.run(name, **knobs).verdict != claims.find_claim(name).expected


def test_the_claims_api_gives_the_question_and_the_caption_of_the_run():
    assert _claim_json(claims.find_claim("identity"))["question"] == "Can self-attention be the identity?"
    sent: dict[str, Any] = {}
    run_claim(
        {"name": "identity", "seed": 0, "knobs": {"n": 16, "d": 16}, "mutant": ""}, lambda **parts: sent.update(parts)
    )
    assert sent["result"]["caption"] == claims.run("identity", n=16, d=16).figure
    assert sent["result"]["caption"] != claims.find_claim("identity").figure


def test_every_mutant_has_a_description():
    assert set(WRONG_IMPLEMENTATIONS) == {mutant for claim in claims.CLAIMS.values() for mutant in claim.mutants}
