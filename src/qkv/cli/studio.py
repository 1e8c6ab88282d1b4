"""`qkv studio`: start the local web app."""

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
from qkv.cli.standard_streams import SignalError


def studio(
    *models: Path,
    runs: Path = Path("runs"),
    port: int | None = None,
    allow_code: bool = False,
    browser: bool | None = None,
    json: bool = False,
) -> int:
    """Open the local web app: try out attention, run claims, inspect models, watch training, check code.

    Only programs on this machine can open it, and it works offline. Press Ctrl-C to stop it.

    Examples:

        qkv studio                                 # show the runs in runs/
        qkv studio my-checkpoint/ --runs results/  # your model, another runs folder
        qkv studio --allow-code                    # let the Check page run code

    Parameters
    ----------
    models
        Checkpoint folders for the Models page, in addition to the bundled models and your runs.
    runs
        The folder that contains your runs.
    port
        The port on 127.0.0.1. Default: any free port.
    allow_code
        Let the Check page import and run Python modules that you name, in worker processes.
    browser
        Always open a browser. By default, qkv opens one only in a terminal with a display.
    json
        Print the address and the login file as JSON.
    """
    from qkv.studio.server import Studio, open_server

    port = 0 if port is None else port  # 0: any free port
    if not 0 <= port < 65536:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")
    for model in models:
        if not model.is_dir():
            raise ValueError(f"{model} is not a folder; a model is a folder with config.json and safetensors")
        if not any(model.glob("config.json")) and not any(model.glob("model/config.json")):
            raise ValueError(f"{model} has no config.json; a model is a folder with config.json and model.safetensors")
    if runs.exists() and not runs.is_dir():
        raise ValueError(f"{runs} is not a folder; --runs takes the folder that contains the runs")
    if browser is None:
        browser = _has_display() and sys.stdout.isatty()
    code = 0
    try:
        state = Studio(runs=runs, models=tuple(models), allow_code=allow_code)
        with _handle_signals() as running, open_server(state, port) as server:
            _announce(server, json)
            if browser:
                # in a thread, because some browsers block until they are closed
                url = server.login.file.as_uri()
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            running.append(server.server)
            server.run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SignalError as stopped:
        code = 128 + stopped.signal
    err().print("stopped", style="dim")
    _exit_if_busy(code)
    return code


def _announce(server: Any, json: bool) -> None:
    if json:
        print_json({"address": server.address, "open": str(server.login.file)})
    else:
        out().print(f"qkv studio runs at [bold]{server.address}[/bold]. Press Ctrl-C to stop it.")
        out().print("Open this file in a browser to log in:")
        out().print(str(server.login.file), highlight=False, markup=False, soft_wrap=True)
    sys.stdout.flush()


@contextlib.contextmanager
def _handle_signals() -> Iterator[list[Any]]:
    """Turn SIGTERM and SIGHUP into an exception, so that the login file is deleted.

    A running server (in the yielded list) is asked to stop first and raises the signal again afterwards: an exception
    inside the event loop would hit whatever handler runs at that moment.
    """
    running: list[Any] = []

    def stop(number: int, frame: Any) -> None:
        if running and not running[0].should_exit:
            running[0].handle_exit(number, frame)
        else:
            raise SignalError(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_display() -> bool:
    """Whether a browser can open a window; otherwise a text browser would take over the terminal."""
    if sys.platform in ("darwin", "win32") or "BROWSER" in os.environ:
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))


def _exit_if_busy(code: int) -> None:
    """Exit at once if a request is still computed; its thread would keep the process alive."""
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    for thread in others:
        thread.join(0.5 / len(others))
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
