"""A studio that is open: a server on this machine alone, until it is told to stop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from qkv.studio.app import application
from qkv.studio.entry import Entry
from qkv.studio.state import Studio

HOME = "127.0.0.1"
WAITING = 128  # connections that may wait to be accepted


class _Server(uvicorn.Server):
    """Work and its event streams end first, so that no open stream delays the end."""

    def __init__(self, config: uvicorn.Config, studio: Studio) -> None:
        super().__init__(config)
        self._studio = studio

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._studio.stop()
        await super().shutdown(sockets)


@dataclass(frozen=True)
class Open:
    """A server that has its place, but does not answer before `run`."""

    address: str
    entry: Entry
    server: uvicorn.Server
    sockets: list[socket.socket]

    def run(self) -> None:
        """Answer until interrupted."""
        self.server.run(sockets=self.sockets)

    def stop(self) -> None:
        """Ask it to end; for other threads."""
        self.server.should_exit = True


@contextlib.contextmanager
def opened(studio: Studio, port: int = 0, largest: int | None = None) -> Iterator[Open]:
    """A place to listen on 127.0.0.1 (any free port for 0), with a way in; all of it is gone afterwards.

    largest: how many bytes a request may have, if not as many as usual.
    """
    with contextlib.ExitStack() as stack:
        # TCP by name: asyncio sends at once only on sockets that say so, and else the end of an answer waits 40 ms
        listening = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOME, port))
            listening.listen(WAITING)  # now, so that nobody else can take the place before the server answers
        except OSError as problem:
            told = f"port {port} cannot be listened on ({problem.strerror}); --port 0 takes a free one"
            raise ValueError(told) from None
        port = listening.getsockname()[1]
        entry = Entry(f"http://{HOME}:{port}")
        stack.callback(entry.close)
        stack.callback(studio.stop)
        app = application(studio, entry, (f"{HOME}:{port}", f"localhost:{port}"), largest)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # nobody stands between: what such headers say is not believed
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        yield Open(entry.address, entry, _Server(config, studio), [listening])
