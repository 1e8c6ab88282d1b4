"""qkv._workers: whatever a task does, the caller gets messages or one sentence, and the next request works."""

import threading

import pytest

from qkv._workers import CancelledError, Worker, WorkerDiedError, WorkerError, WorkerTimeoutError, _run_task


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker whose task executes the code of its request."""
    (tmp_path / "tiny_task.py").write_text("def run(request, send): exec(request['code'])\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Worker("tiny_task:run", env={"TINY": "yes"})
    yield found
    found.close()


def test_worker_reports_a_task_that_dies_hangs_or_sends_too_much_in_one_sentence(worker):
    for code, kind, words in (
        ("import sys; sys.exit(3)", WorkerError, r"sys\.exit\(3\)"),
        ("print('spam ' * 10**6); raise KeyError('gone')", WorkerError, "KeyError: 'gone'"),
        ("while True: pass", WorkerTimeoutError, "stopped after 0.5 seconds"),
        ("send(large='x' * (20 << 20))", WorkerError, "larger than 16 MB"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", WorkerDiedError, "signal 11 \\(SIGSEGV"),
        ("import os; print('last words', flush=True); os._exit(4)", WorkerDiedError, "exit code 4"),
    ):
        with pytest.raises(kind, match=words) as problem:
            list(worker.request({"code": code}, time_limit=0.5 if "while" in code else 60.0))
        if isinstance(problem.value, WorkerDiedError):
            assert problem.value.exit_code in (-11, 4)
    assert worker.printed == "last words"


def test_worker_request_can_be_cancelled_and_the_next_one_starts_a_new_process(worker):
    with pytest.raises(CancelledError):
        list(worker.request({"code": "while True: pass"}, cancelled=lambda: True))
    code = "import os; send(env=os.environ['TINY'])"
    assert list(worker.request({"code": code})) == [{"started": True}, {"env": "yes"}]
    worker.close()
    with pytest.raises(CancelledError):
        worker.start()


def test_worker_limits_the_memory_of_its_process(tmp_path, monkeypatch):
    (tmp_path / "tiny_task.py").write_text("def run(request, send): bytearray(2 << 30)\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = Worker("tiny_task:run", memory_limit=1 << 30)
    try:
        with pytest.raises(WorkerError, match="MemoryError"):
            list(worker.request({}))
    finally:
        worker.close()


def test_run_task_turns_every_exception_into_a_sentence():
    def task(request, send):
        raise request["problem"]

    for problem, words in (
        (ValueError("a sentence"), "a sentence"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RecursionError("too\ndeep"), "RecursionError: too deep"),
        (SystemExit("bye"), "the code asked to end its process: sys.exit('bye')"),
    ):
        assert _run_task(task, {"problem": problem}, None) == {"error": words}


def test_a_paused_worker_does_not_answer_until_it_is_resumed(worker):
    assert list(worker.request({"code": "send(first=1)"})) == [{"started": True}, {"first": 1}]
    worker.pause()
    answers = worker.request({"code": "send(second=2)"})
    received = []
    reader = threading.Thread(target=lambda: received.extend(answers), daemon=True)
    reader.start()
    reader.join(0.5)
    assert received == []
    worker.resume()
    reader.join(60)
    assert received == [{"started": True}, {"second": 2}]
