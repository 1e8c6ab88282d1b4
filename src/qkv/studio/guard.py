"""Who may ask: this machine's own page, in a browser that was let in, with bodies of bounded size."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.studio.entry import Entry

LARGEST = 64 * 2**20  # bytes of a body
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
}
ENTER = "/enter"


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
            await JSONResponse({"error": "this server speaks HTTP only"}, 400)(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            await JSONResponse({"error": refused[1]}, refused[0])(scope, receive, _with_headers(send))
            return
        try:
            await self.app(scope, self._bounded(receive), _with_headers(send))
        except TooLargeError:
            answer = JSONResponse({"error": f"a request is at most {self.largest:,} bytes"}, 413)
            await answer(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            return 403, f"this page is at {self.hosts[0]}; the request named another host"
        entering = scope["path"] == ENTER
        if origin is None:
            if scope["method"] not in SAFE:
                return 403, "a request that changes something says where it comes from (Origin)"
        elif origin.removeprefix("http://") not in self.hosts and not (entering and origin == "null"):
            return 403, "the request comes from another page"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.largest:
            return 413, f"a request is at most {self.largest:,} bytes"
        if not entering and not self.entry.knows(self._session(headers.get("cookie", ""))):
            return 401, "open the page with the file that qkv studio names"
        return None

    def _session(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""

    def _bounded(self, receive: Receive) -> Receive:
        came = 0

        async def bounded() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.largest:
                raise TooLargeError
            return message

        return bounded


class TooLargeError(Exception):
    """A body that goes on beyond what is allowed."""


def cookie_name(hosts: tuple[str, ...]) -> str:
    """Cookies are shared between ports of one host, so the name carries the port.

    >>> cookie_name(("127.0.0.1:8123",))
    'qkv-8123'
    """
    return f"qkv-{hosts[0].rpartition(':')[2]}"


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return sending
