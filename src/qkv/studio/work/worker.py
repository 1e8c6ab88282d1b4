"""The process that works: requests come in as lines of JSON, words of progress and results go out as such.

Run by `qkv.studio.work.post`. What the work prints goes to the ordinary outputs, which somebody else reads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any

MEMORY = 8 << 30  # bytes of address space


def main() -> None:
    """Answer until nobody asks any more: worker FILE-NUMBER MODULE, whose `work` does it."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    _bounded()
    task = importlib.import_module(sys.argv[2])
    lock = threading.Lock()

    def say(**message: Any) -> None:
        with lock:
            line.sendall(json.dumps(message).encode() + b"\n")

    with line, line.makefile("r", encoding="utf-8") as requests:
        for request in requests:
            say(begun=True)
            say(**_done(task, json.loads(request), say))


def _done(task: Any, request: dict[str, Any], say: Any) -> dict[str, Any]:
    """How the work ended; whatever it raises, also to end this process, becomes a sentence."""
    try:
        task.work(request, say)
    except ValueError as problem:
        return {"error": str(problem)}
    except SystemExit as problem:
        return {"error": f"the code asked to end its process: sys.exit({problem.code!r})"}
    except BaseException as problem:
        said = " ".join(str(problem).split())[:300]
        return {"error": f"{type(problem).__name__}: {said}" if said else type(problem).__name__}
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the work may have put anything in their place
                stream.flush()
    return {"end": True}


def _bounded() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
