"""Runs that the page starts are processes: they stop, resume bit-exactly, and say why they cannot start."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from qkv.studio.api.runs import RunsApi
from qkv.studio.run_processes import LOG_FILE, PROCESS_FILE, RunProcesses
from qkv.studio.server import Studio
from qkv.training import open_run, run_recipe

STEPS = 200


def _wait_until(condition: Any, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)


def test_a_run_that_cannot_start_says_why_and_leaves_no_folder(tmp_path):
    processes = RunProcesses(tmp_path)
    processes.start({"recipe": "gpt-text", "data": str(tmp_path / "none.txt"), "steps": 5})
    _wait_until(lambda: not processes.starting())
    assert "none.txt" in processes.problem and "Traceback" not in processes.problem
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as here, so that sums are added in one order
    api = RunsApi(Studio(runs=tmp_path / "runs"))
    begun = api.processes.start({"recipe": "vit-digits", "model": "mlp", "steps": STEPS, "seed": 5})
    name, place = begun["id"], tmp_path / "runs" / begun["id"]
    assert begun["command"] == f"qkv train vit-digits --model=mlp --seed=5 --steps={STEPS} --folder {place}"
    assert oct((place / LOG_FILE).stat().st_mode & 0o777) == "0o600"
    try:
        _wait_until(lambda: (place / "metrics.jsonl").is_file() and api.summary(place)["step"] > 0)
        trained = json.loads((place / PROCESS_FILE).read_text())["pid"]
        assert os.getsid(trained) != os.getsid(0)  # Ctrl-C in the server's terminal does not reach it
        assert api.summary(place)["state"] == "running"
        api.stop({"run": name})
        _wait_until(lambda: api.summary(place)["state"] != "running")
        stopped = api.summary(place)
        assert stopped["state"] == "stopped" and 0 < stopped["step"] < STEPS
        api.resume({"run": name})
        _wait_until(lambda: api.summary(place)["state"] == "finished")
        _wait_until(lambda: api.processes.collect_ended() is None and not (place / PROCESS_FILE).exists())
    finally:
        for process in api.processes._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
    whole = run_recipe("vit-digits", model="mlp", seed=5, steps=STEPS, folder=tmp_path / "whole")
    file = Path("model/model.safetensors")
    assert (place / file).read_bytes() == (whole.folder / file).read_bytes()
    assert open_run(place).result == whole.result
