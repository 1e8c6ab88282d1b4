"""Connections without a session: nobody who opens many of them, or sends nothing, locks the owner out."""

import socket
import time
from contextlib import ExitStack

import pytest
from raw_requests import log_in, new_session, read_token, send

from qkv.studio import connections


def connect(place):
    return socket.create_connection(place.address.removeprefix("http://").split(":"), timeout=20)


def is_closed(raw: socket.socket, seconds: float) -> bool:
    raw.settimeout(seconds)
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_many_half_open_connections_do_not_lock_the_owner_out(serving_routes, capfd):
    """1,150 connections that send half a request: a new browser logs in, and a logged-in one keeps working."""
    place = serving_routes([])
    session = new_session(place)
    with ExitStack() as stack:
        for number in range(1150):
            raw = stack.enter_context(connect(place))
            raw.sendall((b"GET / HTTP/1.1\r\nHost: ", b"", b"\x16\x03\x01 garbage\r\n\r\n")[number % 3])
        assert send(place, "/api/about", session=session).status == 200
        assert log_in(place).status == 200
    assert capfd.readouterr().err == ""  # and the terminal stays quiet


def test_a_connection_without_a_session_is_closed_in_time_and_one_with_a_session_is_not(serving_routes, monkeypatch):
    monkeypatch.setattr(connections, "MAX_SECONDS", 0.5)
    place = serving_routes([])
    with ExitStack() as stack:
        host = place.address.removeprefix("http://")
        session = new_session(place)
        silent, slow, owner = (stack.enter_context(connect(place)) for _ in range(3))
        slow.sendall(b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nX-")
        cookie = f"Cookie: qkv-{host.rpartition(':')[2]}={session}"
        owner.sendall(f"GET /api/about HTTP/1.1\r\nHost: {host}\r\n{cookie}\r\n\r\n".encode())
        assert owner.recv(4096).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        assert is_closed(silent, 20) and is_closed(slow, 20)
        assert time.monotonic() - started < 10
        assert not is_closed(owner, 1.0)


@pytest.mark.parametrize("path", ["/", "/api/about", "/nothing"])
def test_a_browser_without_a_session_sees_a_page_that_says_how_to_open_the_studio(place, path):
    answer = send(place, path, Accept="text/html,application/xhtml+xml;q=0.9")
    assert (answer.status, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "this browser is not logged in" in answer.text and "login file" in answer.text
    assert answer.headers["content-security-policy"] and read_token(place.login.file) not in answer.text
    assert send(place, path, Accept="*/*").headers["content-type"] == "application/json"


def test_a_refusal_page_shows_what_a_request_says_as_text(place):
    answer = send(place, "/<script>alert(1)</script>", Accept="text/html", Host="<script>alert(1)</script>")
    assert answer.status == 403 and "<script>" not in answer.text
