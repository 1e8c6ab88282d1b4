"""Connections of the studio's server: those without a session are few and short, so nobody can use them all up.

Every user of the machine can connect to localhost. A connection that has shown no session is closed after
`MAX_SECONDS`, and the oldest of them is closed when there are more than `MAX_WAITING`: a new one, perhaps the owner's,
is always accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 256  # connections without a session
MAX_SECONDS = 10.0  # that one of them may last, whatever it sends
MIN_FILES = 4096  # open files that the server asks for; many systems give 1024

Address = tuple[str, int]


class Connections:
    """The connections that have shown no session yet, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[Address, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def opened(self, client: Address, transport: asyncio.Transport) -> None:
        """Count a new connection, and close the oldest one if there are too many."""
        timer = asyncio.get_running_loop().call_later(MAX_SECONDS, transport.abort)
        self._waiting[client] = transport, timer
        while len(self._waiting) > MAX_WAITING:
            oldest = next(iter(self._waiting))
            self._waiting[oldest][0].abort()
            self.settled(oldest)

    def settled(self, client: Address | None) -> None:
        """Count a connection no longer: it has shown a session, or is closed."""
        if client is not None and (found := self._waiting.pop((client[0], client[1]), None)):
            found[1].cancel()

    def protocol(self) -> type[H11Protocol]:
        """The protocol for uvicorn that counts its connections here."""
        connections = self

        class CountedProtocol(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                if self.client is None:  # closed before it was accepted
                    transport.abort()
                else:
                    connections.opened(self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                connections.settled(self.client)
                super().connection_lost(exc)

        return CountedProtocol


def allow_many_files() -> None:
    """Raise this process's soft limit of open files, if the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MIN_FILES if hard == resource.RLIM_INFINITY else min(MIN_FILES, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
