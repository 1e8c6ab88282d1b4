"""How a browser gets in: a token that works once, in a private file that hands it over, exchanged for a cookie.

The token never stands in an address, in a process's arguments or in a log: the file is a form that posts it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

SESSIONS = 32  # browsers that are let in at a time; the first of them are forgotten then
FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qkv studio</title></head>
<body><form method="post" action="{address}/enter"><input type="hidden" name="token" value="{token}">
<button>Open qkv studio</button></form><script>document.forms[0].submit()</script></body></html>
"""


class Entry:
    """Tokens and cookies of one server. After a token was used, the file holds a new one, for another browser."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="qkv-studio-"))  # mkdtemp makes it private (0700)
        except OSError as problem:
            raise ValueError(_unwritten(problem)) from None
        self.file = self.folder / "open.html"
        self._token = ""
        self._sessions: dict[str, None] = {}  # digests, oldest first
        self._lock = threading.Lock()
        try:
            self._renew()
        except OSError as problem:
            self.close()
            raise ValueError(_unwritten(problem)) from None

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        fresh = self.folder / "next.html"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(FORM.format(address=self.address, token=self._token))
        fresh.replace(self.file)

    def exchange(self, token: str) -> str | None:
        """A new session for an unused token; None for any other."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = None
            for old in list(self._sessions)[:-SESSIONS]:
                del self._sessions[old]
            try:
                self._renew()
            except OSError:  # a full disk: this browser is let in, the next one cannot be
                self.file.unlink(missing_ok=True)
            return session

    def knows(self, session: str) -> bool:
        """Whether this is a session that was handed out."""
        return _digest(session) in self._sessions

    def close(self) -> None:
        """Nothing stays behind; nobody is let in any more."""
        self._sessions, self._token = {}, secrets.token_urlsafe(32)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unwritten(problem: OSError) -> str:
    why = problem.strerror or str(problem)
    return f"the file that lets a browser in cannot be written ({why}); TMPDIR names another folder for it"


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()
