"""`qkv use` and `qkv eval`: a trained model at work, and tested again."""

from typing import Any

from rich.table import Table

from qkv.cli.checkpoint import again, trained
from qkv.cli.console import err, out, print_json

OPTIONS = {
    "classify": {"top"},
    "generate": {"count", "temperature", "seed", "top_p"},
    "translate": {"beams"},
    "transcribe": set(),
    "answer": {"threshold"},
}


def use(
    checkpoint: str,
    /,
    *inputs: str,
    top: int | None = None,
    count: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    beams: int | None = None,
    threshold: float | None = None,
    json: bool = False,
) -> int:
    """Use a trained model: it knows what it is for, and reads its inputs as that asks.

    A picture is classified, a text written on, a line translated, a recording transcribed (words come as they are
    spoken), a question answered. An answer that the model is not sure of is replaced by the line of its corpus that
    fits the question.

    Examples:

        qkv use qkv:digits seven.png
        qkv use runs/vit-digits-1 seven.png
        qkv use runs/gpt-text-1 "To be, or" --temperature 0.5
        qkv use runs/translate-1 "twenty-one thousand"
        qkv use runs/speech-1 recording.wav
        qkv use runs/birthplaces-1 "Where was Ada Lovelace born?" --threshold 0.8

    Parameters
    ----------
    checkpoint
        A run's folder, a model's folder (qkv's or Hugging Face's), a hub id, or a model that comes with qkv:
        qkv:digits.
    inputs
        What to use it on: files or texts; without any, lines from standard input.
    top
        Of a picture: how many classes are shown.
    count
        Of a text: how many tokens are written.
    temperature
        Of a text: 0 takes the likeliest token each time; higher is bolder.
    top_p
        Of a text: only the likeliest tokens that together have this share of the probability are drawn from.
    seed
        Of a text: another seed, another text.
    beams
        Of a translation: how wide the search is.
    threshold
        Of an answer: how sure the model must be, from 0 to 1; calibrated in training if not given.
    json
        Print the results as JSON.
    """
    from qkv.training.recipes.use import open_tool

    if count is not None and count < 1:
        raise ValueError(f"--count is how many tokens are written, 1 or more; got {count}")
    if top is not None and top < 1:
        raise ValueError(f"--top is how many classes are shown, 1 or more; got {top}")
    if beams is not None and beams < 1:
        raise ValueError(f"--beams is how wide the search is, 1 or more; got {beams}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ValueError(f"--threshold is how sure the model must be, from 0 to 1; got {threshold}")
    tool = open_tool(trained(checkpoint))
    given = {"top": top, "count": count, "temperature": temperature, "top_p": top_p, "seed": seed, "beams": beams}
    given["threshold"] = threshold
    choices = {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(set(choices) - OPTIONS[tool.task]):
        offered = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(OPTIONS[tool.task])) or "no options"
        raise ValueError(
            f"--{foreign[0].replace('_', '-')} is not for a model that is there to {tool.task}; it takes {offered}"
        )
    results = [tool(text, **choices) for text in inputs or _lines()]
    if json:
        print_json([vars(used) for used in results])
        return 0
    for used in results:
        _show(used, alone=len(results) == 1)
    return 0


def evaluate(run: str, /, *, json: bool = False) -> int:
    """Test a finished run again: the numbers of its validation and of its test, computed anew from its model.

    Beside them stand those of the run's end: they should be the same.

    Examples:

        qkv eval runs/vit-digits-1
        qkv eval runs/vit-digits-1 --json

    Parameters
    ----------
    run
        The run's folder, such as runs/vit-digits-1; `qkv runs` lists them.
    json
        Print them as JSON.
    """
    from qkv.training.recipes import open_run, system
    from qkv.training.recipes.report import figure

    opened = open_run(run)
    if not opened.finished:
        raise ValueError(f"{run} is not finished; go on with it: {again(run)}")
    task = system(opened.recipe.system).build(opened.recipe)
    model, validate = opened.model, task.stages[-1].validate
    result: dict[str, Any] = {"validation": {} if validate is None else validate(model), "test": task.test(model)}
    if json:
        print_json(result)
        return 0
    rows = Table("", "now", "at the end of the run", box=None, padding=(0, 2))
    for part, numbers in result.items():
        for name, value in numbers.items():
            if isinstance(value, int | float):
                then = opened.result.get(part, {}).get(name)
                before = "–" if then is None else figure(name, then)
                rows.add_row(f"{name.replace('_', ' ')} ({part})", figure(name, value), before)
    out().print(rows)
    return 0


def _lines() -> list[str]:
    import sys

    if sys.stdin.isatty():
        err().print("one input a line; end with Ctrl-D", style="dim")
    lines = [line.rstrip("\n") for line in sys.stdin]
    if not any(lines):
        raise ValueError("nothing to use the model on: name a file or a text, or write lines to standard input")
    return [line for line in lines if line]


def _show(used: Any, *, alone: bool) -> None:
    head = "" if alone else f"[dim]{_safe(used.input)}[/dim]  "
    if used.task == "classify":
        told = "  ".join(f"{_safe(name)} {chance:.1%}" for name, chance in used.more["classes"].items())
        out().print(f"{head}[bold]{_safe(used.result)}[/bold]   [dim]{told}[/dim]")
    elif used.task == "generate":
        out().print(f"[dim]{_safe(used.input)}[/dim]{_safe(used.result)}")
    elif used.task == "transcribe":
        out().print(f"{head}[bold]{_safe(used.result) or '(nothing)'}[/bold]")
        for word in used.more["words"]:
            out().print(
                f"  [dim]{word['at']:6.2f} s[/dim]  {_safe(word['text'])}  [dim]told at {word['said']:.2f} s[/dim]"
            )
    elif used.task == "answer":
        source = used.more["from"]
        note = f"[dim]{source}, {used.sure:.0%} sure[/dim]"
        if source != "the model":
            note = (
                f"[dim]{source}; the model would have said {_safe(used.more['unsure'])!r}, {used.sure:.0%} sure[/dim]"
            )
        out().print(f"{head}[bold]{_safe(used.result)}[/bold]   {note}")
    else:
        out().print(f"{head}{_safe(used.result)}")


def _safe(text: str) -> str:
    from rich.markup import escape

    return escape(text)
