"""`qkv check hf:all`: parallel, resumable, and not stopped by an architecture that hangs or dies."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from qkv.check import sweep as sweeping
from qkv.check.hugging_face import architectures, contract_of
from qkv.check.sweep import Row, sweep
from qkv.cli.main import run as command

SAMPLE = {"GPT2LMHeadModel": "causal", "BertForMaskedLM": "masked", "NoSuchModel": "causal"}


def test_results_are_kept_and_a_stopped_sweep_goes_on(tmp_path):
    heard = []
    first = sweep(SAMPLE, tmp_path, told=lambda row, done, of: heard.append((row.name, done, of)))
    outcomes = {row.name: row.outcome for row in first.rows}
    assert outcomes == {"GPT2LMHeadModel": "sound", "BertForMaskedLM": "sound", "NoSuchModel": "not built"}
    assert sorted(done for _, done, _ in heard) == [1, 2, 3]
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:20])  # cut off in the middle of a line
    again = []
    second = sweep(SAMPLE, tmp_path, workers=1, told=lambda row, done, of: again.append(row.name))
    assert again == [json.loads(lines[3])["name"]]
    assert {row.name: row.outcome for row in second.rows} == outcomes
    assert sweep(SAMPLE, tmp_path, told=lambda *_: pytest.fail("nothing is left to do")) == second


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    name, family = json.loads(line)
    if name == "Hangs":
        time.sleep(60)
    if name == "Dies":
        os._exit(9)
    print(json.dumps({"name": name, "family": family, "outcome": "sound"}), flush=True)
"""


def test_what_hangs_or_dies_costs_one_result(tmp_path, monkeypatch):
    def started():
        import sys

        return subprocess.Popen([sys.executable, "-c", WORKER], stdin=-1, stdout=-1, text=True, start_new_session=True)

    monkeypatch.setattr(sweeping, "_started", started)
    found = sweep(dict.fromkeys(("A", "Hangs", "B", "Dies", "C"), "causal"), tmp_path, seconds=3.0)
    outcomes = {row.name: row.outcome for row in found.rows}
    assert outcomes == {"A": "sound", "B": "sound", "C": "sound", "Hangs": "too slow", "Dies": "died"}
    assert found.ok


def test_the_table_counts_and_alarms_give_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "qkv.check.hugging_face.architectures", lambda: {"GPT2LMHeadModel": "causal", "Other": "masked"}
    )
    file = tmp_path / f"transformers-{sweeping._versions()['transformers']}.jsonl"
    rows = [
        Row(
            "GPT2LMHeadModel", "causal", "alarm", kind="bidirectional", findings={"fail": ["causal: changing token 3"]}
        ),
        Row("Other", "masked", "not called", said="tried this and that"),
    ]
    file.write_text("\n".join(json.dumps(part) for part in (sweeping._versions(), *map(vars, rows))) + "\n")
    assert command(["check", "hf:all", "--results", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "causal: changing token 3" in shown
    assert "1 alarm" in shown and "1 not called" in shown
    assert command(["check", "hf:all", "--results", str(tmp_path), "--family", "masked", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["Other"]
    assert command(["check", "hf:all", "--results", str(tmp_path), "--family", "nonsense"]) == 2


def test_families_promise_what_their_design_does():
    known = architectures()
    assert len(known) > 300
    assert contract_of("hf:LlamaForCausalLM").kind == "causal"
    assert contract_of("hf:BertForMaskedLM").kind is None
    assert contract_of("hf:CpmAntForCausalLM").padding is False
    assert contract_of("hf:T5ForConditionalGeneration").kind == "causal"


CANARIES = Path(os.environ.get("QKV_CANARIES", Path(__file__).parents[3] / "env517")) / "bin" / "python"


@pytest.mark.long
@pytest.mark.skipif(
    not CANARIES.exists() and not shutil.which(str(CANARIES)), reason="transformers 5.17.0 is not there"
)
@pytest.mark.parametrize("name", ["RoFormerForCausalLM", "DogeForCausalLM"])
def test_the_leaks_of_transformers_5_17_are_caught_by_name(name):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    line = [str(CANARIES), "-m", "qkv", "check", f"hf:{name}", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["contract"]["kind"] == "causal"
    failed = {finding["check"] for finding in report["findings"] if finding["verdict"] == "fail"}
    assert "causal" in failed
