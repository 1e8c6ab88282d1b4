"""`qkv studio`: the local page."""

import contextlib
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.cli.console import err, out, print_json


def studio(
    *models: Path,
    runs: Path = Path("runs"),
    port: int = 0,
    allow_code: bool = False,
    browser: bool | None = None,
    json: bool = False,
) -> int:
    """Open the studio: play with attention, run the claims, look inside models, watch training, check code.

    The page is served by this machine to this machine alone, works without a network, and ends with Ctrl-C.

    Examples:

        qkv studio                                  # your runs are looked for in runs/
        qkv studio my-checkpoint/ --runs results/   # a model of your own, runs of another folder
        qkv studio --allow-code                     # the Check room may import modules that you name

    Parameters
    ----------
    models
        Checkpoint folders that the Models room offers beside those that ship and those in your runs.
    runs
        The folder of your runs.
    port
        Where it listens on 127.0.0.1; any free port if not given.
    allow_code
        Let the Check room import and run Python modules that you name in it, in a process of their own.
    browser
        Whether a browser is opened; by default if this is a terminal with a screen.
    json
        Print the address, and the file that lets a browser in, as JSON.
    """
    from qkv.studio.serve import opened
    from qkv.studio.state import Studio

    if not 0 <= port < 65536:
        raise ValueError(f"a port is a number from 0 to 65535; got {port}")
    for model in models:
        if not model.is_dir():
            raise ValueError(f"{model} is not a folder; a model is a folder with config.json and safetensors")
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"{runs} is not a folder; --runs is the folder in which runs are kept")
    code = 0
    try:
        with (
            _endable() as serving,
            opened(Studio(runs=runs, models=tuple(models), allow_code=allow_code), port) as place,
        ):
            _announce(place, json)
            if _has_screen() and sys.stdout.isatty() if browser is None else browser:
                # in a thread: some browsers are waited for until they are closed
                uri = place.entry.file.as_uri()
                threading.Thread(target=webbrowser.open, args=(uri,), daemon=True).start()
            serving.append(place.server)
            place.run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except EndedError as ended:
        code = 128 + ended.signal
    err().print("ended", style="dim")
    _leave(code)
    return code


class EndedError(BaseException):
    """A signal asked the process to end; what is open is closed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def _announce(place: Any, json: bool) -> None:
    if json:
        print_json({"address": place.address, "open": str(place.entry.file)})
    else:
        out().print(f"qkv studio is at [bold]{place.address}[/bold]. Ctrl-C ends it.")
        out().print("A browser is let in by this file:")
        out().print(str(place.entry.file), highlight=False, markup=False, soft_wrap=True)
    sys.stdout.flush()


@contextlib.contextmanager
def _endable() -> Iterator[list[Any]]:
    """Being told to end, or losing the terminal, is an exception: the file that lets browsers in goes with it.

    A server that is named in the list is asked to end first, and raises the signal again afterwards: an exception in
    the middle of an event loop would be taken for a problem of whatever ran just then.
    """
    serving: list[Any] = []

    def end(number: int, frame: Any) -> None:
        if serving and not serving[0].should_exit:
            serving[0].handle_exit(number, frame)
        else:
            raise EndedError(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield serving
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_screen() -> bool:
    """Whether a browser would have a window: without one, a text browser would take the terminal over."""
    if sys.platform in ("darwin", "win32") or "BROWSER" in os.environ:
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))


def _leave(code: int) -> None:
    """End at once if an answer is still being computed: its thread would keep the process for as long as it takes."""
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for thread in others:
        thread.join(0.5 / len(others))
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
