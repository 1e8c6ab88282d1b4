"""What the studio's benchmark says: sizes as the files have them, and why something was not measured."""

import gzip
import sys

import pytest

from qkv.bench import studio


def test_sizes_are_those_of_the_files_that_ship(tmp_path):
    (tmp_path / "assets").mkdir()
    for name, text in {"index.html": "<p>" * 500, "assets/a.js": "x = 1;" * 2000}.items():
        (tmp_path / name).write_text(text)
    found = studio.sizes(tmp_path)
    assert {name: size for name, (size, _) in found.items()} == {"index.html": 1500, "assets/a.js": 12000}
    for name, (_, packed) in found.items():
        assert packed == len(gzip.compress((tmp_path / name).read_bytes(), 9))
    last = studio.sizes_table(found).rows[-1]
    assert last == ("all of it", 13.5, sum(packed for _, packed in found.values()) / 1e3, 500.0)
    assert "index.html" in studio.sizes()  # of the page itself


@pytest.mark.parametrize(
    ("missing", "why"), [("playwright", "playwright is not installed"), ("", "there is no chromium")]
)
def test_what_is_not_measured_says_why(monkeypatch, missing, why):
    if missing:
        monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    else:
        pytest.importorskip("playwright.sync_api")
        monkeypatch.setattr("shutil.which", lambda _: None)
    result = studio.run(True, lambda _: None)
    assert result.notes == (f"Not measured: first paint and the slider, because {why}.",)
    assert [table.title for table in result.tables] == ["What the page is made of"]


def test_a_row_has_the_median_and_the_quartiles():
    row = studio.Measured("a slider", (40.0, 10.0, 20.0, 30.0, 50.0), 50.0).row()
    assert row == ("a slider", 5, 30.0, "20.0–40.0", 50.0)


def test_the_slider_is_measured_on_sixty_four_tokens():
    from urllib.parse import parse_qs

    given = parse_qs(studio.link())
    assert given["form"] == ["qkv"]
    for name in "qkv":
        rows = [row.split(",") for row in given[name][0].split(";")]
        assert (len(rows), {len(row) for row in rows}) == (64, {8})


def test_moves_are_timed_in_a_browser_and_a_page_without_pictures_says_so(tmp_path):
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
        times, why = studio.slid(page, 3)
        assert why == "" and len(times) == 3 and min(times) >= 20  # no sooner than the page takes
        page.goto((tmp_path / "silent.html").as_uri())
        times, why = studio.slid(page, 3, patience=200)
        assert (times, why) == ([], "the Playground does not tell when its picture is drawn")
