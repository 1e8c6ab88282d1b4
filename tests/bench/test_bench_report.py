"""Reports, the registry and the command: figures are the same everywhere, absent peers are named."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.bench import generate, models, peers, registry
from qkv.bench.result import Column, Report, Result, Table, kept, markdown, write
from qkv.cli.main import run

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
REPORT = Report(
    MACHINE, True, (Result("models", "What was measured.", (TABLE,), ("x-transformers",), ("A note.",), 1.5),)
)


def test_the_page_shows_the_figures_of_the_json_and_names_its_command(tmp_path: Path):
    data = write(REPORT, tmp_path / "benchmarks.md")
    plain = json.loads(data.read_text(encoding="utf-8"))
    assert Report.of(plain) == REPORT
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert page == markdown(Report.of(plain))
    assert "| qkv | 12.3 | 1,205,898 |" in page and "| x | – | 7 |" in page and "137.2 GFLOPS" in page
    assert "`qkv bench models --quick --report docs/benchmarks.md`" in page
    assert "Not installed, so not measured: x-transformers." in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmarks.json", "benchmarks.md"]


def test_a_benchmark_measured_apart_takes_its_place_and_says_so(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    write(REPORT, page)
    result = Result("studio", "The page.", (TABLE,))
    now = replace(REPORT, machine={**MACHINE, "peak_gigaflops": 99.0}, results=(result,))
    both = kept(page, now)
    assert [result.name for result in both.results] == ["models", "studio"]
    assert both.results[0] == REPORT.results[0] and both.machine == MACHINE
    write(both, page)
    assert Report.of(json.loads(page.with_suffix(".json").read_text("utf-8"))) == both
    text = page.read_text("utf-8")
    assert "Measured by `qkv bench models --quick --report" in text
    assert "Measured apart, by `qkv bench studio --quick --keep --report docs/benchmarks.md`; then" in text
    assert "99.0 GFLOPS" in text
    again = kept(page, replace(now, results=(Result("models", "Anew.", (TABLE,)),)))
    assert [result.about for result in again.results] == ["Anew.", "The page."]
    for wrong, words in (
        (replace(now, quick=False), "measured with --quick"),
        (replace(now, machine={**MACHINE, "torch": "3"}), "torch differ"),
    ):
        with pytest.raises(ValueError, match=words):
            kept(page, wrong)
    with pytest.raises(ValueError, match="adds to a report"):
        kept(tmp_path / "none.md", now)


def test_a_row_with_too_few_values_is_refused():
    with pytest.raises(ValueError, match="2 columns want as many values; got 1"):
        Table("t", (Column("a"), Column("b")), (("x",),))


def test_an_absent_peer_is_named_and_the_others_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    built, absent = peers.available(peers.GPTS)
    assert absent == ("transformers", "x-transformers")
    assert set(built) == {"qkv", "torch.nn.TransformerEncoder", "written afresh"}
    found = generate.run(True, lambda _: None)
    assert found.absent == ("transformers",) and found.tables == ()


def test_peers_are_of_our_size_and_give_logits_of_our_shape():
    for makers, x, shape in (
        (peers.VITS, torch.randn(2, 3, 32, 32), (2, peers.CLASSES)),
        (peers.GPTS, torch.randint(0, 256, (2, 128)), (2, 128, peers.VOCAB)),
    ):
        built, _ = peers.available(makers)
        ours = sum(parameter.numel() for parameter in built["qkv"].parameters())
        for name, model in built.items():
            assert model(x).shape == shape, name
            assert abs(sum(parameter.numel() for parameter in model.parameters()) / ours - 1) < 0.01, name


def test_the_work_of_a_pass_is_two_operations_for_each_weight_and_token_and_the_scores():
    from torch.utils.flop_counter import FlopCounterMode

    model = peers.Pictures(peers.fresh_encoder(128, 6, 4, causal=False))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(torch.randn(2, 3, 32, 32))
    assert abs(counter.get_total_flops() / models.vit_work(2) - 1) < 0.01


def test_bytes_read_in_a_step_leave_out_the_tables_that_are_looked_up():
    untied, tied = (
        peers.GPT(peers.GPTConfig(vocab_size=7, max_length=9, dim=8, layers=1, heads=2, tie_embeddings=tied))
        for tied in (False, True)
    )
    assert generate.read_bytes(untied) == 4 * (untied.num_parameters - 7 * 8 - 9 * 8)
    assert generate.read_bytes(tied) == 4 * (tied.num_parameters - 9 * 8)


def test_benchmarks_are_found_by_name_and_each_runs_once():
    assert registry.chosen([]) == list(registry.BENCHMARKS)
    assert registry.chosen(["load", "load"]) == ["load"]
    for home in registry.BENCHMARKS.values():
        assert callable(registry._find(home))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["atention"], "did you mean attention?"),
        (["zzz"], "there are attention, models, generate, load"),
        (["attention", "--report", "page.txt"], "markdown page"),
        (["attention", "--report", "no/such/folder/page.md"], "there is no folder"),
        (["attention", "--keep"], "goes with --report"),
        (["--rounds", "3"], "qkv bench --help"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert run(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_the_command_prints_json_and_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(registry, "run", lambda names, *, quick, note: REPORT)
    assert run(["bench", "models", "--json"]) == 0
    assert Report.of(json.loads(capsys.readouterr().out)) == REPORT


@pytest.mark.long
def test_memory_of_the_formula_grows_with_the_square_and_ours_does_not():
    from qkv.bench.peak import in_child

    grown = {
        name: [in_child(name, length) or 0 for length in (1024, 4096)] for name in ("qkv.attention", "the formula")
    }
    assert grown["the formula"][1] > 8 * grown["the formula"][0]
    assert grown["the formula"][1] > 20 * grown["qkv.attention"][1]
