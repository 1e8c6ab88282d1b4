"""Nobody but a browser that was let in gets anything; what lets it in is private, works once, and does not stay."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from by_hand import enter, let_in, said, token_of

from qkv.cli.main import run as run_command
from qkv.studio import entry as studio_entry
from qkv.studio.entry import Entry
from qkv.studio.guard import HEADERS
from qkv.studio.serve import opened
from qkv.studio.state import Studio


@pytest.mark.parametrize("path", ["/", "/index.html", "/assets/index.js", "/api/about", "/api/jobs/1", "/nothing"])
def test_without_a_cookie_nothing_is_shown(place, path):
    for method in ("GET", "HEAD"):
        assert said(place, path, method).status == 401
    assert said(place, path, session="guessed").status == 401
    assert said(place, path, Cookie='qkv-x="; \x7f=').status == 401


def test_getting_the_way_in_is_not_going_through_it(place):
    assert said(place, "/enter").status == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "evil.example:PORT", "0.0.0.0:PORT"])
def test_another_host_is_refused_even_with_the_cookie(place, host):
    named = host.replace("PORT", place.address.rpartition(":")[2])
    assert said(place, "/", session=let_in(place), Host=named).status == 403
    assert enter(place, Host=named).status == 403


def test_two_hosts_in_one_request_are_refused(place):
    host = place.address.removeprefix("http://")
    with socket.create_connection(host.split(":"), timeout=20) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 400 " in raw.recv(4096).splitlines()[0]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://HOST", "HOST", "http://127.0.0.1:1"])
def test_another_pages_request_is_refused_even_with_the_cookie(place, origin):
    session = let_in(place)
    named = origin.replace("HOST", place.address.removeprefix("http://"))
    assert said(place, "/api/about", session=session, Origin=named).status == 403
    assert said(place, "/api/jobs/1", "DELETE", session=session, Origin=named).status == 403
    assert said(place, "/api/about", session=session, Origin=place.address).status == 200


def test_a_page_of_another_port_is_another_page(place):
    session = let_in(place)
    for site in ("same-site", "cross-site"):
        asked = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert said(place, "/api/about", session=session, **asked).status == 403
    assert (
        said(place, "/", session=session, **{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}).status == 200
    )


def test_what_changes_something_says_where_it_comes_from(place):
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert said(place, "/api/jobs/1", method, session=let_in(place)).status == 403
    assert enter(place, Origin=None).status == 403
    assert enter(place, Origin="http://evil.example").status == 403


def test_a_token_works_once(place):
    token = token_of(place.entry.file)
    assert enter(place, token).status == 200
    assert enter(place, token).status == 403
    for wrong in ("", "x", "ü", token + "x", token[:-1]):
        assert enter(place, wrong).status == 403
    assert token_of(place.entry.file) != token


def test_many_who_try_one_token_at_once_get_one_session():
    entry = Entry("http://127.0.0.1:1")
    try:
        token, found = token_of(entry.file), []
        threads = [threading.Thread(target=lambda: found.append(entry.exchange(token))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(session is not None for session in found) == 1
    finally:
        entry.close()


def test_sessions_are_bounded_and_end_with_the_server():
    entry = Entry("http://127.0.0.1:1")
    sessions = [entry.exchange(token_of(entry.file)) for _ in range(studio_entry.SESSIONS + 1)]
    assert [entry.knows(session or "") for session in sessions] == [False] + [True] * studio_entry.SESSIONS
    entry.close()
    assert not any(entry.knows(session or "") for session in sessions)
    assert not entry.folder.exists()


def test_the_cookie_is_the_servers_alone(place):
    flags = enter(place).headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and "path=/" in flags
    assert "domain" not in flags and "expires" not in flags and "max-age" not in flags


def test_two_servers_share_no_sessions_and_no_cookie_names(place, serving):
    other = serving()
    session = let_in(place)
    assert said(place, "/", session=session).status == 200
    assert said(other, "/", session=session).status == 401
    ports = {each.address.rpartition(":")[2] for each in (place, other)}
    assert {enter(each).headers["set-cookie"].partition("=")[0] for each in (place, other)} == {
        f"qkv-{port}" for port in ports
    }
    assert enter(other, token_of(place.entry.file)).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/..%2f..%2fserve.py", "/../serve.py", "/..;/serve.py", "//etc/passwd", "/%2e%2e/%2e%2e/serve.py",
        "/%2fetc%2fpasswd",
        "/assets/..%5c..%5cserve.py", "/assets/../../serve.py", "/index.html%00.js", "/.%00/", "/assets", "/%ff%fe",
        "/api/runs/run/..%2f..%2fetc", "/api/runs/run/%2e%2e", "/api/runs/report/..%2fx", "http://evil.example/serve.py",
    ],
)  # fmt: skip
def test_no_address_leads_out_of_the_page(place, path):
    answer = said(place, path, session=let_in(place))
    assert answer.status in (400, 404)
    assert "import" not in answer.text and "root:" not in answer.text


def test_every_answer_carries_the_headers(place):
    session = let_in(place)
    answers = [
        said(place, "/", session=session),
        said(place, "/", "HEAD", session=session),
        said(place, "/api/about", session=session),
        said(place, "/nothing", session=session),
        said(place, "/api/about", "PUT", session=session, Origin=place.address),
        said(place, "/"),
        said(place, "/", Host="evil.example"),
        enter(place),
        enter(place, "wrong"),
    ]
    assert {answer.status for answer in answers} == {200, 401, 403, 404, 405}
    for answer in answers:
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert {name: answer.headers[name] for name in HEADERS if name != "cache-control"} == {
            name: value for name, value in HEADERS.items() if name != "cache-control"
        }
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert not re.search(r"script-src[^;]*unsafe", policy)


@contextmanager
def command(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str], Path]]:
    """`qkv studio` with a private folder for what it writes; afterwards it is gone."""
    temporary, heard = folder / "tmp", folder / "heard"
    temporary.mkdir()
    fake = folder / "browser"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {heard}.part\nmv {heard}.part {heard}\nsleep 60\n')
    fake.chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(temporary), "BROWSER": f"{fake} %s"}
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", "studio", "--json", "--browser", "--runs", str(folder / "runs"), *more],
            stdout=stdout, stderr=stderr, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield process, json.loads(_waited(folder / "stdout", "}")), heard
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the browser too
        process.wait()


def _waited(file: Path, ending: str) -> str:
    """A file's text, once it has come to its end."""
    until = time.monotonic() + 120  # a busy machine is slow to import torch
    while not (file.exists() and file.read_text().rstrip().endswith(ending)):
        assert time.monotonic() < until, f"{file.name} never came"
        time.sleep(0.02)
    return file.read_text()


def everybodys_arguments() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    return "\n".join(found)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long)],
)
def test_the_command_keeps_its_token_to_itself_and_leaves_nothing(tmp_path, number, code):
    with command(tmp_path) as (process, told, heard):
        file, address = Path(told["open"]), told["address"]
        token = token_of(file)
        assert _waited(heard, "").split() == [file.as_uri()]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        arguments = everybodys_arguments()
        assert str(file) in arguments and token not in arguments  # the browser was given the file, not the token
        body = urllib.parse.urlencode({"token": token}).encode()
        host = address.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("POST", "/enter", body, {"Origin": "null"})
        answer = connection.getresponse()
        session = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        assert answer.status == 200
        connection.close()
        later = token_of(file)
        process.send_signal(number)
        assert process.wait(20) == code
        output, errors = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
        for secret in (token, later, session):
            assert secret not in output + errors
        assert "Traceback" not in errors
        assert not file.parent.exists() and list((tmp_path / "tmp").iterdir()) == []
        with pytest.raises(OSError):
            socket.create_connection(host.split(":"), timeout=1)


def test_a_port_that_is_taken_is_a_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run_command(["studio", "--port", str(port)]) == 2
    assert f"port {port} cannot be listened on (Address already in use)" in capsys.readouterr().err


def test_a_place_is_taken_as_soon_as_it_is_named():
    with opened(Studio(runs=Path("no-runs"))) as place:
        port = int(place.address.rpartition(":")[2])
        with pytest.raises(ValueError, match="cannot be listened on"), opened(Studio(), port):
            pass


def test_no_place_for_the_file_is_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run_command(["studio"]) == 2
    assert "the file that lets a browser in cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_full_disk_at_the_door_leaves_no_folder_and_no_used_token(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    entry = Entry("http://127.0.0.1:1")
    token, renew = token_of(entry.file), Entry._renew

    def full(self: Entry) -> None:
        renew(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Entry, "_renew", full)
    assert entry.exchange(token) is not None
    assert entry.exchange(token) is None and not entry.file.exists()
    entry.close()
    with pytest.raises(ValueError, match="No space left on device"):
        Entry("http://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []
