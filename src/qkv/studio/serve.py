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
def opened(studio: Studio, port: int = 0) -> Iterator[Open]:
    """A place to listen on 127.0.0.1 (any free port for 0), with a way in; all of it is gone afterwards."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOME, port))
    except OSError as problem:
        listening.close()
        raise ValueError(f"port {port} cannot be listened on ({problem.strerror}); --port 0 takes a free one") from None
    port = listening.getsockname()[1]
    address = f"http://{HOME}:{port}"
    entry = Entry(address)
    app = application(studio, entry, (f"{HOME}:{port}", f"localhost:{port}"))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    try:
        yield Open(address, entry, uvicorn.Server(config), [listening])
    finally:
        studio.stop()
        entry.close()
        listening.close()
