"""`qkv check hf:all`: parallel, resumable, and not stopped by an architecture that hangs or dies."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from qkv.check import sweep as sweep_module
from qkv.check.calling.hugging_face import architectures, family_contract
from qkv.check.sweep import SweepRow, installed_versions, sweep
from qkv.cli.main import run as command

pytestmark = pytest.mark.long  # minutes in all

SAMPLE = {"GPT2LMHeadModel": "causal", "BertForMaskedLM": "masked", "NoSuchModel": "causal"}


def test_sweep_keeps_results_and_resumes(tmp_path):
    heard = []
    first = sweep(SAMPLE, tmp_path, on_result=lambda row, done, count: heard.append((row.name, done, count)))
    outcomes = {row.name: row.outcome for row in first.rows}
    assert outcomes == {"GPT2LMHeadModel": "sound", "BertForMaskedLM": "sound", "NoSuchModel": "not built"}
    assert sorted(done for _, done, _ in heard) == [1, 2, 3]
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:20])  # cut off in the middle of a line
    again = []
    second = sweep(SAMPLE, tmp_path, num_workers=1, on_result=lambda row, done, count: again.append(row.name))
    assert again == [json.loads(lines[3])["name"]]
    assert {row.name: row.outcome for row in second.rows} == outcomes
    assert sweep(SAMPLE, tmp_path, on_result=lambda *_: pytest.fail("nothing is left to do")) == second


TASK = """
import os, time

def check(request, send):
    name, family = request
    if name == "Hangs":
        time.sleep(60)
    if name == "Dies":
        os._exit(9)
    if name == "Raises":
        raise RuntimeError("no")
    send(row={"name": name, "family": family, "outcome": "sound"})
"""


def test_sweep_loses_one_result_to_a_worker_that_hangs_or_dies(tmp_path, monkeypatch):
    (tmp_path / "sweep_task_for_tests.py").write_text(TASK)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")])
    monkeypatch.setattr(sweep_module, "TASK", "sweep_task_for_tests:check")
    monkeypatch.setattr(sweep_module, "ENVIRONMENT", {"PYTHONPATH": paths})
    names = dict.fromkeys(("A", "Hangs", "B", "Dies", "Raises", "C"), "causal")
    found = sweep(names, tmp_path / "results", time_limit=3.0)
    outcomes = {row.name: (row.outcome, row.reason) for row in found.rows}
    assert outcomes == {
        "A": ("sound", ""),
        "B": ("sound", ""),
        "C": ("sound", ""),
        "Hangs": ("too slow", "no answer within 3 s"),
        "Dies": ("died", "its process ended with exit code 9"),
        "Raises": ("died", "RuntimeError: no"),
    }
    assert found.ok


def test_check_all_counts_outcomes_and_exits_with_1_for_an_alarm(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "qkv.check.calling.hugging_face.architectures", lambda: {"GPT2LMHeadModel": "causal", "Other": "masked"}
    )
    versions = installed_versions()
    file = tmp_path / f"transformers-{versions['transformers']}.jsonl"
    leak = {"fail": ["causal: output 1 changes"]}
    rows = [
        SweepRow("GPT2LMHeadModel", "causal", "alarm", kind="bidirectional", findings=leak),
        SweepRow("Other", "masked", "not called", reason="tried this and that"),
    ]
    file.write_text("\n".join(json.dumps(part) for part in (versions, *map(asdict, rows))) + "\n")
    assert command(["check", "hf:all", "--results", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "causal: output 1 changes" in shown
    assert "1 alarm" in shown and "1 not called" in shown
    assert command(["check", "hf:all", "--results", str(tmp_path), "--family", "masked", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["Other"]
    assert command(["check", "hf:all", "--results", str(tmp_path), "--family", "nonsense"]) == 2


def test_family_contract_promises_what_the_design_does():
    known = architectures()
    assert len(known) > 300
    assert family_contract("hf:LlamaForCausalLM").kind == "causal"
    assert family_contract("hf:BertForMaskedLM").kind is None
    assert family_contract("hf:CpmAntForCausalLM").padding is False
    assert family_contract("hf:T5ForConditionalGeneration").kind == "causal"


CANARIES = Path(os.environ.get("QKV_CANARIES", Path(__file__).parents[3] / "env517")) / "bin" / "python"


@pytest.mark.long
@pytest.mark.skipif(
    not CANARIES.exists() and not shutil.which(str(CANARIES)), reason="transformers 5.17.0 is not installed"
)
@pytest.mark.parametrize("name", ["RoFormerForCausalLM", "DogeForCausalLM"])
def test_check_catches_the_leaks_of_transformers_5_17(name):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    line = [str(CANARIES), "-m", "qkv", "check", f"hf:{name}", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=300)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["contract"]["kind"] == "causal"
    failed = {finding["check"] for finding in report["findings"] if finding["verdict"] == "fail"}
    assert "causal" in failed
