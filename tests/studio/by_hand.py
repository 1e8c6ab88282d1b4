"""Requests as a program makes them, to the letter; and the way in without a browser."""

import http.client
import re
import urllib.parse
from contextlib import suppress
from pathlib import Path
from typing import Any

from qkv.studio.serve import Open

TOKEN = re.compile(r'name="token" value="([^"]+)"')


def token_of(file: Path) -> str:
    found = TOKEN.search(file.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def said(
    place: Open, path: str, method: str = "GET", *, body: Any = None, session: str = "", **headers: str | None
) -> http.client.HTTPResponse:
    """One request as a program makes it, its path exactly as given; Host and cookie as they belong unless named."""
    host = place.address.removeprefix("http://")
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
        with suppress(OSError):  # it was refused before it was read
            connection.send(body)
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def enter(place: Open, token: str | None = None, **headers: str) -> http.client.HTTPResponse:
    body = urllib.parse.urlencode({"token": token_of(place.entry.file) if token is None else token}).encode()
    kind = "application/x-www-form-urlencoded"
    return said(place, "/enter", "POST", body=body, **{"Origin": "null", "Content-Type": kind, **headers})


def let_in(place: Open) -> str:
    """A session."""
    answer = enter(place)
    assert answer.status == 200
    return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
