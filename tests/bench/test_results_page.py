"""The results page is drawn from the records, and docs/results.md is up to date."""

import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qkv.bench.reproduce import get_row
from qkv.bench.reproduce.page import (
    draw_curves,
    draw_system,
    figure_name,
    read_all_records,
    results_markdown,
    row_table,
    system_series,
)
from qkv.bench.reproduce.records import Record, StageSpeed, write_records
from qkv.bench.reproduce.rows import SYSTEMS
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


def test_row_table_shows_mean_range_and_interval_of_the_seeds_and_published_figures():
    shown = {cells[0]: cells for cells in row_table(get_row("cifar10-20"), RECORDS, wide=True).cell_texts()}
    assert shown["nyu-hw4"][1:6] == ["3,194,634", "20.0", "2", "0", "45.1 ± 1.0"]
    assert shown["ours"][2:6] == ["20.0 (19.9–20.0)", "2", "0, 1", "71.1 ± 0.9 (70.1–72.1)"]
    assert shown["nyu-hw4"][-2:] == ["57", "42"] and shown["ours"][-1] == "–"
    part = replace(NYU, label="vanilla", test={"exact": 30.0, "exact_of_commonest": 5.0})
    (vanilla,) = row_table(get_row("birthplaces-course"), [part]).cell_texts()
    assert vanilla[4:9] == ["30.0 ± 4.0", "5.0", "–", "–", "22.4–25.8 (CS224N A5, public repositories)"]
    (wide,) = row_table(get_row("birthplaces-course"), [part], wide=True).cell_texts()
    assert wide[1].startswith("CS224N A5's: span corruption of all documents")
    (ours,) = row_table(get_row("cifar100-60"), [OURS]).cell_texts()
    assert ours[5] == "67.96 (NYU DL HW4: 100 epochs, the best epoch picked on the test set)"


def test_metric_interval_is_the_normal_one_of_a_share():
    accuracy = get_row("cifar100").metrics[0]
    draws = np.random.default_rng(0).binomial(10_000, 0.62, 20_000) / 100
    low, high = np.quantile(draws, [0.025, 0.975])
    assert float(accuracy.interval(0.62)) == pytest.approx((high - low) / 2, abs=0.06)
    assert get_row("spoken-digits").metrics[0].interval(0.03) == "", "words of one string are not independent"


def test_record_counts_operations_up_to_a_step():
    stages = (StageSpeed("pretrain", 100, 1.0, 10.0, 0.5, 2e12), StageSpeed("finetune", 50, 1.0, 10.0, 0.5, 4e12))
    record = replace(NYU, stages=stages, steps=150)
    assert [record.flops_at(step) for step in (0, 50, 100, 125, 150)] == [0.0, 1e12, 2e12, 4e12, 6e12]
    assert record.flops == 6e12
    by_time = 0.42 * 137.2e9 * 60 * 20.04  # a record without a count: its time at its share of the peak
    assert NYU.flops == pytest.approx(by_time) and NYU.flops_at(100) == pytest.approx(by_time / 2)
    assert replace(NYU, stages=(replace(NYU.stages[0], share_of_peak=None),)).flops is None


def test_the_figure_of_a_system_shows_the_course_beside_ours_over_operations():
    cifar100 = next(system for system in SYSTEMS if system.name == "cifar100")
    assert system_series(cifar100, {}) == {}, "published points alone are no result"
    results = {"cifar100-60": [NYU, OURS]}
    series = system_series(cifar100, results)
    assert list(series) == ["nyu-hw4", "ours", "NYU DL HW4, published (test set)"]
    assert list(system_series(cifar100, {**results, "cifar100": [OURS]}))[1:3] == [
        "cifar100-60: ours",
        "cifar100: ours",
    ]
    assert series["nyu-hw4"] == [([NYU.flops_at(20), NYU.flops_at(200)], [0.2442, 0.45])]
    (published,) = series["NYU DL HW4, published (test set)"]
    assert published[1] == [0.1606, 0.3991, 0.5086, 0.6234, 0.6796]
    assert published[0][-1] == pytest.approx(90 / 100 * 6.3e15)
    drawn = draw_system(cifar100, results)
    assert drawn is not None and "published" in drawn and drawn == draw_system(cifar100, results)
    page = results_markdown(results)
    assert "![CIFAR-100, accuracy over operations](results/cifar100-operations.svg)" in page
    assert "translation-operations.svg" not in page


def test_every_row_of_a_system_exists_and_has_the_same_curve():
    for system in SYSTEMS:
        assert len({get_row(name).curve for name in system.rows}) == 1


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
    write_records(tmp_path / "results", get_row("cifar10-60"), *RECORDS)
    assert run(["reproduce", "--draw", "--results", str(tmp_path / "results")]) == 0
    assert (tmp_path / "results" / "cifar10-operations.svg").is_file()


@pytest.mark.skipif(not (DOCS / "results").is_dir(), reason="needs the docs of a checkout")
def test_docs_results_page_is_what_is_drawn_from_its_records():
    results = read_all_records(DOCS / "results")
    assert results and (DOCS / "results.md").read_text(encoding="utf-8") == results_markdown(results)
    for name, parts in results.items():
        assert (DOCS / "results" / f"{name}.svg").is_file() == any(part.curve for part in parts)
        assert not any(word in str(parts) for word in ("/home/", "/work/", "/root/", "/tmp/")), "no paths of a machine"
    drawn = {f"{figure_name(system)}.svg" for system in SYSTEMS if system_series(system, results)}
    known = {f"{name}{ending}" for name in results for ending in (".json", ".svg")} | drawn
    assert all((DOCS / "results" / name).is_file() for name in drawn)
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


def test_the_command_of_a_record_sets_every_setting_that_differs_from_its_row():
    checked = 0
    for records in read_all_records(DOCS / "results").values():
        for record in records:
            names = [text.split("=")[0] for text in record.differs if "=" in text]
            if record.command.startswith("qkv train"):
                assert all(f"--set {name}=" in record.command.replace("'", "") for name in names), record.label
                checked += len(names)
    assert checked >= 5
