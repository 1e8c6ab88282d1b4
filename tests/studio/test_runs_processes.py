"""Runs that the page starts are processes: they stop, resume bit-exactly, and say why they cannot start."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from qkv.studio.api.runs import RunsApi
from qkv.studio.responses import get_route, post_route
from qkv.studio.run_processes import LOG_FILE, PROCESS_FILE, RunProcesses
from qkv.studio.server import Studio
from qkv.training import open_run, run_recipe
from qkv.training.lock import describe_process
from qkv.training.recipes import get_recipe
from qkv.training.runs import create_run

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


def test_a_run_imports_no_module_of_the_current_folder(tmp_path, monkeypatch):
    trap = f"open({str(tmp_path / 'executed')!r}, 'w').close()\nraise SystemExit(3)\n"
    for name in ("qkv", "tomllib", "torch"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    processes = RunProcesses(tmp_path / "runs")
    started = processes.start({"recipe": "gpt-text", "data": str(tmp_path / "none.txt"), "steps": 5})
    processes._processes[started["id"]].wait(300)
    _make_run(tmp_path / "runs" / "mine")
    processes.resume(tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "recipe.toml").write_text("recipe = 1")  # so that it ends
    processes._processes["mine"].wait(300)
    assert not (tmp_path / "executed").exists()


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
        assert api.summary(place)["state"] == "training"
        api.stop({"run": name})
        _wait_until(lambda: api.summary(place)["state"] != "training")
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


def _make_run(folder: Path) -> Path:
    task = get_recipe("vit-digits").build(get_recipe("vit-digits").resolve(model="mlp"))
    create_run(folder, task)
    return folder


BAD_LOCKS = {
    "group": {"pid": -1},
    "own group": {"pid": 0},
    "init": {"pid": 1},
    "bool": {"pid": True},
    "text": {"pid": "2"},
    "float": {"pid": 2.5},
    "huge": {"pid": 10**30},
    "none": {},
}


@pytest.mark.parametrize("lock", BAD_LOCKS.values(), ids=BAD_LOCKS)
def test_stop_signals_no_process_that_a_forged_lock_names(lock, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)) if number else None)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *given: sent.append(given))
    forged = {**lock, "host": socket.gethostname(), "began": describe_process(1)["began"]}
    with pytest.raises(ValueError):
        RunProcesses(tmp_path).stop(tmp_path, forged)
    assert sent == []


HOLD_LOCK = """
import sys, time
from pathlib import Path
from qkv.training.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def _lock_in_process(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-P", "-c", HOLD_LOCK, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"locked\n"
    return process


def test_stop_signals_only_the_process_that_holds_the_lock_of_this_folder(tmp_path):
    api = RunsApi(Studio(runs=tmp_path))
    original = _make_run(tmp_path / "original")
    with _lock_in_process(original) as trainer:
        try:
            shutil.copytree(original, tmp_path / "copy")
            os.link(original / "lock", _make_run(tmp_path / "forged") / "lock.txt")
            states = {run["id"]: run["state"] for run in api.list()["runs"]}
            os.unlink(tmp_path / "forged" / "lock.txt")
            assert states["copy"] == "unfinished"
            with pytest.raises(ValueError, match="copy is not running"):
                api.stop({"run": "copy"})
            named = json.dumps(describe_process(trainer.pid))
            for file in ("lock", PROCESS_FILE):
                (tmp_path / "forged" / file).write_text(named)
                with pytest.raises(ValueError, match="not running"):
                    api.stop({"run": "forged"})
            with (
                (tmp_path / "forged" / "lock").open("rb") as reader,  # to read it is not to hold it
                subprocess.Popen(["sleep", "60"], stdin=reader) as sleeper,
            ):
                try:
                    (tmp_path / "forged" / "lock").write_text(json.dumps(describe_process(sleeper.pid)))
                    with pytest.raises(ValueError, match="not running"):
                        api.stop({"run": "forged"})
                    with pytest.raises(ValueError, match="does not hold the lock"):
                        api.processes.stop(tmp_path / "forged", describe_process(sleeper.pid))
                    assert sleeper.poll() is None
                finally:
                    sleeper.kill()
            assert trainer.poll() is None
            assert api.summary(original)["state"] == "training"
            api.stop({"run": "original"})
            assert trainer.wait(60) == -signal.SIGTERM
        finally:
            trainer.kill()


def test_stop_checks_start_time_and_owner_of_a_process(tmp_path, monkeypatch):
    with _lock_in_process(tmp_path) as sleeper:
        try:
            real = describe_process(sleeper.pid)
            processes = RunProcesses(tmp_path)
            with pytest.raises(ValueError, match="not running"):
                processes.stop(tmp_path, {**real, "began": "another start"})
            with monkeypatch.context() as patch:
                patch.setattr(os, "geteuid", lambda: 12345)
                with pytest.raises(ValueError, match="of another user"):
                    processes.stop(tmp_path, real)
            assert sleeper.poll() is None
            processes.stop(tmp_path, real)
            assert sleeper.wait(20) == -signal.SIGTERM
        finally:
            sleeper.kill()


def test_one_damaged_run_folder_never_breaks_the_list_of_runs(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    _make_run(tmp_path / "good")
    damages = {
        "recipe.toml": f"a = {'[' * 5000}{']' * 5000}",
        "run.json": deep,
        "lock": deep,
        PROCESS_FILE: deep,
        "metrics.jsonl": deep + "\n",
    }
    for number, (file, content) in enumerate(damages.items()):
        (_make_run(tmp_path / f"deep-{number}") / file).write_text(content)
        piped = _make_run(tmp_path / f"pipe-{number}") / file
        piped.unlink(missing_ok=True)
        os.mkfifo(piped)
    os.mkfifo(_make_run(tmp_path / "pipe-log") / LOG_FILE)
    for number, pid in enumerate((10**30, -1, True, "x")):
        holder = json.dumps({"pid": pid, "host": socket.gethostname(), "began": ""})
        for file in ("lock", PROCESS_FILE):
            (_make_run(tmp_path / f"pid-{number}-{file.strip('.')}") / file).write_text(holder)
    broken = _make_run(tmp_path / "link") / "recipe.toml"
    broken.unlink()
    broken.symlink_to("none")
    _make_run(tmp_path / "name\udcff")
    found: list[Any] = []
    route = get_route("/", lambda request: RunsApi(Studio(runs=tmp_path)).list())
    reader = threading.Thread(target=lambda: found.append(TestClient(Starlette(routes=[route])).get("/")), daemon=True)
    reader.start()
    reader.join(60)
    assert found, "the list never came"
    assert found[0].status_code == 200
    states = {run["id"]: run["state"] for run in found[0].json()["runs"]}
    assert states["good"] == "unfinished" and "name\\udcff" in states
    assert {states["deep-0"], states["deep-1"]} == {"unreadable"}


def test_a_huge_sparse_file_is_refused_before_it_is_read(tmp_path):
    _make_run(tmp_path / "good")
    for file in ("run.json", "recipe.toml"):
        os.truncate(_make_run(tmp_path / file.partition(".")[0]) / file, 2**40)
    (tmp_path / "good" / "report.html").touch()
    os.truncate(tmp_path / "good" / "report.html", 2**40)
    (tmp_path / "good" / "samples.json").touch()
    os.truncate(tmp_path / "good" / "samples.json", 2**40)
    api = RunsApi(Studio(runs=tmp_path))
    runs = {run["id"]: run for run in api.list()["runs"]}
    assert runs["good"]["state"] == "unfinished"
    for name in ("run", "recipe"):
        assert runs[name]["state"] == "unreadable" and "bytes; such a file has at most" in runs[name]["problem"]
    client = _client(api)
    assert client.get("/report/good").status_code == 400
    assert client.get("/samples/good").json()["samples"] == []


def _client(api: RunsApi) -> TestClient:
    routes = [
        get_route("/report/{run}", api.report),
        get_route("/samples/{run}", api.samples),
        get_route("/run/{run}", api.details),
        post_route("/stop", api.stop),
    ]
    return TestClient(Starlette(routes=routes), raise_server_exceptions=False)


def test_links_in_a_run_folder_are_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('[{"secret": "secret"}]')
    files = ("report.html", "samples.json", "metrics.jsonl", "run.json", "recipe.toml", LOG_FILE)
    for file in files:
        place = _make_run(tmp_path / "runs" / file.strip("."))
        (place / file).unlink(missing_ok=True)
        (place / file).symlink_to(secret)
    api = RunsApi(Studio(runs=tmp_path / "runs"))
    client, runs = _client(api), {run["id"]: run for run in api.list()["runs"]}
    assert client.get("/report/report.html").status_code == 404
    refused = client.get("/samples/samples.json")
    assert refused.status_code == 400 and "is a symbolic link" in refused.json()["error"]
    for file in ("metrics.jsonl", "run.json", "recipe.toml"):
        assert "is a symbolic link" in runs[file]["problem"]
    for file in files:
        assert "[{" not in client.get(f"/run/{file.strip('.')}").text.replace("stages", "")
    log = tmp_path / "runs" / LOG_FILE.strip(".")
    api.processes.resume(log)
    api.processes._processes[log.name].kill()
    api.processes._processes[log.name].wait()
    assert secret.read_text() == '[{"secret": "secret"}]' and not (log / LOG_FILE).is_symlink()


def test_a_name_that_is_not_utf8_is_escaped(tmp_path):
    _make_run(tmp_path / "bad\udcff")
    client = _client(RunsApi(Studio(runs=tmp_path)))
    assert client.get("/run/bad%5Cudcff").json()["id"] == "bad\\udcff"
    answer = client.post("/stop", json={"run": "bad\\udcff"})
    assert answer.status_code == 400 and "is not running" in answer.json()["error"]
    for name in ("\\udcff", "\\uD800"):
        answer = client.post("/stop", content=b'{"run": "%s"}' % name.encode())
        assert answer.status_code == 400 and "surrogate" in answer.json()["error"]
