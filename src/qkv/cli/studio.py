"""`qkv studio`: the local page."""

import sys
import webbrowser
from pathlib import Path

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
        Whether a browser is opened; by default if this is a terminal.
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
    with opened(Studio(runs=runs, models=tuple(models), allow_code=allow_code), port) as place:
        if json:
            print_json({"address": place.address, "open": str(place.entry.file)})
            sys.stdout.flush()
        else:
            out().print(f"qkv studio is at [bold]{place.address}[/bold]. Ctrl-C ends it.")
            out().print(f"A browser is let in by this file: {place.entry.file}", highlight=False)
        if sys.stdout.isatty() if browser is None else browser:
            webbrowser.open(place.entry.file.as_uri())
        place.run()
    err().print("ended", style="dim")
    return 0
