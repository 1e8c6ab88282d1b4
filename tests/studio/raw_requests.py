"""Raw HTTP requests to a studio, and logging in without a browser."""

import http.client
import re
import urllib.parse
from contextlib import suppress
from pathlib import Path
from typing import Any

from qkv.studio.server import OpenServer

TOKEN = re.compile(r'name="token" value="([^"]+)"')


def read_token(file: Path) -> str:
    found = TOKEN.search(file.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def send(
    server: OpenServer, path: str, method: str = "GET", *, body: Any = None, session: str = "", **headers: str | None
) -> http.client.HTTPResponse:
    """Send one request with exactly this path; Host and cookie are right unless given."""
    host = server.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    sent = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if session:
        sent["Cookie"] = f"qkv-{host.rpartition(':')[2]}={session}"
    if body is not None and "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", str(len(body)))
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    if body is not None:
        with suppress(OSError):  # refused before it was read
            connection.send(body)
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def log_in(server: OpenServer, token: str | None = None, **headers: str) -> http.client.HTTPResponse:
    body = urllib.parse.urlencode({"token": read_token(server.login.file) if token is None else token}).encode()
    kind = "application/x-www-form-urlencoded"
    return send(server, "/login", "POST", body=body, **{"Origin": "null", "Content-Type": kind, **headers})


def new_session(server: OpenServer) -> str:
    """The cookie of a new session."""
    answer = log_in(server)
    assert answer.status == 200
    return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
