"""A line on stderr if a command has printed nothing for a second: importing PyTorch can take longer than that."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence

from qkv.cli.standard_streams import has_output

WAIT_SECONDS = 1.0
NO_NOTE = {"--quiet", "--help", "-h", "--version", "--json"}  # a help page computes nothing; stderr may be JSON lines


@contextlib.contextmanager
def note_slow_start(arguments: Sequence[str], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Print what is being loaded, once, unless the command has printed something or ended before; see NO_NOTE."""
    if not NO_NOTE.isdisjoint(arguments) or arguments[:1] == ["help"]:
        yield
        return
    timer = threading.Timer(wait, _print_note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_note() -> None:
    if not has_output():
        sys.stderr.write("loading PyTorch …\n" if _torch_is_being_loaded() else "computing …\n")


def _torch_is_being_loaded() -> bool:
    """Whether the import has begun and not finished; some commands never import it."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return getattr(spec, "_initializing", False)
