"""Who may ask: this machine's own page, in a browser that was let in, with bodies of bounded size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.studio.entry import Entry

LARGEST = 64 * 2**20  # bytes of a body
LARGEST_ENTRY = 4096  # bytes of a body of somebody who is not in yet
SAFE = ("GET", "HEAD", "OPTIONS")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
ENTER = "/enter"
ONCE = ("host", "origin", "content-length", "sec-fetch-site", "sec-fetch-mode")
Refusal = tuple[int, str]


class Guard:
    """Around the whole application; what it refuses never reaches a room."""

    def __init__(self, app: ASGIApp, entry: Entry, hosts: tuple[str, ...], largest: int = LARGEST) -> None:
        self.app, self.entry, self.hosts, self.largest = app, entry, hosts, largest
        self.cookie = cookie_name(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        entering = scope["method"] == "POST" and scope["path"] == ENTER
        exchange = _Exchange(scope, receive, send, min(self.largest, LARGEST_ENTRY) if entering else self.largest)
        refused = self._refused(scope, entering, exchange.largest)
        if refused is not None:
            await exchange.refuse(*refused)
            return
        with contextlib.suppress(TooLargeError):  # it was answered when it became known
            await self.app(scope, exchange.receive, exchange.send)

    def _refused(self, scope: Scope, entering: bool, largest: int) -> Refusal | None:
        headers = _single(scope["headers"])
        if headers is None:
            return 400, f"a request has each of {', '.join(ONCE)} once"
        host = headers.get("host", "")
        if host not in self.hosts:
            return 403, f"this page is at {self.hosts[0]}; the request named another host"
        if stranger := _from_elsewhere(scope["method"], headers, host, entering):
            return 403, stranger
        if not entering and not self.entry.knows(self._session(headers.get("cookie", ""))):
            return 401, "open the page with the file that qkv studio names"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > largest:
            return 413, _too_large(largest)
        return None

    def _session(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


class TooLargeError(Exception):
    """A body that goes on beyond what is allowed."""


class _Exchange:
    """A request and its answer: the body is counted, the answer gets our headers, and only one answer is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        self.scope, self.largest = scope, largest
        self._receive, self._send = receive, send
        self._came, self._begun, self._closed = 0, False, False

    async def receive(self) -> Message:
        message = await self._receive()
        self._came += len(message.get("body", b""))
        if self._came > self.largest:
            if not self._begun:
                await self.refuse(413, _too_large(self.largest))
            self._closed = True  # whatever the application answers to the error is not sent
            raise TooLargeError
        return message

    async def send(self, message: Message) -> None:
        if self._closed:
            return
        if message["type"] == "http.response.start":
            self._begun = True
            present = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await self._send(message)

    async def refuse(self, status: int, sentence: str) -> None:
        # the rest of the body is not wanted: the connection ends with the answer
        answer = JSONResponse({"error": sentence}, status, {"connection": "close"})
        await answer(self.scope, self._receive, self.send)


def cookie_name(hosts: tuple[str, ...]) -> str:
    """Cookies are shared between ports of one host, so the name carries the port.

    >>> cookie_name(("127.0.0.1:8123",))
    'qkv-8123'
    """
    return f"qkv-{hosts[0].rpartition(':')[2]}"


def _single(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """Headers by name; None if one that is decided by comes twice. Several lines of cookies are one."""
    headers: dict[str, str] = {}
    for name, value in ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw):
        if name in headers and name in ONCE:
            return None
        headers[name] = f"{headers[name]}; {value}" if name == "cookie" and name in headers else value
    return headers


def _from_elsewhere(method: str, headers: dict[str, str], host: str, entering: bool) -> str | None:
    """What is wrong with where a request comes from; None if it comes from this page, or from a file that enters.

    Pages of other ports of this machine are other pages, although browsers send them the same cookies.
    """
    origin = headers.get("origin")
    if origin is None:
        if method not in SAFE:
            return "a request that changes something says where it comes from (Origin)"
    elif origin != f"http://{host}" and not (entering and origin == "null"):
        return "the request comes from another page"
    followed = method == "GET" and headers.get("sec-fetch-mode") == "navigate"  # a link: it shows the page, no more
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not (entering or followed):
        return "the request comes from another page"
    return None


def _too_large(largest: int) -> str:
    return f"a request is at most {largest:,} bytes"
