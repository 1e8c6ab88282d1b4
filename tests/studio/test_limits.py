"""Requests are size-limited, slow clients delay nobody, and errors are sentences."""

import http.client
import json
import logging
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from raw_requests import log_in, new_session, send

from qkv.studio import server as studio_server
from qkv.studio.jobs import MAX_EVENTS, MAX_RUNNING, Jobs
from qkv.studio.responses import get_route, post_route
from qkv.studio.server import OpenServer, Studio, open_server


@pytest.fixture(scope="module")
def small(serving_routes) -> OpenServer:
    """A server whose requests have at most 1,000 bytes, with a room that is slow, one that fails, one that repeats."""
    return serving_routes(
        [
            post_route("/api/echo", lambda said: said),
            get_route("/api/slow", lambda request: time.sleep(1.5)),
            get_route("/api/full", lambda request: _full()),
        ],
        max_body=1000,
    )


def _full() -> None:
    raise OSError(28, "No space left on device", "report.html")


def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(small):
    session = new_session(small)
    fits, large = json.dumps({"a": "b" * 900}).encode(), b'{"a": "' + b"b" * 200_000 + b'"}'
    assert send(small, "/api/echo", "POST", body=fits, session=session, Origin=small.address).status == 200
    told = send(small, "/api/echo", "POST", body=large, session=session, Origin=small.address)
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (large[:400], large[400:900], large[900:]))
    untold = send(
        small, "/api/echo", "POST", body=chunked + b"0\r\n\r\n", session=session, Origin=small.address,
        **{"Transfer-Encoding": "chunked"},
    )  # fmt: skip
    for answer in (told, untold):
        assert answer.status == 413
        assert json.loads(answer.text)["error"] == "a request body may have at most 1,000 bytes"
        assert answer.headers["content-security-policy"]
    assert send(small, "/api/echo", "POST", body=fits, session=session, Origin=small.address).status == 200


def test_before_login_only_small_bodies_are_read(place):
    assert log_in(place, "x" * 5000).status == 413
    assert send(place, "/api/about", "POST", body=b"x" * 100_000, Origin=place.address).status == 401


def test_a_body_that_never_comes_prints_nothing(place, small, monkeypatch):
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handle", logged.append)
    login = "POST /login HTTP/1.1\r\nOrigin: null"
    echo = f"POST /api/echo HTTP/1.1\r\nOrigin: {small.address}\r\nCookie: {cookie(small)}"
    for server, head in ((place, login), (small, echo)):
        host = server.address.removeprefix("http://")
        with socket.create_connection(("127.0.0.1", int(host.partition(":")[2]))) as connection:
            connection.sendall(f"{head}\r\nHost: {host}\r\nContent-Length: 400\r\n\r\nx".encode())
            time.sleep(0.5)
        time.sleep(1)
        assert send(server, "/api/about", session=new_session(server)).status == 200
    assert logged == []


def cookie(server: OpenServer) -> str:
    return f"qkv-{server.address.rpartition(':')[2]}={new_session(server)}"


def test_a_body_that_is_not_json_is_refused_with_a_sentence(small):
    session = new_session(small)
    for body in (b"{", b"[1]", b"\xff", b"[" * 999):
        answer = send(small, "/api/echo", "POST", body=body, session=session, Origin=small.address)
        assert (answer.status, "JSON" in json.loads(answer.text)["error"]) == (400, True)


def test_a_deeply_nested_body_is_refused_with_a_sentence(place):
    answer = send(
        place, "/api/playground/numbers", "POST", body=b"[" * 200_000, session=new_session(place), Origin=place.address
    )
    assert (answer.status, json.loads(answer.text)) == (400, {"error": "the request body is not JSON"})


def test_a_full_disk_is_reported_with_a_sentence(small):
    answer = send(small, "/api/full", session=new_session(small))
    assert (answer.status, json.loads(answer.text)) == (500, {"error": "report.html: No space left on device"})


def test_slow_and_idle_clients_do_not_block_others(small):
    session, host = new_session(small), small.address.removeprefix("http://").split(":")
    waiting = [socket.create_connection(host) for _ in range(40)]
    try:
        for index, raw in enumerate(waiting):
            raw.sendall(b"" if index % 2 else b"POST /enter HTTP/1.1\r\nContent-Length: 10\r\nHos")
        slow = [threading.Thread(target=send, args=(small, "/api/slow"), kwargs={"session": session}) for _ in range(4)]
        for thread in slow:
            thread.start()
        assert send(small, "/api/about", session=session).status == 200
        assert any(thread.is_alive() for thread in slow)  # it was answered while they waited
        for thread in slow:
            thread.join()
    finally:
        for raw in waiting:
            raw.close()


def test_an_event_stream_resumes_after_the_last_event_and_ends_with_the_server(serving_routes):
    studio = Studio(runs=Path("no-runs"))
    place = serving_routes([], studio=studio)
    go = threading.Event()

    def work(job: Any) -> None:
        job.report(part=1)
        go.wait(20)
        while not job.server_stopped.is_set():
            time.sleep(0.01)

    job, session = studio.jobs.start("test", work), new_session(place)
    assert send(place, f"/api/jobs/{job.id}/events", "HEAD", session=session).text == ""
    connection = http.client.HTTPConnection(place.address.removeprefix("http://"), timeout=20)
    cookie = {"Cookie": f"qkv-{place.address.rpartition(':')[2]}={session}", "Last-Event-ID": "1"}
    connection.request("GET", f"/api/jobs/{job.id}/events", headers=cookie)
    answer = connection.getresponse()
    assert answer.readline() + answer.readline() == b'id: 2\ndata: {"part": 1}\n'
    place.stop()
    assert answer.read() == b"\n"  # the stream ends, whole
    connection.close()
    go.set()


def test_a_long_request_does_not_delay_the_shutdown(monkeypatch):
    begun, go = threading.Event(), threading.Event()
    routes = [get_route("/api/long", lambda request: begun.set() or go.wait(60))]
    monkeypatch.setattr(studio_server, "page_apis", lambda: [lambda studio: routes])
    with open_server(Studio(runs=Path("no-runs"))) as place:
        server = threading.Thread(target=place.run, daemon=True)
        server.start()
        session = new_session(place)

        def ask() -> None:
            with suppress(OSError, http.client.HTTPException):
                send(place, "/api/long", session=session)

        client = threading.Thread(target=ask)
        client.start()
        assert begun.wait(20)
        place.stop()
        server.join(30)
        assert not server.is_alive() and not go.is_set()
        go.set()
        client.join()


def test_a_job_remembers_a_limited_number_of_events():
    jobs, more = Jobs(), MAX_EVENTS + 100
    job = jobs.start("talk", lambda job: [job.report(number=number) for number in range(more)] and None)
    while job.state == "running":
        time.sleep(0.01)
    place, events = job.events_after(0)
    assert len(job.events) <= MAX_EVENTS and place == more + 2
    assert events[-1] == {"state": "done", "error": ""} and events[-2] == {"number": more - 1}


def test_a_waiting_job_is_cancelled_at_once():
    jobs, go = Jobs(), threading.Event()
    first = jobs.start("a", lambda job: go.wait(20), lane="heavy")
    second = jobs.start("b", lambda job: 1, lane="heavy")
    while not second.events:
        time.sleep(0.01)
    assert second.events == [{"state": "waiting"}]
    second.cancel.set()
    while second.state == "running":
        time.sleep(0.01)
    assert (first.state, second.state) == ("running", "cancelled")
    go.set()


def test_the_number_of_running_jobs_is_limited():
    jobs, go = Jobs(), threading.Event()
    for _ in range(MAX_RUNNING):
        jobs.start("a", lambda job: go.wait(20))
    with pytest.raises(ValueError, match="wait for one"):
        jobs.start("a", lambda job: go.wait(20))
    jobs.stop()
    go.set()
