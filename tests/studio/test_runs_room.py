"""The Runs room: what it tells is what the library and the files say, number by number."""

import json
import math
import os
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.requests import Request

from qkv.studio import journals
from qkv.studio.answers import UnknownError
from qkv.studio.api.runs import Room
from qkv.studio.journals import since
from qkv.studio.state import Studio
from qkv.studio.training import HOLDER, options_of
from qkv.training.lock import process
from qkv.training.recipes import open_run, system
from qkv.training.recipes.images import data_uri
from qkv.training.recipes.plain import differing, to_toml
from qkv.training.recipes.report import figure

RESULT = {
    "validation": {"loss": 0.1, "accuracy": 0.95},
    "test": {"loss": 0.12346, "accuracy": 0.97219, "classes": ["a"]},
}


def line(step: int) -> dict[str, Any]:
    timing = {"seconds": step / 8, "items_per_second": 100.0, "memory": 1}
    return {"step": step, "epoch": 0, "loss": 2 / step, "rate": 0.003, "gradient_norm": 1.0, "timing": timing}


def evaluation(step: int) -> dict[str, Any]:
    return {"step": step, "evaluation": {"loss": 2.5 / step, "accuracy": 1 - 1 / step}}


def written(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in lines)


def made(place: Path, *changes: dict[str, Any], finished: bool = True, lines: int = 30, **choices: Any) -> Path:
    """A run's folder as training leaves it."""
    recipe = system("vit-digits").recipe(*changes, **choices)
    place.mkdir(parents=True)
    status = {"qkv": "0.1.0", "recipe": "vit-digits", "parameters": 152202, "finished": finished}
    if finished:
        status |= {"seconds": 61.2, "result": RESULT, "notes": ["<b>a note</b>"]}
        picture = data_uri(torch.zeros(1, 2, 2, dtype=torch.uint8))
        samples = [{"picture": picture, "is": "<i>2</i>", "taken for": "3", "sure": 0.51}]
        (place / "samples.json").write_text(json.dumps(samples))
        (place / "report.html").write_text("<script>alert(1)</script>a report")
    (place / "run.json").write_text(json.dumps(status))
    (place / "recipe.toml").write_text(to_toml(recipe.to_table()))
    rows = [each for step in range(10, 10 * lines + 1, 10) for each in (line(step), evaluation(step))]
    (place / "metrics.jsonl").write_text(written(*rows))
    return place


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home") / "runs"
    made(home / "vit-digits-1")
    made(home / "vit-digits-2", {"model.dim": 32}, seed=3, finished=False, lines=12)
    (home / "broken").mkdir()
    (home / "broken" / "recipe.toml").write_text("recipe = 3")
    (home.parent / "elsewhere").mkdir()
    (home.parent / "elsewhere" / "recipe.toml").write_text("recipe = 3")
    return home


def test_runs_are_listed_with_what_the_library_says_of_them(runs):
    listed = {run["id"]: run for run in Room(Studio(runs=runs)).listed()["runs"]}
    assert set(listed) == {"vit-digits-1", "vit-digits-2", "broken"}
    one, two, broken = (listed[name] for name in ("vit-digits-1", "vit-digits-2", "broken"))
    opened = open_run(runs / "vit-digits-1")
    assert (one["state"], two["state"], broken["state"]) == ("finished", "stopped", "unreadable")
    assert (two["step"], two["steps"], two["seconds"]) == (120, opened.recipe.stages["train"].steps, 15.0)
    assert {f"{each['part']} {each['name']}": each["shown"] for each in one["figures"]} == {
        f"{part} {name}": figure(name, value)
        for part, numbers in opened.result.items()
        for name, value in numbers.items()
        if name != "classes"
    }
    assert "there is no recipe" in broken["problem"]
    assert Room(Studio(runs=runs / "none")).listed()["runs"] == []


def test_numbers_that_are_none_are_shown_and_break_nothing(tmp_path):
    place = made(tmp_path / "vit-digits-1")
    (place / "run.json").write_text(json.dumps({"finished": True, "result": {"test": {"loss": math.nan}}}))
    (place / "samples.json").write_text(json.dumps([{"sure": math.inf, "said": None}, 3]))
    room = Room(Studio(runs=tmp_path))
    assert json.loads(json.dumps(room.listed(), allow_nan=False))["runs"][0]["figures"][0]["shown"] == "nan"
    request = Request({"type": "http", "path_params": {"run": "vit-digits-1"}})
    assert room.samples(request) == {"samples": [{"sure": "inf", "said": "None"}], "seen": []}


ODD = ('"result": null', '"result": {"test": 3}', '"parameters": Infinity', '"seconds": []')


@pytest.mark.parametrize("status", ODD)
def test_one_odd_folder_does_not_hide_the_others(tmp_path, status):
    made(tmp_path / "vit-digits-1")
    (made(tmp_path / "odd") / "run.json").write_text(f'{{"finished": true, {status}}}')
    room = Room(Studio(runs=tmp_path))
    states = {run["id"]: run["state"] for run in room.listed()["runs"]}
    assert states == {"vit-digits-1": "finished", "odd": "unreadable"}
    request = Request({"type": "http", "path_params": {"run": "odd"}, "query_string": b""})
    assert room.one(request)["stages"] == {} and room.one(request)["problem"]


def test_odd_lines_of_a_journal_are_passed_over(tmp_path):
    place = made(tmp_path / "vit-digits-1", finished=False, lines=1)
    with (place / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "timing": []}\n{"step": 30, "timing": {"seconds": null}}\n')
        file.write('{"step": 40, "timing": {"seconds": Infinity}}\n{"step": 50, "evaluation": []}\n')
        file.write('{"step": 60, "loss": NaN, "rate": 1' + "0" * 400 + "}\n" + written(line(70)))
    room = Room(Studio(runs=tmp_path))
    request = Request({"type": "http", "path_params": {"run": "vit-digits-1"}, "query_string": b""})
    run = json.loads(json.dumps(room.one(request), allow_nan=False))
    assert (run["state"], run["step"], run["seconds"]) == ("stopped", 70, 70 / 8)
    assert run["stages"]["train"]["series"]["training loss"]["step"] == [10, 70]


@pytest.mark.parametrize("name", ["..", "../elsewhere", "elsewhere", "", ".", "vit-digits-1/../broken", "/etc"])
def test_only_runs_of_the_folder_can_be_asked_for(runs, name):
    room = Room(Studio(runs=runs))
    for ask in (room.stop, room.resume):
        with pytest.raises(UnknownError, match="there is no run"):
            ask({"run": name})
    with pytest.raises(UnknownError):
        room.place(name)


def test_a_journal_is_read_on_from_where_it_was_left_and_half_a_line_waits(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert since(tmp_path)["series"] == {}
    file.write_text(written(line(10), evaluation(10), line(20)) + '{"step": 30, "lo')
    first = since(tmp_path)
    assert first["anew"] and not first["more"]
    assert first["series"]["training loss"] == {"step": [10, 20], "seconds": [1.25, 2.5], "value": [0.2, 0.1]}
    assert first["series"]["validation accuracy"] == {"step": [10], "seconds": [1.25], "value": [0.9]}
    assert since(tmp_path, first["mark"])["series"] == {}
    file.write_text(written(line(10), evaluation(10), line(20), line(30), {**line(40), "loss": None}))
    second = since(tmp_path, first["mark"])
    assert not second["anew"]
    assert second["series"]["training loss"]["step"] == [30]  # what is not finite is not drawn
    assert second["series"]["rate"]["step"] == [30, 40]


def test_a_journal_that_went_back_to_a_checkpoint_is_read_anew(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(written(line(10), line(20)))
    mark = since(tmp_path)["mark"]
    again = {**line(20), "timing": {"seconds": 99.0}}
    file.write_text(written(line(10), again, line(30)))
    found = since(tmp_path, mark)
    assert found["anew"] and found["series"]["training loss"]["step"] == [10, 20, 30]
    file.write_text(written(line(10)))
    assert since(tmp_path, mark)["anew"]
    for nonsense in ("x", "9" * 40, "5:", "-1:0:0", "¹:0:0"):
        assert since(tmp_path, nonsense)["anew"]


def test_a_long_journal_comes_in_pieces_and_none_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "PIECE", 10_000)
    count = 10_000 // len(written(line(10))) + 20
    (tmp_path / "metrics.jsonl").write_text(written(*(line(step) for step in range(1, count + 1))))
    first = since(tmp_path)
    second = since(tmp_path, first["mark"])
    assert first["more"] and not second["more"] and not second["anew"]
    steps = first["series"]["rate"]["step"] + second["series"]["rate"]["step"]
    assert steps == list(range(1, count + 1))


def test_a_form_becomes_the_command_or_a_sentence():
    asked = {"recipe": "vit-digits", "model": "mlp", "preset": "", "seed": 2, "steps": 50, "data": "-x; rm"}
    assert options_of(asked) == ["vit-digits", "--model=mlp", "--data=-x; rm", "--seed=2", "--steps=50"]
    for wrong, sentence in [
        ({"recipe": "vit-digit"}, "did you mean vit-digits"),
        ({"recipe": ["x"]}, "recipe is a text"),
        ({"recipe": "vit-digits", "model": "gpt"}, "has no model 'gpt'"),
        ({"recipe": "vit-digits", "preset": "x"}, "has no preset"),
        ({"recipe": "vit-digits", "steps": 0}, "steps is a whole number from 1"),
        ({"recipe": "vit-digits", "steps": 1.5}, "steps is a whole number"),
        ({"recipe": "vit-digits", "seed": True}, "seed is a whole number"),
        ({"recipe": "vit-digits", "minutes": float("nan")}, "minutes is a number"),
        ({"recipe": "vit-digits", "minutes": 1, "steps": 5}, "minutes or steps, not both"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            options_of(wrong)


def test_one_run_at_a_time_is_begun(tmp_path):
    place = made(tmp_path / "vit-digits-1", finished=False)
    (place / HOLDER).write_text(json.dumps(process(os.getpid())))  # as if this process trained it
    room = Room(Studio(runs=tmp_path))
    assert room.described(place)["state"] == "running"
    with pytest.raises(ValueError, match="vit-digits-1 is being trained; one run at a time"):
        room.training.start({"recipe": "vit-digits"})
    with pytest.raises(ValueError, match="vit-digits-1 is running"):
        room.resume({"run": "vit-digits-1"})
    (place / HOLDER).write_text(json.dumps({**process(os.getpid()), "began": "another boot"}))
    assert room.described(place)["state"] == "stopped"  # the number belongs to another process now
    with pytest.raises(ValueError, match="is not running"):
        room.stop({"run": "vit-digits-1"})


# in a browser


def test_the_page_shows_the_numbers_of_a_run(serving, visit, runs):
    visitor = visit(serving(runs=runs))
    page = visitor.go("runs?show=vit-digits-1")
    page.wait_for_selector("[data-testid=curves]")
    run = open_run(runs / "vit-digits-1")
    for name in ("loss", "accuracy"):
        assert page.locator(f"[data-figure='test {name}']").inner_text() == figure(name, run.result["test"][name])
    page.locator("[data-testid=curves]").focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    shown = page.locator("[data-reading='vit-digits-1 loss, training']").inner_text()
    assert shown == f"{2 / 30:.5}" == "0.066667"
    assert page.locator("[data-reading='vit-digits-1 accuracy, validation']").inner_text() == f"{1 - 1 / 30:.5f}"
    assert page.locator("figcaption", has_text="<i>2</i> → 3").count() == 1  # text, never HTML
    assert page.get_by_text("<b>a note</b>").count() == 1
    assert f"--config {runs}/vit-digits-1/recipe.toml" in page.locator("[data-testid=reproduce]").inner_text()
    with page.expect_download() as saved:
        page.get_by_role("region", name="Curves").get_by_role("button", name="CSV").click()
    rows = Path(saved.value.path()).read_text().splitlines()
    assert f"vit-digits-1,train,training loss,10,1.25,{2 / 10}" in rows
    assert len(rows) == 1 + 30 * 6


def test_a_curve_grows_while_the_run_trains_and_begins_anew_when_it_goes_back(serving, visit, tmp_path):
    place = made(tmp_path / "vit-digits-1", finished=False, lines=5)
    (place / HOLDER).write_text(json.dumps(process(os.getpid())))
    page = visit(serving(runs=tmp_path)).go("runs")
    path = page.locator("[data-panel=loss] path[data-run='vit-digits-1']")
    _shows(page, path, 5)
    with (place / "metrics.jsonl").open("a") as file:
        file.write(written(line(60), line(70)) + '{"step": 80')
        file.flush()
        _shows(page, path, 7)
    (place / "metrics.jsonl").write_text(written(line(10), line(20)))
    _shows(page, path, 2)
    assert page.get_by_role("button", name="Stop").is_enabled()
    assert page.get_by_role("button", name="Begin").is_disabled()  # one at a time


def _shows(page: Any, path: Any, points: int) -> None:
    page.wait_for_function(
        "points => document.querySelector('[data-panel=loss] path[data-run]')?.dataset.points === String(points)",
        arg=points,
    )
    assert path.get_attribute("data-points") == str(points)


def test_runs_are_compared_in_one_picture_and_the_link_remembers_it(serving, visit, runs):
    visitor = visit(serving(runs=runs))
    page = visitor.go("runs?show=vit-digits-1")
    page.get_by_role("checkbox", name="Show vit-digits-2").check()
    page.get_by_role("button", name="log").click()
    page.wait_for_selector("tr[data-setting]")
    tables = [open_run(runs / f"vit-digits-{n}").recipe.to_table() for n in (1, 2)]
    shown = {
        row.get_attribute("data-setting"): row.locator("td").all_inner_texts()
        for row in page.locator("tr[data-setting]").all()
    }
    assert shown == {name: [str(value) for value in values] for name, values in differing(tables).items()}
    assert set(shown) == {"seed", "model.dim"}
    assert page.locator("[data-panel=loss] path[data-run]").count() == 2
    address = page.evaluate("location.hash")
    assert urllib.parse.unquote(address) == "#/runs?show=vit-digits-1,vit-digits-2&log=1"
    page.reload()
    page.wait_for_selector("tr[data-setting]")
    assert page.get_by_role("button", name="log").get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = '#/runs?show=vit-digits-2'")
    page.locator("tr[data-setting]").first.wait_for(state="detached")
    page.wait_for_selector("[data-panel=loss] path[data-run='vit-digits-2']")
    assert page.get_by_role("button", name="log").get_attribute("aria-pressed") == "false"


def test_an_empty_folder_teaches_and_a_report_can_do_nothing(serving, visit, runs, tmp_path):
    page = visit(serving(runs=tmp_path / "none")).go("runs")
    page.get_by_text("Nothing has been trained here yet").wait_for()
    assert page.locator("main code", has_text="qkv train vit-digits").count() == 1
    options = page.locator("form select").first.locator("option")
    options.first.wait_for(state="attached")
    assert options.all_inner_texts()[0] == "vit-digits"
    other = visit(serving(runs=runs))
    answer = other.page.request.get(f"{other.address}/api/runs/report/vit-digits-1")
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
