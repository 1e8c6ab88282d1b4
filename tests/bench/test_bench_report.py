"""Benchmark reports, the table of benchmarks and `qkv bench`; libraries that are not installed are named."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv import bench
from qkv.bench import hugging_face, models, other_libraries
from qkv.bench.report import (
    BenchmarkReport,
    BenchmarkResult,
    Column,
    Table,
    markdown_page,
    merge_report,
    write_report,
)
from qkv.cli.main import run
from qkv.models import GPT, GPTConfig

MACHINE = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "processor": "a processor",
    "instructions": ["avx2"],
    "cores": 2,
    "threads": 2,
    "memory_gib": 8.0,
    "peak_gigaflops": 137.25,
    "bandwidth": 20.5,
}
TABLE = Table(
    "Time", (Column("who"), Column("time", "ms", 1), Column("count")), (("qkv", 12.34, 1205898), ("x", None, 7))
)
REPORT = BenchmarkReport(
    MACHINE, True, (BenchmarkResult("models", "What was measured.", (TABLE,), ("x-transformers",), ("A note.",), 1.5),)
)


def test_write_report_shows_the_figures_of_the_json_and_its_command(tmp_path: Path):
    data = write_report(REPORT, tmp_path / "benchmarks.md")
    plain = json.loads(data.read_text(encoding="utf-8"))
    assert BenchmarkReport.from_dict(plain) == REPORT
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert page == markdown_page(BenchmarkReport.from_dict(plain))
    assert "| qkv | 12.3 | 1,205,898 |" in page and "| x | – | 7 |" in page and "137.2 GFLOPS" in page
    assert "`qkv bench models --quick --report docs/benchmarks.md`" in page
    assert "Not installed, so not measured: x-transformers." in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmarks.json", "benchmarks.md"]


def test_merge_report_replaces_a_benchmark_and_says_that_it_was_measured_separately(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    write_report(REPORT, page)
    result = BenchmarkResult("studio", "The page.", (TABLE,))
    now = replace(REPORT, machine={**MACHINE, "peak_gigaflops": 99.0}, results=(result,))
    both = merge_report(page, now)
    assert [result.name for result in both.results] == ["models", "studio"]
    assert both.results[0] == REPORT.results[0] and both.machine == MACHINE
    write_report(both, page)
    assert BenchmarkReport.from_dict(json.loads(page.with_suffix(".json").read_text("utf-8"))) == both
    text = page.read_text("utf-8")
    assert "Measured by `qkv bench models --quick --report" in text
    assert "Measured separately, by `qkv bench studio --quick --keep --report docs/benchmarks.md`; at that time" in text
    assert "99.0 GFLOPS" in text
    again = merge_report(page, replace(now, results=(BenchmarkResult("models", "Anew.", (TABLE,)),)))
    assert [result.about for result in again.results] == ["Anew.", "The page."]
    for wrong, words in (
        (replace(now, quick=False), "measured with --quick"),
        (replace(now, machine={**MACHINE, "torch": "3"}), "torch differ"),
    ):
        with pytest.raises(ValueError, match=words):
            merge_report(page, wrong)
    with pytest.raises(ValueError, match="adds to an existing report"):
        merge_report(tmp_path / "none.md", now)


def test_bench_keep_refuses_a_page_of_another_machine_before_it_measures(tmp_path, capsys, monkeypatch):
    write_report(replace(REPORT, machine={**MACHINE, "processor": "another"}), tmp_path / "benchmarks.md")
    monkeypatch.setattr(bench, "run_benchmarks", lambda *args, **options: pytest.fail("measured"))
    assert run(["bench", "load", "--quick", "--keep", "--report", str(tmp_path / "benchmarks.md")]) == 2
    assert "measured on another machine or version" in capsys.readouterr().err


def test_table_rejects_a_row_with_too_few_values():
    with pytest.raises(ValueError, match="one value for each of 2 columns; got 1"):
        Table("t", (Column("a"), Column("b")), (("x",),))


def test_build_available_names_missing_libraries_and_builds_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    built, missing = other_libraries.build_available(other_libraries.GPTS, models.SMALL["GPT"])
    assert missing == ("transformers", "x-transformers")
    assert set(built) == {"qkv", "torch.nn.TransformerEncoder", "plain PyTorch"}
    found = hugging_face.benchmark_generate(True, lambda _: None)
    assert found.not_installed == ("transformers",) and found.tables == ()


def test_other_libraries_have_our_size_and_logits_of_our_shape():
    for kind, shape in (("ViT", (2, other_libraries.NUM_CLASSES)), ("GPT", (2, 128, other_libraries.VOCAB_SIZE))):
        subject = models.SUBJECTS[kind]
        x, _ = subject.batch(2)
        built, _ = other_libraries.build_available(subject.builders, models.SMALL[kind])
        ours = sum(parameter.numel() for parameter in built["qkv"].parameters())
        for name, model in built.items():
            assert model(x).shape == shape, name
            assert abs(sum(parameter.numel() for parameter in model.parameters()) / ours - 1) < 0.01, name


@pytest.mark.parametrize("kind", ["ViT", "GPT"])
def test_subject_flops_agree_with_the_flop_counter(kind):
    from torch.utils.flop_counter import FlopCounterMode

    subject, size = replace(models.SUBJECTS[kind], causal=False), replace(models.SMALL[kind], batch=2)
    model = subject.builders["plain PyTorch"](size)  # the counter counts masked scores too
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(subject.batch(2)[0])
    assert abs(counter.get_total_flops() / subject.flops(size) - 1) < 0.01


def test_bytes_read_per_step_leave_out_embedding_tables():
    untied, tied = (
        GPT(GPTConfig(vocab_size=7, max_length=9, dim=8, layers=1, heads=2, tie_embeddings=tied))
        for tied in (False, True)
    )
    assert hugging_face.bytes_read_per_step(untied) == 4 * (untied.num_parameters - 7 * 8 - 9 * 8)
    assert hugging_face.bytes_read_per_step(tied) == 4 * (tied.num_parameters - 9 * 8)


def test_select_benchmarks_finds_each_by_name_once():
    assert bench.select_benchmarks([]) == list(bench.BENCHMARKS)
    assert bench.select_benchmarks(["load", "load"]) == ["load"]
    for name in bench.BENCHMARKS:
        assert callable(bench.load_benchmark(name))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["atention"], "did you mean attention?"),
        (["zzz"], "expected one of attention, models, generate, load"),
        (["attention", "--report", "page.txt"], "markdown page"),
        (["attention", "--report", "no/such/folder/page.md"], "there is no folder"),
        (["attention", "--keep"], "goes with --report"),
        (["--rounds", "3"], "qkv bench --help"),
    ],
)
def test_bench_wrong_use_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert run(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_bench_json_prints_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(bench, "run_benchmarks", lambda names, *, quick, on_note: REPORT)
    assert run(["bench", "models", "--json"]) == 0
    assert BenchmarkReport.from_dict(json.loads(capsys.readouterr().out)) == REPORT


@pytest.mark.long
def test_call_memory_of_the_formula_grows_with_the_square_and_ours_does_not():
    from qkv.bench.attention import call_memory

    grown = {
        name: [call_memory(name, length) or 0 for length in (1024, 4096)] for name in ("qkv.attention", "the formula")
    }
    assert grown["the formula"][1] > 8 * grown["the formula"][0]
    assert grown["the formula"][1] > 20 * grown["qkv.attention"][1]


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(not (DOCS / "benchmarks.json").is_file(), reason="needs the docs of a checkout")
def test_docs_benchmarks_page_is_what_is_drawn_from_its_json():
    report = BenchmarkReport.from_dict(json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8")))
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == markdown_page(report)
    assert {result.name for result in report.results} <= set(bench.BENCHMARKS)
