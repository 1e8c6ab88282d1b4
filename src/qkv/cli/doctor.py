"""`qkv doctor`: versions, hardware, and measured speed of each dtype."""

import sys

from rich.table import Table

from qkv import __version__
from qkv.cli.console import err, out, print_json


def doctor(*, device: str | None = None, json: bool = False) -> int:
    """Show the installed versions and the hardware, and measure the speed of this machine in a few seconds.

    Examples:

        qkv doctor
        qkv doctor --device cuda
        qkv doctor --json

    Parameters
    ----------
    device
        The device to measure: cpu, cuda or mps. Default: a GPU if available, otherwise cpu.
    json
        Print the results as JSON.
    """
    import torch

    from qkv.bench import machine

    try:
        chosen = machine.default_device() if device is None else torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError):
        raise ValueError(f"no device {device!r} on this machine; try {machine.default_device()}") from None
    with err().status("measuring the machine") as status:
        found = machine.measure_machine(chosen, on_note=status.update)
    if json:
        print_json({"qkv": __version__, **found.to_dict()})
        return 0
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_row("qkv", __version__)
    facts.add_row("python", f"{found.python} on {sys.platform}")
    facts.add_row("torch", found.torch)
    facts.add_row("device", f"{found.device} · {found.processor}")
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    facts.add_row("cores", f"{found.cores} ({threads} used) · {found.memory_gib} GiB of memory")
    speeds = Table("dtype", "GFLOPS", "", title="matrix products, measured", title_justify="left", box=None)
    top = max((speed.gigaflops for speed in found.speeds), default=1.0)
    for speed in found.speeds:
        bar = "█" * max(1, round(30 * speed.gigaflops / top))
        speeds.add_row(speed.dtype, f"{speed.gigaflops:,.1f}", bar)
    speeds.columns[1].justify = "right"
    advice = f"Train in {found.best_dtype} on this device."
    if not found.is_certain:
        advice += (
            " Whether bfloat16 is faster could not be measured: the rounds differ. Stop other programs and repeat."
        )
    for part in (facts, "", speeds, "", advice):
        out().print(part)
    return 0
