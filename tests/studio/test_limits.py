"""What comes is bounded, what is slow holds nobody up, and what goes wrong is a sentence."""

import http.client
import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from by_hand import enter, let_in, said

from qkv.studio import app as studio_app
from qkv.studio.answers import asking, reading
from qkv.studio.jobs import EVENTS, RUNNING, Jobs
from qkv.studio.serve import Open, opened
from qkv.studio.state import Studio


@pytest.fixture(scope="module")
def small(serving_rooms) -> Open:
    """A server whose requests have at most 1,000 bytes, with a room that is slow, one that fails, one that repeats."""
    return serving_rooms(
        [
            asking("/api/echo", lambda said: said),
            reading("/api/slow", lambda request: time.sleep(1.5)),
            reading("/api/full", lambda request: _full()),
        ],
        largest=1000,
    )


def _full() -> None:
    raise OSError(28, "No space left on device", "report.html")


def test_a_body_that_is_too_large_is_refused_however_it_comes(small):
    session = let_in(small)
    fits, large = json.dumps({"a": "b" * 900}).encode(), b'{"a": "' + b"b" * 200_000 + b'"}'
    assert said(small, "/api/echo", "POST", body=fits, session=session, Origin=small.address).status == 200
    told = said(small, "/api/echo", "POST", body=large, session=session, Origin=small.address)
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (large[:400], large[400:900], large[900:]))
    untold = said(
        small, "/api/echo", "POST", body=chunked + b"0\r\n\r\n", session=session, Origin=small.address,
        **{"Transfer-Encoding": "chunked"},
    )  # fmt: skip
    for answer in (told, untold):
        assert answer.status == 413
        assert json.loads(answer.text)["error"] == "a request is at most 1,000 bytes"
        assert answer.headers["content-security-policy"]
    assert said(small, "/api/echo", "POST", body=fits, session=session, Origin=small.address).status == 200


def test_who_is_not_in_yet_can_send_little(place):
    assert enter(place, "x" * 5000).status == 413
    assert said(place, "/api/about", "POST", body=b"x" * 100_000, Origin=place.address).status == 401


def test_a_body_that_is_no_json_is_a_sentence(small):
    session = let_in(small)
    for body in (b"{", b"[1]", b"\xff"):
        answer = said(small, "/api/echo", "POST", body=body, session=session, Origin=small.address)
        assert (answer.status, "JSON" in json.loads(answer.text)["error"]) == (400, True)


def test_a_full_disk_is_a_sentence(small):
    answer = said(small, "/api/full", session=let_in(small))
    assert (answer.status, json.loads(answer.text)) == (500, {"error": "report.html: No space left on device"})


def test_slow_and_idle_clients_hold_nobody_up(small):
    session, host = let_in(small), small.address.removeprefix("http://").split(":")
    waiting = [socket.create_connection(host) for _ in range(40)]
    try:
        for index, raw in enumerate(waiting):
            raw.sendall(b"" if index % 2 else b"POST /enter HTTP/1.1\r\nContent-Length: 10\r\nHos")
        slow = [threading.Thread(target=said, args=(small, "/api/slow"), kwargs={"session": session}) for _ in range(4)]
        for thread in slow:
            thread.start()
        assert said(small, "/api/about", session=session).status == 200
        assert any(thread.is_alive() for thread in slow)  # it was answered while they waited
        for thread in slow:
            thread.join()
    finally:
        for raw in waiting:
            raw.close()


def test_a_stream_goes_on_where_it_was_left_and_a_stopping_server_ends_it(serving_rooms):
    studio = Studio(runs=Path("no-runs"))
    place = serving_rooms([], studio=studio)
    go = threading.Event()

    def work(job: Any) -> None:
        job.say(part=1)
        go.wait(20)
        while not job.left.is_set():
            time.sleep(0.01)

    job, session = studio.jobs.start("test", work), let_in(place)
    assert said(place, f"/api/jobs/{job.id}/events", "HEAD", session=session).text == ""
    connection = http.client.HTTPConnection(place.address.removeprefix("http://"), timeout=20)
    cookie = {"Cookie": f"qkv-{place.address.rpartition(':')[2]}={session}", "Last-Event-ID": "1"}
    connection.request("GET", f"/api/jobs/{job.id}/events", headers=cookie)
    answer = connection.getresponse()
    assert answer.readline() + answer.readline() == b'id: 2\ndata: {"part": 1}\n'
    place.stop()
    assert answer.read() == b"\n"  # the stream ends, whole
    connection.close()
    go.set()


def test_an_answer_that_takes_long_does_not_delay_the_end(monkeypatch):
    begun, go = threading.Event(), threading.Event()
    routes = [reading("/api/long", lambda request: begun.set() or go.wait(60))]
    monkeypatch.setattr(studio_app, "rooms", lambda: [lambda studio: routes])
    with opened(Studio(runs=Path("no-runs"))) as place:
        server = threading.Thread(target=place.run, daemon=True)
        server.start()
        session = let_in(place)

        def ask() -> None:
            with suppress(OSError, http.client.HTTPException):
                said(place, "/api/long", session=session)

        client = threading.Thread(target=ask)
        client.start()
        assert begun.wait(20)
        place.stop()
        server.join(30)
        assert not server.is_alive() and not go.is_set()
        go.set()
        client.join()


def test_a_job_that_talks_without_end_is_remembered_in_part():
    jobs, more = Jobs(), EVENTS + 100
    job = jobs.start("talk", lambda job: [job.say(number=number) for number in range(more)] and None)
    while job.state == "running":
        time.sleep(0.01)
    place, events = job.since(0)
    assert len(job.events) <= EVENTS and place == more + 2
    assert events[-1] == {"state": "done", "error": ""} and events[-2] == {"number": more - 1}


def test_work_that_waits_for_its_turn_is_cancelled_at_once():
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


def test_work_under_way_is_bounded():
    jobs, go = Jobs(), threading.Event()
    for _ in range(RUNNING):
        jobs.start("a", lambda job: go.wait(20))
    with pytest.raises(ValueError, match="wait for one"):
        jobs.start("a", lambda job: go.wait(20))
    jobs.stop()
    go.set()


# the command itself: a process of its own, with a browser that only writes down what it was given
