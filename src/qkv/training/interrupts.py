"""SIGTERM and SIGINT become a flag, read at the next boundary; a second SIGINT ends at once."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While it is entered, a signal to stop sets `asked` to its name and nothing else happens."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread hear signals
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked is not None:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
