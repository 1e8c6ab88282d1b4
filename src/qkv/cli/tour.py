"""`qkv tour`: attention on paper, a transformer that learns to read digits, a look inside it, and a layer checked.

A person at a terminal then finds the studio open.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json

NEXT_STEPS = {
    "qkv byhand --example three-tokens": "the example above, each number derived",
    "qkv claims": "the textbook's statements, tried by experiment",
    "qkv check FILE.py:YourLayer": "what holds of your own attention, what not, and why",
    'qkv look FOLDER "a text"': "the attention inside any checkpoint",
    "qkv train": "what else can be trained here",
    "qkv studio": "all of it on one page, on this machine alone",
}
LAYER = "torch.nn:MultiheadAttention"


def tour(*, seed: int = 0, steps: int | None = None, folder: Path | None = None, json: bool = False) -> int:
    """Meet qkv in a minute or two: work an example, train a vision transformer, look inside it, check a layer.

    At a terminal it ends by opening the studio, with the run in it; Ctrl-C ends that.

    Examples:

        qkv tour
        qkv tour --steps 0                 # no training: a few seconds
        qkv tour --seed 1 --folder runs/mine

    Parameters
    ----------
    seed
        Another seed, another model.
    steps
        How long the model trains; with fewer it has not learned yet. 0 leaves training out.
    folder
        Where the run is kept, with its report; a new one in runs/ if not given.
    json
        Print the findings as JSON; the run is then kept only if a folder is given.
    """
    if steps is not None and steps < 0:
        raise ValueError(f"steps is a number, 0 or more; got {steps}")
    worked = work_example()
    if not json:
        _show_example(worked)
    learned = None if steps == 0 else learn_digits(seed, steps, folder, keep=not json)
    if learned is not None and not json:
        _show_learned(learned)
    checked = check_layer()
    if json:
        print_json({"example": worked, "digits": learned, "checked": checked})
        return 0
    _show_checked(checked)
    _show_next_steps(learned)
    return open_studio(learned) if somebody_is_here() else 0


def somebody_is_here() -> bool:
    """Whether a person sits at a terminal: neither end is a pipe or a file, and nobody builds or tests."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("CI", "") in ("", "0", "false")


def open_studio(learned: dict[str, Any] | None) -> int:
    """The studio with the folder that the run is in; the tour is over when it is closed."""
    from qkv.cli.studio import studio

    runs = Path(learned["folder"]).parent if learned is not None and learned["folder"] else Path("runs")
    out().print("\n[bold]5. The studio.[/bold] Everything on one page: play with attention, see your run, and go on.")
    code = studio(runs=runs)
    return 0 if code == 130 else code  # Ctrl-C is how it is closed


def work_example() -> dict[str, list[list[float]]]:
    """Three tokens of a textbook: what each attends to, and what it becomes."""
    import torch

    from qkv import attention

    q = torch.tensor([[1, 3], [-1, 1], [2.5, -2]], dtype=torch.float64)
    k = torch.tensor([[3, -0.5], [2, -1.5], [-2.5, 3.5]], dtype=torch.float64)
    v = torch.tensor([[2.5, -1.5], [-1, 3], [-2, -3]], dtype=torch.float64)
    out, weights = attention(q, k, v, return_weights=True)
    return {"scores": (q @ k.mT).tolist(), "weights": weights.tolist(), "output": out.tolist()}


def learn_digits(seed: int, steps: int | None, folder: Path | None, *, keep: bool) -> dict[str, Any]:
    """Train the digits recipe, and look at what the class token attends to in one picture it has never seen."""
    from qkv.cli.progress import listener
    from qkv.training.recipes import train

    if keep:
        err().print("training vit-digits: real handwritten digits, 8 × 8 pixels, two cores are enough", style="dim")
    with tempfile.TemporaryDirectory() as scratch:
        run = train(
            "vit-digits",
            folder=folder if folder is not None or keep else Path(scratch) / "run",
            steps=steps,
            seed=seed,
            resume="auto" if folder is not None else "never",
            listen=lambda stage, settings: listener(stage.name, quiet=not keep, json_lines=False),
        )
        if not run.finished:
            raise KeyboardInterrupt
        seen = look_at_digit(run.model)
    test = run.result["test"]
    return {
        "folder": str(run.folder) if folder is not None or keep else None,
        "parameters": run.parameters,
        "seconds": round(run.seconds, 1),
        "accuracy": test["accuracy"],
        **seen,
    }


def look_at_digit(model: Any) -> dict[str, Any]:
    """The head of the last layer that looks at the fewest patches of a test picture, and what it looks at."""
    import torch

    from qkv import interp as trace
    from qkv.data.digit_images import digits
    from qkv.data.images import Normalisation

    parts = digits()
    assert parts.test is not None
    picture = parts.test.pixels[:1].float() / 255
    with torch.no_grad(), trace.record(model) as seen:
        said = int(model(Normalisation.of(parts.train)(picture)).argmax())
    last = len(seen.layers) - 1
    maps = seen.weights(last)[:, 0, 1:]  # (heads, patches): what the class token attends to
    maps = maps / maps.sum(-1, keepdim=True)
    head = int((maps * maps.clamp(min=1e-9).log()).sum(-1).argmax())
    side = round(maps.shape[-1] ** 0.5)
    return {
        "picture": picture[0, 0].tolist(),
        "is": int(parts.test.labels[0]),
        "said": said,
        "layer": last,
        "head": head,
        "weights": maps[head].view(side, side).tolist(),
    }


def check_layer() -> dict[str, Any]:
    """PyTorch's own layer, judged."""
    from qkv.check import run

    report = run(LAYER)
    shown = [vars(finding) for finding in report.findings if finding.verdict in ("fail", "warn")]
    counts = dict.fromkeys(("pass", "described", "fail"), 0)
    for finding in report.findings:
        if finding.verdict in counts:
            counts[finding.verdict] += 1
    return {"layer": LAYER, "kind": report.kind, "counts": counts, "shown": shown}


def _show_example(worked: dict[str, list[list[float]]]) -> None:
    out().print("[bold]1. Attention on paper.[/bold] Three tokens: each asks, all answer.\n")
    table = Table("", "scores q·k", "softmax(q·k/√d)", "output", box=None, padding=(0, 2))
    for row, (scores, weights, output) in enumerate(zip(*worked.values(), strict=True), start=1):
        cells = (
            " ".join(f"{number:{form}}" for number in numbers)
            for numbers, form in ((scores, "6.2f"), (weights, ".4f"), (output, "7.4f"))
        )
        table.add_row(f"token {row}", *cells)
    out().print(table)
    out().print("\nIn Python: [cyan]out, weights = qkv.attention(q, k, v, weights=True)[/cyan]\n")


def _show_learned(learned: dict[str, Any]) -> None:
    from qkv.interp.viewer.terminal_map import cells, legend

    out().print(
        f"[bold]2. A vision transformer that learns.[/bold] {learned['parameters']:,} parameters read handwritten "
        f"digits: [bold]{learned['accuracy']:.1%}[/bold] of 360 new ones right after {learned['seconds']:.0f} s.\n"
    )
    out().print(
        f"[bold]3. Looking inside.[/bold] This digit is a {learned['is']}; the model says {learned['said']}. Beside "
        f"it, what its class token attends to (layer {learned['layer']}, head {learned['head']}):\n"
    )
    colour = out().is_terminal and not out().no_color
    picture, weights = learned["picture"], learned["weights"]
    top = max(max(row) for row in weights)
    scale = len(picture) // len(weights)
    for number, row in enumerate(picture):
        line = Text("  ").append(cells(row, colour=colour)).append("    ")
        attended = [weight / top for weight in weights[number // scale] for _ in range(scale)]
        out().print(line.append(cells(attended, colour=colour)))
    out().print(Text("\n  ").append(legend(colour=colour)).append(f"  right: of the largest weight, {top:.2f}\n"))


def _show_checked(checked: dict[str, Any]) -> None:
    counts = checked["counts"]
    out().print(
        f"[bold]4. A layer, checked.[/bold] {checked['layer']}: it is {checked['kind']}. Properties that hold: "
        f"{counts['pass']}; described: {counts['described']}; broken: {counts['fail']}."
    )
    for finding in checked["shown"]:
        out().print(f"  {finding['check']}: {finding['evidence']}", markup=False)
    out().print()


def _show_next_steps(learned: dict[str, Any] | None) -> None:
    out().print("[bold]What to try next[/bold]")
    steps = Table.grid(padding=(0, 2))
    steps.add_column(no_wrap=True)
    if learned is not None and learned["folder"]:
        steps.add_row(f"  [cyan]{learned['folder']}/report.html[/cyan]", "how it learned, and what it still mistakes")
    for command, purpose in NEXT_STEPS.items():
        steps.add_row(f"  [cyan]{command}[/cyan]", purpose)
    out().print(steps)
    if shutil.which("qkv") is None:  # as after `make run`: the command is in an environment that is not switched on
        place = Path(sys.executable).parent / "activate"
        near = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
        out().print(f"\nSo that this terminal knows qkv, type once: [cyan]. {near}[/cyan]")
