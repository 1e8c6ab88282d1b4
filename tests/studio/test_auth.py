"""Only a logged-in browser gets an answer; tokens are private, work once and are deleted."""

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
from raw_requests import log_in, new_session, read_token, send

from qkv.cli.main import run as run_command
from qkv.studio import auth
from qkv.studio.auth import HEADERS, Login
from qkv.studio.server import Studio, open_server


@pytest.mark.parametrize("path", ["/", "/index.html", "/assets/index.js", "/api/about", "/api/jobs/1", "/nothing"])
def test_without_a_cookie_every_path_is_refused(place, path):
    for method in ("GET", "HEAD"):
        assert send(place, path, method).status == 401
    assert send(place, path, session="guessed").status == 401
    assert send(place, path, Cookie='qkv-x="; \x7f=').status == 401


def test_getting_the_login_path_does_not_log_in(place):
    assert send(place, "/login").status == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "evil.example:PORT", "0.0.0.0:PORT"])
def test_another_host_is_refused_even_with_the_cookie(place, host):
    named = host.replace("PORT", place.address.rpartition(":")[2])
    assert send(place, "/", session=new_session(place), Host=named).status == 403
    assert log_in(place, Host=named).status == 403


def test_two_hosts_in_one_request_are_refused(place):
    host = place.address.removeprefix("http://")
    with socket.create_connection(host.split(":"), timeout=20) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 400 " in raw.recv(4096).splitlines()[0]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://HOST", "HOST", "http://127.0.0.1:1"])
def test_requests_of_another_page_are_refused_even_with_the_cookie(place, origin):
    session = new_session(place)
    named = origin.replace("HOST", place.address.removeprefix("http://"))
    assert send(place, "/api/about", session=session, Origin=named).status == 403
    assert send(place, "/api/jobs/1", "DELETE", session=session, Origin=named).status == 403
    assert send(place, "/api/about", session=session, Origin=place.address).status == 200


def test_requests_of_a_page_on_another_port_are_refused(place):
    session = new_session(place)
    for site in ("same-site", "cross-site"):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert send(place, "/api/about", session=session, **headers).status == 403
    assert (
        send(place, "/", session=session, **{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}).status == 200
    )


def test_unsafe_methods_need_an_origin(place):
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert send(place, "/api/jobs/1", method, session=new_session(place)).status == 403
    assert log_in(place, Origin=None).status == 403
    assert log_in(place, Origin="http://evil.example").status == 403


def test_a_token_works_once(place):
    token = read_token(place.login.file)
    assert log_in(place, token).status == 200
    assert log_in(place, token).status == 403
    for wrong in ("", "x", "ü", token + "x", token[:-1]):
        assert log_in(place, wrong).status == 403
    assert read_token(place.login.file) != token


def test_a_token_used_many_times_at_once_gives_one_session():
    login = Login("http://127.0.0.1:1")
    try:
        token, found = read_token(login.file), []
        threads = [threading.Thread(target=lambda: found.append(login.exchange(token))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(session is not None for session in found) == 1
    finally:
        login.close()


def test_sessions_are_limited_and_end_with_the_server():
    login = Login("http://127.0.0.1:1")
    sessions = [login.exchange(read_token(login.file)) for _ in range(auth.MAX_SESSIONS + 1)]
    assert [login.is_session(session or "") for session in sessions] == [False] + [True] * auth.MAX_SESSIONS
    login.close()
    assert not any(login.is_session(session or "") for session in sessions)
    assert not login.folder.exists()


def test_the_cookie_is_httponly_and_same_site(place):
    flags = log_in(place).headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and "path=/" in flags
    assert "domain" not in flags and "expires" not in flags and "max-age" not in flags


def test_two_servers_share_no_sessions_and_no_cookie_names(place, serving):
    other = serving()
    session = new_session(place)
    assert send(place, "/", session=session).status == 200
    assert send(other, "/", session=session).status == 401
    ports = {each.address.rpartition(":")[2] for each in (place, other)}
    assert {log_in(each).headers["set-cookie"].partition("=")[0] for each in (place, other)} == {
        f"qkv-{port}" for port in ports
    }
    assert log_in(other, read_token(place.login.file)).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/..%2f..%2fserver.py", "/../server.py", "/..;/server.py", "//etc/passwd", "/%2e%2e/%2e%2e/server.py",
        "/%2fetc%2fpasswd",
        "/assets/..%5c..%5cserver.py", "/assets/../../server.py", "/index.html%00.js", "/.%00/", "/assets", "/%ff%fe",
        "/api/runs/run/..%2f..%2fetc", "/api/runs/run/%2e%2e", "/api/runs/report/..%2fx", "http://evil.example/server.py",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_static_files(place, path):
    answer = send(place, path, session=new_session(place))
    assert answer.status in (400, 404)
    assert "import" not in answer.text and "root:" not in answer.text


def test_every_answer_has_the_security_headers(place):
    session = new_session(place)
    answers = [
        send(place, "/", session=session),
        send(place, "/", "HEAD", session=session),
        send(place, "/api/about", session=session),
        send(place, "/nothing", session=session),
        send(place, "/api/about", "PUT", session=session, Origin=place.address),
        send(place, "/"),
        send(place, "/", Host="evil.example"),
        log_in(place),
        log_in(place, "wrong"),
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
    temporary, opened = folder / "tmp", folder / "opened"
    temporary.mkdir()
    fake = folder / "browser"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {opened}.part\nmv {opened}.part {opened}\nsleep 60\n')
    fake.chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(temporary), "BROWSER": f"{fake} %s"}
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", "studio", "--json", "--browser", "--runs", str(folder / "runs"), *more],
            stdout=stdout, stderr=stderr, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield process, json.loads(_waited(folder / "stdout", "}")), opened
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
def test_the_command_reveals_no_token_and_deletes_its_files(tmp_path, number, code):
    with command(tmp_path) as (process, printed, opened):
        file, address = Path(printed["open"]), printed["address"]
        token = read_token(file)
        assert _waited(opened, "").split() == [file.as_uri()]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        arguments = everybodys_arguments()
        assert str(file) in arguments and token not in arguments  # the browser was given the file, not the token
        body = urllib.parse.urlencode({"token": token}).encode()
        host = address.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("POST", "/login", body, {"Origin": "null"})
        answer = connection.getresponse()
        session = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        assert answer.status == 200
        connection.close()
        later = read_token(file)
        process.send_signal(number)
        assert process.wait(60) == code
        output, errors = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
        for secret in (token, later, session):
            assert secret not in output + errors
        assert "Traceback" not in errors
        assert not file.parent.exists() and list((tmp_path / "tmp").iterdir()) == []
        with pytest.raises(OSError):
            socket.create_connection(host.split(":"), timeout=1)


def test_a_taken_port_is_reported_with_a_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run_command(["studio", "--port", str(port)]) == 2
    assert f"cannot listen on port {port} (Address already in use)" in capsys.readouterr().err


def test_open_server_holds_its_port_at_once():
    with open_server(Studio(runs=Path("no-runs"))) as place:
        port = int(place.address.rpartition(":")[2])
        with pytest.raises(ValueError, match="cannot listen on port"), open_server(Studio(), port):
            pass


def test_an_unwritable_login_file_is_reported_with_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run_command(["studio"]) == 2
    assert "the login file cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_full_disk_at_login_leaves_no_folder_and_no_used_token(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    login = Login("http://127.0.0.1:1")
    token, renew = read_token(login.file), Login._write_file

    def full(self: Login) -> None:
        renew(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Login, "_write_file", full)
    assert login.exchange(token) is not None
    assert login.exchange(token) is None and not login.file.exists()
    login.close()
    with pytest.raises(ValueError, match="No space left on device"):
        Login("http://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []
