"""The Runs page: it shows the numbers of the library and of the run files."""

import json
import math
import os
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.requests import Request

from qkv._config import find_differences, to_toml
from qkv.studio import run_files
from qkv.studio.api.runs import RunsApi
from qkv.studio.responses import NotFoundError
from qkv.studio.run_files import read_series
from qkv.studio.run_processes import PROCESS_FILE, train_options
from qkv.studio.server import Studio
from qkv.training import open_run
from qkv.training.lock import describe_process, lock_folder
from qkv.training.recipes import get_recipe
from qkv.training.recipes.images import png_data_uri
from qkv.training.report import format_metric

RESULT = {
    "validation": {"loss": 0.1, "accuracy": 0.95},
    "test": {"loss": 0.12346, "accuracy": 0.97219, "classes": ["a"]},
}


def line(step: int) -> dict[str, Any]:
    timing = {"seconds": step / 8, "items_per_second": 100.0, "memory": 1}
    return {"step": step, "epoch": 0, "loss": 2 / step, "rate": 0.003, "gradient_norm": 1.0, "timing": timing}


def evaluation(step: int) -> dict[str, Any]:
    return {"step": step, "evaluation": {"loss": 2.5 / step, "accuracy": 1 - 1 / step}}


def json_lines(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in lines)


def make_run(place: Path, *changes: dict[str, Any], finished: bool = True, lines: int = 30, **choices: Any) -> Path:
    """A run's folder as training leaves it."""
    recipe = get_recipe("vit-digits").resolve(*changes, **choices)
    place.mkdir(parents=True)
    status = {"qkv": "0.1.0", "recipe": "vit-digits", "parameters": 152202, "finished": finished}
    if finished:
        status |= {"seconds": 61.2, "result": RESULT, "notes": ["<b>a note</b>"]}
        image = png_data_uri(torch.zeros(1, 2, 2, dtype=torch.uint8))
        samples = [{"image": image, "label": "<i>2</i>", "prediction": "3", "confidence": 0.51}]
        (place / "samples.json").write_text(json.dumps(samples))
        (place / "report.html").write_text("<script>alert(1)</script>a report")
    (place / "run.json").write_text(json.dumps(status))
    (place / "recipe.toml").write_text(to_toml(recipe.to_table()))
    rows = [each for step in range(10, 10 * lines + 1, 10) for each in (line(step), evaluation(step))]
    (place / "metrics.jsonl").write_text(json_lines(*rows))
    return place


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home") / "runs"
    make_run(home / "vit-digits-1")
    make_run(home / "vit-digits-2", {"model.dim": 32}, seed=3, finished=False, lines=12)
    (home / "broken").mkdir()
    (home / "broken" / "recipe.toml").write_text("recipe = 3")
    (home.parent / "elsewhere").mkdir()
    (home.parent / "elsewhere" / "recipe.toml").write_text("recipe = 3")
    return home


def test_runs_api_lists_runs_with_the_results_of_the_library(runs):
    listed = {run["id"]: run for run in RunsApi(Studio(runs=runs)).list()["runs"]}
    assert set(listed) == {"vit-digits-1", "vit-digits-2", "broken"}
    one, two, broken = (listed[name] for name in ("vit-digits-1", "vit-digits-2", "broken"))
    opened = open_run(runs / "vit-digits-1")
    assert (one["state"], two["state"], broken["state"]) == ("finished", "unfinished", "unreadable")
    assert (two["step"], two["steps"], two["seconds"]) == (120, opened.config.stages["train"].steps, 15.0)
    assert {f"{each['part']} {each['name']}": each["text"] for each in one["results"]} == {
        f"{part} {name}": format_metric(name, value)
        for part, numbers in opened.result.items()
        for name, value in numbers.items()
        if name != "classes"
    }
    assert "has no run.json" in broken["problem"]
    assert RunsApi(Studio(runs=runs / "none")).list()["runs"] == []


def test_nan_and_infinite_numbers_do_not_break_the_json(tmp_path):
    place = make_run(tmp_path / "vit-digits-1")
    (place / "run.json").write_text(json.dumps({"finished": True, "result": {"test": {"loss": math.nan}}}))
    (place / "samples.json").write_text(json.dumps([{"confidence": math.inf, "text": None}, 3]))
    api = RunsApi(Studio(runs=tmp_path))
    assert json.loads(json.dumps(api.list(), allow_nan=False))["runs"][0]["results"][0]["text"] == "nan"
    request = Request({"type": "http", "path_params": {"run": "vit-digits-1"}})
    assert api.samples(request) == {"samples": [{"confidence": "inf", "text": "None"}], "checkpoints": []}


DAMAGED = ('"result": null', '"result": {"test": 3}', '"parameters": Infinity', '"seconds": []')


@pytest.mark.parametrize("status", DAMAGED)
def test_a_damaged_run_folder_does_not_hide_the_others(tmp_path, status):
    make_run(tmp_path / "vit-digits-1")
    (make_run(tmp_path / "odd") / "run.json").write_text(f'{{"finished": true, {status}}}')
    api = RunsApi(Studio(runs=tmp_path))
    states = {run["id"]: run["state"] for run in api.list()["runs"]}
    assert states == {"vit-digits-1": "finished", "odd": "unreadable"}
    request = Request({"type": "http", "path_params": {"run": "odd"}, "query_string": b""})
    assert api.details(request)["stages"] == {} and api.details(request)["problem"]


def test_read_series_skips_damaged_lines(tmp_path):
    place = make_run(tmp_path / "vit-digits-1", finished=False, lines=1)
    with (place / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "timing": []}\n{"step": 30, "timing": {"seconds": null}}\n')
        file.write('{"step": 40, "timing": {"seconds": Infinity}}\n{"step": 50, "evaluation": []}\n')
        file.write('{"step": 60, "loss": NaN, "rate": 1' + "0" * 400 + "}\n" + json_lines(line(70)))
    api = RunsApi(Studio(runs=tmp_path))
    request = Request({"type": "http", "path_params": {"run": "vit-digits-1"}, "query_string": b""})
    run = json.loads(json.dumps(api.details(request), allow_nan=False))
    assert (run["state"], run["step"], run["seconds"]) == ("unfinished", 70, 70 / 8)
    assert run["stages"]["train"]["series"]["training loss"]["step"] == [10, 70]


@pytest.mark.parametrize("name", ["..", "../elsewhere", "elsewhere", "", ".", "vit-digits-1/../broken", "/etc"])
def test_only_runs_of_the_folder_can_be_requested(runs, name):
    api = RunsApi(Studio(runs=runs))
    for ask in (api.stop, api.resume):
        with pytest.raises(NotFoundError, match="there is no run"):
            ask({"run": name})
    with pytest.raises(NotFoundError):
        api.folder(name)


def test_read_series_continues_at_its_mark_and_leaves_an_incomplete_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_series(tmp_path)["series"] == {}
    file.write_text(json_lines(line(10), evaluation(10), line(20)) + '{"step": 30, "lo')
    first = read_series(tmp_path)
    assert first["reset"] and not first["more"]
    assert first["series"]["training loss"] == {"step": [10, 20], "seconds": [1.25, 2.5], "value": [0.2, 0.1]}
    assert first["series"]["validation accuracy"] == {"step": [10], "seconds": [1.25], "value": [0.9]}
    assert read_series(tmp_path, first["mark"])["series"] == {}
    file.write_text(json_lines(line(10), evaluation(10), line(20), line(30), {**line(40), "loss": None}))
    second = read_series(tmp_path, first["mark"])
    assert not second["reset"]
    assert second["series"]["training loss"]["step"] == [30]  # what is not finite is not drawn
    assert second["series"]["rate"]["step"] == [30, 40]


def test_read_series_starts_over_when_the_run_went_back_to_a_checkpoint(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json_lines(line(10), line(20)))
    mark = read_series(tmp_path)["mark"]
    again = {**line(20), "timing": {"seconds": 99.0}}
    file.write_text(json_lines(line(10), again, line(30)))
    found = read_series(tmp_path, mark)
    assert found["reset"] and found["series"]["training loss"]["step"] == [10, 20, 30]
    file.write_text(json_lines(line(10)))
    assert read_series(tmp_path, mark)["reset"]
    for nonsense in ("x", "9" * 40, "5:", "-1:0:0", "¹:0:0"):
        assert read_series(tmp_path, nonsense)["reset"]


def test_read_series_reads_long_files_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "CHUNK", 10_000)
    count = 10_000 // len(json_lines(line(10))) + 20
    (tmp_path / "metrics.jsonl").write_text(json_lines(*(line(step) for step in range(1, count + 1))))
    first = read_series(tmp_path)
    second = read_series(tmp_path, first["mark"])
    assert first["more"] and not second["more"] and not second["reset"]
    steps = first["series"]["rate"]["step"] + second["series"]["rate"]["step"]
    assert steps == list(range(1, count + 1))


def test_train_options_turns_a_form_into_options_or_a_sentence():
    asked = {"recipe": "vit-digits", "model": "mlp", "preset": "", "seed": 2, "steps": 50, "data": "-x; rm"}
    assert train_options(asked) == ["vit-digits", "--model=mlp", "--data=-x; rm", "--seed=2", "--steps=50"]
    for wrong, sentence in [
        ({"recipe": "vit-digit"}, "did you mean vit-digits"),
        ({"recipe": ["x"]}, "recipe must be a text"),
        ({"recipe": "vit-digits", "model": "gpt"}, "has no model 'gpt'"),
        ({"recipe": "vit-digits", "preset": "x"}, "has no preset"),
        ({"recipe": "vit-digits", "steps": 0}, "steps must be a whole number from 1"),
        ({"recipe": "vit-digits", "steps": 1.5}, "steps must be a whole number"),
        ({"recipe": "vit-digits", "seed": True}, "seed must be a whole number"),
        ({"recipe": "vit-digits", "minutes": float("nan")}, "minutes must be a number"),
        ({"recipe": "vit-digits", "minutes": 1, "steps": 5}, "minutes or steps, not both"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            train_options(wrong)


def test_only_one_run_is_started_at_a_time(tmp_path):
    place = make_run(tmp_path / "vit-digits-1", finished=False)
    api = RunsApi(Studio(runs=tmp_path))
    with lock_folder(place):  # as if this process trained it
        assert api.summary(place)["state"] == "training"
        with pytest.raises(ValueError, match="vit-digits-1 is training; the studio runs one at a time"):
            api.processes.start({"recipe": "vit-digits"})
        with pytest.raises(ValueError, match="vit-digits-1 is training; only a stopped, failed or unfinished run"):
            api.resume({"run": "vit-digits-1"})
    (place / PROCESS_FILE).write_text(json.dumps({**describe_process(os.getpid()), "began": "another boot"}))
    assert api.summary(place)["state"] == "unfinished"  # the pid belongs to another process now
    assert api.summary(place)["error"] == "its process ended without finishing the run; resume it to continue"
    with pytest.raises(ValueError, match="is not running"):
        api.stop({"run": "vit-digits-1"})


# in a browser


def test_runs_page_shows_the_results_of_a_run(serving, visit, runs):
    visitor = visit(serving(runs=runs))
    page = visitor.go("runs?show=vit-digits-1")
    page.wait_for_selector("[data-testid=curves]")
    run = open_run(runs / "vit-digits-1")
    for name in ("loss", "accuracy"):
        assert page.locator(f"[data-result='test {name}']").inner_text() == format_metric(
            name, run.result["test"][name]
        )
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


def test_curves_grow_while_a_run_trains_and_start_over_when_it_goes_back(serving, visit, tmp_path):
    place = make_run(tmp_path / "vit-digits-1", finished=False, lines=5)
    with lock_folder(place):
        page = visit(serving(runs=tmp_path)).go("runs")
        path = page.locator("[data-panel=loss] path[data-run='vit-digits-1']")
        _shows(page, path, 5)
        with (place / "metrics.jsonl").open("a") as file:
            file.write(json_lines(line(60), line(70)) + '{"step": 80')
            file.flush()
            _shows(page, path, 7)
        (place / "metrics.jsonl").write_text(json_lines(line(10), line(20)))
        _shows(page, path, 2)
        assert page.get_by_role("button", name="Stop").is_enabled()


def _shows(page: Any, path: Any, points: int) -> None:
    page.wait_for_function(
        "points => document.querySelector('[data-panel=loss] path[data-run]')?.dataset.points === String(points)",
        arg=points,
    )
    assert path.get_attribute("data-points") == str(points)


def test_runs_are_compared_in_one_figure_and_the_link_restores_it(serving, visit, runs):
    visitor = visit(serving(runs=runs))
    page = visitor.go("runs?show=vit-digits-1")
    page.get_by_role("checkbox", name="Show vit-digits-2").check()
    page.get_by_role("button", name="log").click()
    page.wait_for_selector("tr[data-setting]")
    tables = [open_run(runs / f"vit-digits-{n}").config.to_table() for n in (1, 2)]
    shown = {
        row.get_attribute("data-setting"): row.locator("td").all_inner_texts()
        for row in page.locator("tr[data-setting]").all()
    }
    assert shown == {name: [str(value) for value in values] for name, values in find_differences(tables).items()}
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


def test_a_failed_run_says_so_and_a_stopped_one_has_nothing_to_update(serving, visit, tmp_path):
    place = make_run(tmp_path / "failed", finished=False, lines=0)
    status = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**status, "error": "step 2: the loss is nan"}))
    stopped = make_run(tmp_path / "stopped", finished=False, lines=4)
    (stopped / "run.json").write_text(json.dumps({**status, "stopped": "SIGTERM"}))
    (stopped / "checkpoints" / "step-00000043").mkdir(parents=True)
    visitor = visit(serving(runs=tmp_path))
    page = visitor.go("runs?show=failed")
    page.get_by_text("No metrics: this run ended before the first line was written").wait_for()
    details = page.get_by_test_id("details").inner_text()
    assert "step 2: the loss is nan" in details and "bit-exactly" not in details and "steps, 0" not in details
    assert page.get_by_text("no metrics yet").count() == page.get_by_text("the model overfits").count() == 0
    page = visitor.go("runs?show=stopped")
    page.get_by_test_id("details").get_by_text("43 of").wait_for()
    assert page.get_by_text("update during training").count() == 0


def test_runs_have_colors_of_their_own_and_a_wide_comparison_says_that_it_scrolls(serving, visit, tmp_path):
    names = [f"run-{place}" for place in range(12)]
    for name in names:
        make_run(tmp_path / name, lines=3)
    page = visit(serving(runs=tmp_path)).go(f"runs?show={','.join(names)}")
    lines = page.locator("[data-panel=loss] path[data-run]")
    lines.nth(11).wait_for()
    assert len(set(lines.evaluate_all("lines => lines.map((line) => getComputedStyle(line).stroke)"))) == 12
    page.get_by_test_id("more-runs").get_by_text("12 runs; scroll sideways").wait_for()
    page.goto(f"{page.url.partition('#')[0]}#/runs?show=run-1")
    page.get_by_text("Wrong predictions come first").wait_for()
    assert page.get_by_test_id("more-runs").count() == 0


def test_an_empty_folder_shows_instructions_and_a_report_is_sandboxed(serving, visit, runs, tmp_path):
    page = visit(serving(runs=tmp_path / "none")).go("runs")
    page.get_by_text("Nothing has been trained here yet").wait_for()
    assert page.locator("main code", has_text="qkv train vit-digits").count() == 1
    options = page.locator("form select").first.locator("option")
    options.first.wait_for(state="attached")
    assert options.all_inner_texts()[0] == "vit-digits"
    other = visit(serving(runs=runs))
    answer = other.page.request.get(f"{other.address}/api/runs/report/vit-digits-1")
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
