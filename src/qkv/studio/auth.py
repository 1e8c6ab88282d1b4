"""Access control: a login file with a one-time token, session cookies, and checks of host, origin and size.

The token never appears in a URL, in a process's arguments or in a log: the login file is a form that posts it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import html
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.studio.connections import Connections

MAX_SESSIONS = 32  # browsers that are logged in at a time; the oldest are logged out
MAX_BODY = 64 * 2**20  # bytes of a request body
MAX_LOGIN_BODY = 4096  # bytes of a body before login
LOGIN_PATH = "/login"
FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qkv studio</title></head>
<body><form method="post" action="{address}{path}"><input type="hidden" name="token" value="{token}">
<button>Open qkv studio</button></form><script>document.forms[0].submit()</script></body></html>
"""
REFUSED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>qkv studio</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 4em auto; padding: 0 1em }}</style></head>
<body><h1>qkv studio</h1><p>The server refused this request: {reason}.</p>
<p>To open the studio, open the login file (open.html) that <code>qkv studio</code> printed when it started, in this
browser. It logs this browser in. If the terminal is gone, start <code>qkv studio</code> again.</p></body></html>
"""
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
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SINGLE_HEADERS = ("host", "origin", "content-length", "sec-fetch-site", "sec-fetch-mode")
Refusal = tuple[int, str]  # status, reason


class Login:
    """The login file and the sessions of one server. Each token works once; then the file holds a new one."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="qkv-studio-"))  # mkdtemp makes it private (0700)
        except OSError as problem:
            raise ValueError(_cannot_write(problem)) from None
        self.file = self.folder / "open.html"
        self._token = ""
        self._sessions: dict[str, None] = {}  # digests, oldest first
        self._lock = threading.Lock()
        try:
            self._write_file()
        except OSError as problem:
            self.close()
            raise ValueError(_cannot_write(problem)) from None

    def _write_file(self) -> None:
        self._token = secrets.token_urlsafe(32)
        new = self.folder / "next.html"
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(FORM.format(address=self.address, path=LOGIN_PATH, token=self._token))
        new.replace(self.file)

    def exchange(self, token: str) -> str | None:
        """A new session for the current token; None for any other token."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = None
            for old in list(self._sessions)[:-MAX_SESSIONS]:
                del self._sessions[old]
            try:
                self._write_file()
            except OSError:  # the disk is full: this browser is logged in, the next one cannot be
                self.file.unlink(missing_ok=True)
            return session

    def is_session(self, session: str) -> bool:
        """Whether this session is logged in."""
        return _digest(session) in self._sessions

    def close(self) -> None:
        """End all sessions and delete the login file."""
        self._sessions, self._token = {}, secrets.token_urlsafe(32)
        shutil.rmtree(self.folder, ignore_errors=True)


class BodyTooLargeError(Exception):
    """A request body exceeded its limit; the request was already answered."""


class RequestGuard:
    """ASGI middleware around the whole app: refuses requests of other hosts, other pages and unknown browsers."""

    def __init__(
        self,
        app: ASGIApp,
        login: Login,
        hosts: tuple[str, ...],
        max_body: int = MAX_BODY,
        connections: Connections | None = None,
    ) -> None:
        self.app, self.login, self.hosts, self.max_body = app, login, hosts, max_body
        self.connections = Connections() if connections is None else connections
        self.cookie = cookie_name(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        logging_in = scope["method"] == "POST" and scope["path"] == LOGIN_PATH
        max_body = min(self.max_body, MAX_LOGIN_BODY) if logging_in else self.max_body
        exchange = _Exchange(scope, receive, send, max_body)
        refusal = self._check(scope, logging_in, max_body)
        if refusal is not None:
            await exchange.refuse(*refusal)
            return
        if not logging_in:
            self.connections.settled(scope.get("client"))
        with contextlib.suppress(BodyTooLargeError, ClientDisconnect):  # nobody is there to be answered
            await self.app(scope, exchange.receive, exchange.send)

    def _check(self, scope: Scope, logging_in: bool, max_body: int) -> Refusal | None:
        headers = _read_headers(scope["headers"])
        if headers is None:
            return 400, f"a request may have each of {', '.join(SINGLE_HEADERS)} only once"
        host = headers.get("host", "")
        if host not in self.hosts:
            return 403, f"this server is {self.hosts[0]}; the request names another host"
        if reason := _check_origin(scope["method"], headers, host, logging_in):
            return 403, reason
        if not logging_in and not self.login.is_session(self._session(headers.get("cookie", ""))):
            return 401, "this browser is not logged in: open the file that qkv studio prints"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > max_body:
            return 413, _too_large(max_body)
        return None

    def _session(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


class _Exchange:
    """One request and its answer: counts the body, adds the security headers, and sends only one answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self.scope, self.max_body = scope, max_body
        self._receive, self._send = receive, send
        self._num_bytes, self._started, self._closed = 0, False, False

    async def receive(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self.max_body:
            if not self._started:
                await self.refuse(413, _too_large(self.max_body))
            self._closed = True  # what the app answers to the error is not sent
            raise BodyTooLargeError
        return message

    async def send(self, message: Message) -> None:
        if self._closed:
            return
        if message["type"] == "http.response.start":
            self._started = True
            names = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        # the connection is closed, because the rest of the body is not read
        close = {"connection": "close"}
        if _reads_pages(self.scope):
            answer = HTMLResponse(explain_page(reason), status, close)
        else:
            answer = JSONResponse({"error": reason}, status, close)
        await answer(self.scope, self._receive, self.send)


def explain_page(reason: str) -> str:
    """A page for a browser whose request was refused: the reason, and how to open the studio."""
    return REFUSED.format(reason=html.escape(reason))


def _reads_pages(scope: Scope) -> bool:
    """Whether a person looks at the answer: a browser that opens an address prefers HTML."""
    accepted = dict(scope["headers"]).get(b"accept", b"")
    return scope["method"] == "GET" and accepted.startswith(b"text/html")


def cookie_name(hosts: tuple[str, ...]) -> str:
    """The session cookie's name. It contains the port, because browsers share cookies between ports of one host.

    >>> cookie_name(("127.0.0.1:8123",))
    'qkv-8123'
    """
    return f"qkv-{hosts[0].rpartition(':')[2]}"


def _read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """Headers by name; None if one that decides about access comes twice. Cookie lines are joined."""
    headers: dict[str, str] = {}
    for name, value in ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw):
        if name in headers and name in SINGLE_HEADERS:
            return None
        headers[name] = f"{headers[name]}; {value}" if name == "cookie" and name in headers else value
    return headers


def _check_origin(method: str, headers: dict[str, str], host: str, logging_in: bool) -> str | None:
    """Why a request's origin is refused; None if it comes from this page, or from the login file.

    Pages on other ports of this machine are other pages, although browsers send them the same cookies.
    """
    origin = headers.get("origin")
    if origin is None:
        if method not in SAFE_METHODS:
            return f"a {method} request needs an Origin header"
    elif origin != f"http://{host}" and not (logging_in and origin == "null"):
        return "the request comes from another page"
    is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not (logging_in or is_link):
        return "the request comes from another page"
    return None


def _cannot_write(problem: OSError) -> str:
    reason = problem.strerror or str(problem)
    return f"the login file cannot be written ({reason}); set TMPDIR to another folder"


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _too_large(max_body: int) -> str:
    return f"a request body may have at most {max_body:,} bytes"
