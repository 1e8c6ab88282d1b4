"""The benchmark of the studio: sizes, latencies, and the reason if something was not measured."""

import gzip
import sys

import pytest

from qkv.bench import studio


def test_measure_sizes_are_those_of_the_built_files(tmp_path):
    (tmp_path / "assets").mkdir()
    for name, text in {"index.html": "<p>" * 500, "assets/a.js": "x = 1;" * 2000}.items():
        (tmp_path / name).write_text(text)
    found = studio.measure_sizes(tmp_path)
    assert {name: size for name, (size, _) in found.items()} == {"index.html": 1500, "assets/a.js": 12000}
    for name, (_, packed) in found.items():
        assert packed == len(gzip.compress((tmp_path / name).read_bytes(), 9))
    last = studio.make_size_table(found).rows[-1]
    assert last == ("total", 13.5, sum(packed for _, packed in found.values()) / 1e3, 500.0)
    assert "index.html" in studio.measure_sizes()  # of the page itself


@pytest.mark.parametrize(
    ("missing", "why"), [("playwright", "playwright is not installed"), ("", "there is no chromium")]
)
def test_benchmark_studio_says_why_something_is_not_measured(monkeypatch, missing, why):
    if missing:
        monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    else:
        pytest.importorskip("playwright.sync_api")
        monkeypatch.setattr("shutil.which", lambda _: None)
    result = studio.benchmark_studio(True, lambda _: None)
    assert result.notes == (f"Not measured: first paint and the slider, because {why}.",)
    assert [table.title for table in result.tables] == ["Size of the page"]


def test_latency_row_has_the_median_and_the_quartiles():
    row = studio.Latency("slider", (40.0, 10.0, 20.0, 30.0, 50.0), 50.0).row()
    assert row == ("slider", 5, 30.0, "20.0–40.0", 50.0)


def test_playground_link_has_64_tokens():
    from urllib.parse import parse_qs

    given = parse_qs(studio.playground_link())
    assert given["form"] == ["qkv"]
    for name in "qkv":
        rows = [row.split(",") for row in given[name][0].split(";")]
        assert (len(rows), {len(row) for row in rows}) == (64, {8})


@pytest.mark.long
def test_time_slider_times_moves_and_says_if_the_page_draws_no_map(tmp_path):
    browser = pytest.importorskip("browser")
    page_of = """<!doctype html><meta charset="utf-8">
      <input type="range" min="0" max="10" aria-label="β, the inverse temperature">
      <div data-testid="weights" %s></div><script>
      const picture = document.querySelector("div"); let count = 0;
      document.querySelector("input").oninput = () => setTimeout(() => { if (%s) picture.dataset.shown = ++count }, 20);
      </script>"""
    (tmp_path / "told.html").write_text(page_of % ('data-shown="0"', "true"), encoding="utf-8")
    (tmp_path / "silent.html").write_text(page_of % ("", "false"), encoding="utf-8")
    with browser.chromium() as found:
        page = found.new_page()
        page.add_init_script(studio.WATCH)
        page.goto((tmp_path / "told.html").as_uri())
        times, why = studio.time_slider(page, 3)
        assert why == "" and len(times) == 3 and min(times) >= 20  # no sooner than the page takes
        page.goto((tmp_path / "silent.html").as_uri())
        times, why = studio.time_slider(page, 3, timeout=200)
        assert (times, why) == ([], "the Playground does not report when its map is drawn")
