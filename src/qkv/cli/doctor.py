"""`qkv doctor`: versions, device, and what the device is fast at."""

import sys

from rich.table import Table

from qkv import __version__
from qkv.cli.console import err, out, print_json


def doctor(*, device: str | None = None, json: bool = False) -> int:
    """What this machine has, and what it is fast at: measured, in a few seconds.

    Examples:

        qkv doctor
        qkv doctor --device cuda

    Parameters
    ----------
    device
        What to measure: cpu, cuda or mps. If not given, the accelerator if there is one, else the cpu.
    json
        Print the findings as JSON.
    """
    import torch

    from qkv.bench import machine

    try:
        chosen = machine.pick_device() if device is None else torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError):
        found = machine.pick_device()
        raise ValueError(f"there is no device {device!r} here; there is {found}") from None
    with err().status("looking at the machine") as status:
        found = machine.describe(chosen, note=status.update)
    if json:
        print_json({"qkv": __version__, **found.as_dict()})
        return 0
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_row("qkv", __version__)
    facts.add_row("python", f"{found.python} on {sys.platform}")
    facts.add_row("torch", found.torch)
    facts.add_row("device", f"{found.device} · {found.processor}")
    facts.add_row("cores", f"{found.cores} ({found.threads} threads used) · {found.memory_gib} GiB of memory")
    speeds = Table("dtype", "GFLOPS", "", title="matrix products, measured", title_justify="left", box=None)
    top = max((speed.gigaflops for speed in found.speeds), default=1.0)
    for speed in found.speeds:
        bar = "█" * max(1, round(30 * speed.gigaflops / top))
        speeds.add_row(speed.dtype, f"{speed.gigaflops:,.1f}", bar)
    speeds.columns[1].justify = "right"
    for part in (facts, "", speeds, "", f"Train in {found.best_dtype} here: it is what this device does well."):
        out().print(part)
    return 0
