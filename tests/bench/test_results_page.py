"""The results page is drawn from the records, and docs/results.md is up to date."""

import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.bench.reproduce import get_row
from qkv.bench.reproduce.page import draw_curves, read_all_records, results_markdown, row_table
from qkv.bench.reproduce.records import Record, StageSpeed, write_records
from qkv.cli.main import run

DOCS = Path(__file__).resolve().parents[2] / "docs"

NYU = Record(
    label="nyu-hw4",
    seed=0,
    command="qkv reproduce cifar10-20 --data DATA",
    commit="0123456789ab",
    began="2026-01-01T00:00:00+00:00",
    machine={"processor": "a processor", "cores": 2, "memory_gib": 8.0, "python": "3.11.7", "torch": "2.13.0"},
    threads=2,
    peak_gigaflops=137.2,
    parameters=3_194_634,
    minutes=20.04,
    steps=200,
    items_per_second=57.3,
    share_of_peak=0.42,
    stages=(StageSpeed("train", 200, 20.04, 57.3, 0.42),),
    test={"accuracy": 0.4512, "loss": 1.5},
    curve=((20, 2.0, 0.2442), (200, 20.0, 0.45)),
)
OURS = replace(NYU, label="ours", test={"accuracy": 0.7012}, share_of_peak=None, differs=("model.dim=96",))
RECORDS = [NYU, OURS, replace(OURS, seed=1, test={"accuracy": 0.7212}, minutes=19.9)]


def test_row_table_shows_mean_and_range_of_the_seeds_and_public_figures():
    shown = {cells[0]: cells for cells in row_table(get_row("cifar10-20"), RECORDS, wide=True).cell_texts()}
    assert shown["nyu-hw4"][1:6] == ["3,194,634", "20.0", "2", "0", "45.1"]
    assert shown["ours"][2:6] == ["20.0 (19.9–20.0)", "2", "0, 1", "71.1 (70.1–72.1)"]
    assert shown["nyu-hw4"][-2:] == ["57", "42"] and shown["ours"][-1] == "–"
    part = replace(NYU, label="vanilla", test={"exact": 30.0, "exact_of_commonest": 5.0})
    (vanilla,) = row_table(get_row("birthplaces-variants"), [part]).cell_texts()
    assert vanilla[4:7] == ["30.0", "5.0", "22.4–25.8"]


def test_results_markdown_names_commands_differences_and_the_machine():
    page = results_markdown({"cifar10-20": RECORDS})
    assert "- nyu-hw4, ours: `qkv reproduce cifar10-20 --data DATA`" in page
    assert "- ours, seed 1, differs from the row: model.dim=96" in page
    assert "a processor, 2 cores, torch 2.13.0, Python 3.11.7; qkv at 0123456789ab" in page
    assert "![accuracy over minutes](results/cifar10-20.svg)" in page
    assert "| multi30k | not measured yet |" in page and "| [cifar10-20](#cifar10-20) | ours |" in page


def test_draw_curves_makes_the_same_svg_each_time():
    drawn = draw_curves(get_row("cifar10-20"), RECORDS)
    assert drawn == draw_curves(get_row("cifar10-20"), RECORDS)
    assert drawn is not None and ElementTree.fromstring(drawn).tag.endswith("svg")
    assert {"width", "height", "viewBox"} <= set(ElementTree.fromstring(drawn).attrib)
    assert "currentColor" not in drawn and drawn.count(">ours<") == drawn.count(">nyu-hw4<") == 1
    assert draw_curves(get_row("cifar10-20"), [replace(NYU, curve=())]) is None


def test_reproduce_draw_writes_the_page_next_to_its_folder(tmp_path, capsys):
    write_records(tmp_path / "results", get_row("cifar10-20"), *RECORDS)
    assert run(["reproduce", "--draw", "--results", str(tmp_path / "results")]) == 0
    assert "results.md" in capsys.readouterr().err
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == results_markdown({"cifar10-20": RECORDS})
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["cifar10-20.json", "cifar10-20.svg"]


@pytest.mark.skipif(not (DOCS / "results").is_dir(), reason="needs the docs of a checkout")
def test_docs_results_page_is_what_is_drawn_from_its_records():
    results = read_all_records(DOCS / "results")
    assert results and (DOCS / "results.md").read_text(encoding="utf-8") == results_markdown(results)
    for name, parts in results.items():
        assert (DOCS / "results" / f"{name}.svg").is_file() == any(part.curve for part in parts)
        assert not any(word in str(parts) for word in ("/home/", "/work/", "/root/", "/tmp/")), "no paths of a machine"
    known = {f"{name}{ending}" for name in results for ending in (".json", ".svg")}
    assert {path.name for path in (DOCS / "results").iterdir()} <= known


@pytest.mark.skipif(not (DOCS / "results").is_dir(), reason="needs the docs of a checkout")
def test_commands_of_the_results_page_parse(capsys):
    commands = {record.command for records in read_all_records(DOCS / "results").values() for record in records}
    assert commands
    for command in sorted(commands):
        words = shlex.split(command)
        if words[1] == "train":
            assert run([*words[1:], "--show"]) == 0, capsys.readouterr().err
        else:
            assert words[:2] == ["qkv", "reproduce"]
            row = get_row(words[2])
            if "--label" in words:
                row.get_part(words[words.index("--label") + 1])
