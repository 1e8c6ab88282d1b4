"""`qkv tour`: solve an example, train a digit classifier, look inside it, check a layer, open the studio."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from qkv.cli.console import err, out, print_json
from qkv.cli.standard_streams import SignalError

NEXT_STEPS = {
    "qkv byhand --example three-tokens": "the example above, with every number derived",
    "qkv claims": "textbook claims, tested by experiment",
    "qkv check FILE.py:YourLayer": "find the bugs of your own attention code",
    'qkv look FOLDER "a text"': "show the attention inside any checkpoint",
    "qkv train": "list the recipes that can be trained",
    "qkv studio": "the local web app",
}
LAYER = "torch.nn:MultiheadAttention"


def tour(*, seed: int = 0, steps: int | None = None, folder: Path | None = None, json: bool = False) -> int:
    """See what qkv does in one or two minutes.

    The tour works through attention in exact numbers, trains a vision transformer, shows its attention and checks a
    layer. In a terminal, it then opens the web app with the new run. Press Ctrl-C to stop it.

    Examples:

        qkv tour
        qkv tour --steps 0                 # without training, in a few seconds
        qkv tour --seed 1 --folder runs/mine

    Parameters
    ----------
    seed
        Random seed for training.
    steps
        Number of training steps; 0 skips the training. Default: the 1,200 steps of the recipe vit-digits.
    folder
        The run directory. Default: a new one in runs/.
    json
        Print the results as JSON. The run is then deleted unless you give --folder.
    """
    if steps is not None and steps < 0:
        raise ValueError(f"--steps must be at least 0, got {steps}")
    if steps == 0 and folder is not None:
        raise ValueError("--steps 0 trains nothing, so there is no run for --folder; omit one of them")
    solved = solve_example()
    if not json:
        _print_example(solved)
    trained = None if steps == 0 else train_digits(seed, steps, folder, keep=not json)
    if trained is not None and not json:
        _print_trained(trained)
    checked = check_layer()
    if json:
        print_json({"example": solved, "digits": trained, "checked": checked})
        return 0
    part = 2 if trained is None else 4
    _print_checked(checked, part)
    _print_next_steps(trained)
    return open_studio(trained, part + 1) if is_interactive() else 0


def is_interactive() -> bool:
    """Whether a person uses a terminal: no pipe or file at either end, and not in CI."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("CI", "") in ("", "0", "false")


def open_studio(trained: dict[str, Any] | None, part: int = 5) -> int:
    """Open the studio on the run's parent folder; the tour ends when it is closed."""
    from qkv.cli.studio import studio

    runs = Path(trained["folder"]).parent if trained is not None and trained["folder"] else Path("runs")
    out().print(f"\n[bold]{part}. The studio.[/bold] The web app: try out attention and see your run.")
    code = studio(runs=runs)
    return 0 if code == 130 else code  # Ctrl-C closes it


def solve_example() -> dict[str, list[list[float]]]:
    """Attention of three tokens: scores, weights and output."""
    import torch

    from qkv import attention

    q = torch.tensor([[1, 3], [-1, 1], [2.5, -2]], dtype=torch.float64)
    k = torch.tensor([[3, -0.5], [2, -1.5], [-2.5, 3.5]], dtype=torch.float64)
    v = torch.tensor([[2.5, -1.5], [-1, 3], [-2, -3]], dtype=torch.float64)
    out, weights = attention(q, k, v, return_weights=True)
    return {"scores": (q @ k.mT).tolist(), "weights": weights.tolist(), "output": out.tolist()}


def train_digits(seed: int, steps: int | None, folder: Path | None, *, keep: bool) -> dict[str, Any]:
    """Train the recipe vit-digits and record what the class token attends to in one test image."""
    from qkv.cli.progress import make_callback
    from qkv.training import run_recipe

    if keep:
        err().print("training vit-digits: handwritten digits, 8 × 8 pixels", style="dim")
    with tempfile.TemporaryDirectory() as scratch:
        run = run_recipe(
            "vit-digits",
            folder=folder if folder is not None or keep else Path(scratch) / "run",
            steps=steps,
            seed=seed,
            resume="auto" if folder is not None else "never",
            callback=lambda stage, settings: make_callback(stage.name, quiet=not keep, json_lines=False),
        )
        if not run.finished:
            raise SignalError(signal.SIGTERM) if run.stopped == "SIGTERM" else KeyboardInterrupt
        attention = record_digit(run.model)
    test = run.result["test"]
    return {
        "folder": str(run.folder) if folder is not None or keep else None,
        "parameters": run.parameters,
        "seconds": round(run.seconds, 1),
        "accuracy": test["accuracy"],
        **attention,
    }


def record_digit(model: Any) -> dict[str, Any]:
    """The most focused head of the last layer on one test image, and its weights."""
    import torch

    from qkv import interp
    from qkv.data.images.dataset import Normalization
    from qkv.data.images.load import load_digits

    parts = load_digits()
    assert parts.test is not None
    image = parts.test.pixels[:1].float() / 255
    with torch.no_grad(), interp.record(model) as trace:
        predicted = int(model(Normalization.from_images(parts.train)(image)).argmax())
    last = len(trace.layers) - 1
    maps = trace.weights(last)[:, 0, 1:]  # (heads, patches): what the class token attends to
    maps = maps / maps.sum(-1, keepdim=True)
    head = int((maps * maps.clamp(min=1e-9).log()).sum(-1).argmax())
    side = round(maps.shape[-1] ** 0.5)
    return {
        "image": image[0, 0].tolist(),
        "label": int(parts.test.labels[0]),
        "predicted": predicted,
        "layer": last,
        "head": head,
        "weights": maps[head].view(side, side).tolist(),
    }


def check_layer() -> dict[str, Any]:
    """Check PyTorch's own layer."""
    from qkv.check import run

    report = run(LAYER)
    problems = [vars(finding) for finding in report.findings if finding.verdict in ("fail", "warn")]
    counts = dict.fromkeys(("pass", "described", "fail"), 0)
    for finding in report.findings:
        if finding.verdict in counts:
            counts[finding.verdict] += 1
    return {"layer": LAYER, "kind": report.kind, "counts": counts, "problems": problems}


def _print_example(solved: dict[str, list[list[float]]]) -> None:
    out().print("[bold]1. Attention on paper.[/bold] Three tokens, each attends to all.\n")
    table = Table("", "scores q·k", "softmax(q·k/√d)", "output", box=None, padding=(0, 2))
    for row, (scores, weights, output) in enumerate(zip(*solved.values(), strict=True), start=1):
        cells = (
            " ".join(f"{number:{form}}" for number in numbers)
            for numbers, form in ((scores, "6.2f"), (weights, ".4f"), (output, "7.4f"))
        )
        table.add_row(f"token {row}", *cells)
    out().print(table)
    out().print("\nIn Python: [cyan]out, weights = qkv.attention(q, k, v, return_weights=True)[/cyan]\n")


def _print_trained(trained: dict[str, Any]) -> None:
    from qkv.interp.viewer.terminal import legend, row_cells

    out().print(
        f"[bold]2. A trained vision transformer.[/bold] {trained['parameters']:,} parameters classify "
        f"handwritten digits: [bold]{trained['accuracy']:.1%}[/bold] of 360 test images, after "
        f"{trained['seconds']:.0f} s of training.\n"
    )
    out().print(
        f"[bold]3. Looking inside.[/bold] This digit is a {trained['label']}; the model says {trained['predicted']}. "
        f"On the right, what its class token attends to (layer {trained['layer']}, head {trained['head']}):\n"
    )
    color = out().is_terminal and not out().no_color
    image, weights = trained["image"], trained["weights"]
    top = max(max(row) for row in weights)
    scale = len(image) // len(weights)
    for number, row in enumerate(image):
        line = Text("  ").append(row_cells(row, color=color)).append("    ")
        attended = [weight / top for weight in weights[number // scale] for _ in range(scale)]
        out().print(line.append(row_cells(attended, color=color)))
    out().print(
        Text("\n  ").append(legend(color=color)).append(f"  right: relative to the largest weight, {top:.2f}\n")
    )


def _print_checked(checked: dict[str, Any], part: int) -> None:
    counts = checked["counts"]
    out().print(
        f"[bold]{part}. A checked layer.[/bold] {checked['layer']} is {checked['kind']}: "
        f"{counts['pass']} checks pass, {counts['fail']} fail, {counts['described']} properties described."
    )
    for finding in checked["problems"]:
        out().print(f"  {finding['check']}: {finding['evidence']}", markup=False)
    out().print()


def _print_next_steps(trained: dict[str, Any] | None) -> None:
    out().print("[bold]What to try next[/bold]")
    steps = Table.grid(padding=(0, 2))
    steps.add_column(no_wrap=True)
    if trained is not None and trained["folder"]:
        steps.add_row(
            f"  [cyan]{trained['folder']}/report.html[/cyan]", "the training report, with the remaining errors"
        )
    for command, purpose in NEXT_STEPS.items():
        steps.add_row(f"  [cyan]{command}[/cyan]", purpose)
    out().print(steps)
    if shutil.which("qkv") is None:  # as after `make run`: its environment is not activated
        script = Path(sys.executable).parent / "activate"
        path = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
        out().print(f"\nTo use qkv in this terminal, type once: [cyan]. {path}[/cyan]")
