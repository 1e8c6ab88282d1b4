"""`qkv tour`: attention on paper, a model that learns, and a look at what it attends to."""

import time

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from qkv.cli.console import err, out, print_json

LETTERS = "abcdefghijklmnop"
NEXT_STEPS = {
    "qkv tour --steps 5": "the same, stopped before it has learned",
    "qkv byhand --example three-tokens": "the example above, each number derived",
    "qkv check torch.nn:MultiheadAttention": "what holds of a layer, what not",
    "qkv doctor": "what this machine is fast at",
    "docs/attention.md": "attention and masks in Python",
    "docs/models.md": "every model and its config",
}
TURN = "|"  # what stands between a word and its reverse


def tour(*, seed: int = 0, steps: int = 300, json: bool = False) -> int:
    """Meet qkv in under a minute: work an example, train a small transformer, look at what it attends to.

    Parameters
    ----------
    seed
        Another seed, another word and another model.
    steps
        How long the model trains; with fewer it has not learned yet.
    json
        Print the findings as JSON.
    """
    if steps < 0:
        raise ValueError(f"steps is a number, 0 or more; got {steps}")
    worked = work_example()
    learned = learn_to_reverse(seed, steps)
    if json:
        print_json({"example": worked, "reversal": learned})
        return 0
    _show_example(worked)
    _show_reversal(learned)
    _show_next_steps()
    return 0


def work_example() -> dict[str, list[list[float]]]:
    """Three tokens of a textbook: what each attends to, and what it becomes."""
    import torch

    from qkv import attention

    q = torch.tensor([[1, 3], [-1, 1], [2.5, -2]], dtype=torch.float64)
    k = torch.tensor([[3, -0.5], [2, -1.5], [-2.5, 3.5]], dtype=torch.float64)
    v = torch.tensor([[2.5, -1.5], [-1, 3], [-2, -3]], dtype=torch.float64)
    out, weights = attention(q, k, v, weights=True)
    return {"scores": (q @ k.mT).tolist(), "weights": weights.tolist(), "output": out.tolist()}


def learn_to_reverse(seed: int, steps: int) -> dict[str, object]:
    """Train a GPT of two layers to write words backwards, then look at one head while it does."""
    import torch

    from qkv.models import GPT, GPTConfig
    from qkv.ops.losses import token_loss

    length, generator = 8, torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = GPTConfig(vocab=len(LETTERS) + 1, length=2 * length + 1, width=64, layers=2, heads=4)
        model = GPT(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    began = time.perf_counter()
    columns = (TextColumn("training"), BarColumn(), TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task("", total=steps, loss=float("nan"))
        for _ in range(steps):
            texts = reversals(64, length, generator)
            loss = token_loss(model(texts[:, :-1])[:, length:], texts[:, length + 1 :])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            progress.update(task, advance=1, loss=loss.item())
    seconds = time.perf_counter() - began
    texts = reversals(256, length, generator)
    written = model.generate(texts[:, : length + 1], length)
    text = texts[:1]
    layer, head, weights = clearest_head(model.eval(), text[:, :-1], length)
    return {
        "parameters": model.size,
        "seconds": round(seconds, 1),
        "correct": (written == texts).all(1).float().mean().item(),
        "text": spell(text[0].tolist()),
        "layer": layer,
        "head": head,
        "weights": weights,
    }


def reversals(count: int, length: int, generator):
    """Random words, a bar, and the words backwards."""
    import torch

    words = torch.randint(0, len(LETTERS), (count, length), generator=generator)
    bar = torch.full((count, 1), len(LETTERS))
    return torch.cat((words, bar, words.flip(1)), dim=1)


def spell(tokens: list[int]) -> str:
    """Tokens as letters.

    >>> spell([0, 1, 16, 1, 0])
    'ab|ba'
    """
    return "".join((LETTERS + TURN)[token] for token in tokens)


def clearest_head(model, tokens, length: int) -> tuple[int, int, list[list[float]]]:
    """The head that most looks at the letter to be written next, and its weights while the word is written back."""
    import torch

    calls = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True)
        for block in model.blocks
    ]
    with torch.no_grad():
        model(tokens)
        for hook in hooks:
            hook.remove()
        maps = torch.stack([layer(*plain, **named, weights=True)[1][0] for layer, plain, named in calls])
    maps = maps[:, :, length:]  # (layers, heads, letters written, letters seen)
    letters = torch.arange(length)
    score = maps[..., letters, letters.flip(0)].mean(-1)
    layer, head = divmod(int(score.argmax()), score.shape[1])
    return layer, head, maps[layer, head].tolist()


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


def _show_reversal(learned) -> None:
    import torch

    from qkv.trace.terminal import heatmap, legend

    text, length = learned["text"], len(learned["weights"])
    out().print(
        f"[bold]2. A transformer that learns.[/bold] A GPT of 2 layers and {learned['parameters']:,} parameters "
        f"trained for {learned['seconds']} s to write words backwards; {learned['correct']:.1%} of 256 new words come "
        f"out right.\n"
    )
    out().print(
        f"[bold]3. Looking inside.[/bold] While it writes {text[length + 1 :]} after {text[: length + 1]}, head "
        f"{learned['head']} of layer {learned['layer']} attends to (rows: the letter to be written; columns: letters "
        f"seen):\n"
    )
    colour = out().color_system is not None and not out().no_color
    out().print(heatmap(torch.tensor(learned["weights"]), list(text[length + 1 :]), list(text[:-1]), colour=colour))
    out().print(legend(colour=colour))
    if learned["correct"] > 0.9:
        out().print("\nThe diagonal runs backwards: each letter is fetched from where it stands in the word.\n")
    else:
        out().print("\nIt has not learned yet: with more --steps a diagonal that runs backwards appears.\n")


def _show_next_steps() -> None:
    out().print("[bold]What to try next[/bold]")
    steps = Table.grid(padding=(0, 2))
    steps.add_column(no_wrap=True)
    for command, purpose in NEXT_STEPS.items():
        steps.add_row(f"  [cyan]{command}[/cyan]", purpose)
    out().print(steps)
