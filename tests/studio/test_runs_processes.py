"""Runs that the page begins are processes of their own: they stop, go on to the same bits, and say why they cannot."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from qkv.studio.api.runs import Room
from qkv.studio.state import Studio
from qkv.studio.training import HOLDER, LOG, Training
from qkv.training.recipes import open_run, train

STEPS = 200


def _until(true: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)


def test_a_run_that_cannot_begin_says_why_and_leaves_no_folder(tmp_path):
    training = Training(tmp_path)
    training.start({"recipe": "gpt-text", "data": str(tmp_path / "none.txt"), "steps": 5})
    _until(lambda: not training.beginning())
    assert "none.txt" in training.problem and "Traceback" not in training.problem
    assert list(tmp_path.iterdir()) == []


def test_a_run_begun_stopped_and_gone_on_with_has_the_bits_of_one_never_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as here, so that sums are added in one order
    room = Room(Studio(runs=tmp_path / "runs"))
    begun = room.training.start({"recipe": "vit-digits", "model": "mlp", "steps": STEPS, "seed": 5})
    name, place = begun["id"], tmp_path / "runs" / begun["id"]
    assert begun["command"] == f"qkv train vit-digits --model=mlp --seed=5 --steps={STEPS} --folder {place}"
    assert oct((place / LOG).stat().st_mode & 0o777) == "0o600"
    try:
        _until(lambda: (place / "metrics.jsonl").is_file() and room.described(place)["step"] > 0)
        trained = json.loads((place / HOLDER).read_text())["pid"]
        assert os.getsid(trained) != os.getsid(0)  # Ctrl-C in the server's terminal does not reach it
        assert room.described(place)["state"] == "running"
        room.stop({"run": name})
        _until(lambda: room.described(place)["state"] != "running")
        stopped = room.described(place)
        assert stopped["state"] == "stopped" and 0 < stopped["step"] < STEPS
        room.resume({"run": name})
        _until(lambda: room.described(place)["state"] == "finished")
        _until(lambda: room.training.settle() is None and not (place / HOLDER).exists())
    finally:
        for process in room.training._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
    whole = train("vit-digits", model="mlp", seed=5, steps=STEPS, folder=tmp_path / "whole")
    file = Path("model/model.safetensors")
    assert (place / file).read_bytes() == (whole.folder / file).read_bytes()
    assert open_run(place).result == whole.result
