"""`qkv use` and `qkv eval`: use a trained model on new inputs, and evaluate a finished run again."""

from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from qkv.cli.bundled_models import print_bundled_models
from qkv.cli.console import err, out, print_json

MAX_NEW_TOKENS = 1_000_000
UNSURE = 0.6  # a class with a lower probability is marked as unsure
OPTIONS = {  # of each task
    "classify": {"top"},
    "generate": {"max_new_tokens", "temperature", "seed", "top_p"},
    "translate": {"num_beams"},
    "transcribe": set(),
    "answer": {"threshold"},
}


def use(
    checkpoint: str | None = None,
    /,
    *inputs: str,
    top: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    num_beams: int | None = None,
    threshold: float | None = None,
    quantize: Literal["int8"] | None = None,
    json: bool = False,
) -> int:
    """Run a trained model: classify images, generate text, translate, transcribe speech, answer questions.

    The task is stored with the model. A class with a probability below 60% is marked "unsure". For audio, words are
    printed with their times. If a question-answering model is not confident, or if its corpus has no document about the
    person, the matching line of the corpus is printed instead of an answer, or that there is none.

    Examples:

        qkv use qkv:shakespeare "To be, or"
        qkv use qkv:digits seven.png
        qkv use runs/vit-digits-1 seven.png
        qkv use runs/gpt-text-1 "To be, or" --temperature 0.5
        qkv use HuggingFaceTB/SmolLM2-135M "To be, or" --quantize int8
        qkv use runs/translate-1 "twenty-one thousand"
        qkv use runs/speech-1 recording.wav
        qkv use runs/birthplaces-1 "Where was Ada Lovelace born?" --threshold 0.8

    Parameters
    ----------
    checkpoint
        A run directory, a model folder (qkv's or Hugging Face's), a hub id, or a bundled model such as qkv:digits.
        Omit it to list the bundled models.
    inputs
        Files or texts. Omit them to read lines from standard input.
    top
        Number of classes to print (images). Default: 3.
    max_new_tokens
        Number of tokens to generate (texts). Default: 200.
    temperature
        Sampling temperature (texts); 0 always takes the most likely token. Default: 0.8.
    top_p
        Nucleus sampling (texts): sample from the most likely tokens that together have this probability. Default: all
        tokens.
    seed
        Random seed (texts). Default: 0.
    num_beams
        Number of beams for beam search (translations). Default: stored with the model, usually 4.
    threshold
        Minimum confidence of an answer, from 0 to 1, about people in the corpus. Default: calibrated during training.
    quantize
        Quantize the weights of linear layers to int8: less memory and faster generation. For text models, the change in
        perplexity on a page of Shakespeare is printed.
    json
        Print the results as JSON.
    """
    from qkv.training.inference import load_predictor, quantize_predictor

    if checkpoint is None:
        return print_bundled_models("use", json)
    for name, value in (("max-new-tokens", max_new_tokens), ("top", top), ("num-beams", num_beams)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if max_new_tokens is not None and max_new_tokens > MAX_NEW_TOKENS:
        raise ValueError(f"--max-new-tokens must be at most {MAX_NEW_TOKENS:,}, got {max_new_tokens:,}")
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"--seed must be from 0 to 2^63 - 1, got {seed}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ValueError(f"--threshold must be in [0, 1], got {threshold}")
    predictor = load_predictor(checkpoint)
    if quantize is not None:
        err().print(quantize_predictor(predictor, quantize), style="dim", markup=False)
    given = {
        "top": top,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "num_beams": num_beams,
        "threshold": threshold,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if foreign := sorted(set(options) - OPTIONS[predictor.task]):
        offered = ", ".join(_flag(name) for name in sorted(OPTIONS[predictor.task])) or "no options"
        raise ValueError(f"{_flag(foreign[0])} does not apply to the task {predictor.task}, which takes {offered}")
    predictions, errors = [], []
    for text in inputs or _read_lines():
        try:
            predictions.append(predictor(text, **options))
        except (ValueError, OSError) as error:
            errors.append(error)
    if errors and not predictions:
        raise errors[0]
    if json:
        print_json([vars(prediction) for prediction in predictions])
    else:
        _print_notes(predictions)
        for prediction in predictions:
            _print_prediction(prediction, single=len(predictions) + len(errors) == 1)
    for error in errors:
        err().print(f"qkv: {error}", markup=False, highlight=False)
    return 2 if errors else 0


def evaluate(run: str, /, *, json: bool = False) -> int:
    """Evaluate a finished run again: its validation and test metrics, from the saved model.

    The metrics from the end of training are printed next to the new ones. They should be equal.

    Examples:

        qkv eval runs/vit-digits-1
        qkv eval runs/vit-digits-1 --json

    Parameters
    ----------
    run
        A run directory, such as runs/vit-digits-1; `qkv runs` lists them.
    json
        Print the metrics as JSON.
    """
    from qkv.training.recipes import get_recipe
    from qkv.training.report import format_metric
    from qkv.training.runs import evaluate_task, open_run

    opened = open_run(run)
    if not opened.finished:
        from qkv.checkpoints import resume_command

        raise ValueError(f"{run} is not finished; resume it: {resume_command(run)}")
    result = evaluate_task(get_recipe(opened.config.recipe).build(opened.config, None), opened.model)
    if json:
        print_json(result)
        return 0
    rows = Table("", "now", "at the end of the run", box=None, padding=(0, 2))
    for part, metrics in result.items():
        for name, value in metrics.items():
            if isinstance(value, int | float):
                before = opened.result.get(part, {}).get(name)
                shown = "–" if before is None else format_metric(name, before)
                rows.add_row(f"{name.replace('_', ' ')} ({part})", format_metric(name, value), shown)
    out().print(rows)
    return 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_lines() -> list[str]:
    import sys

    if sys.stdin.isatty():
        err().print("one input per line; end with Ctrl-D", style="dim")
    lines = [line.rstrip("\n") for line in sys.stdin]
    if not any(lines):
        raise ValueError("no input: name a file or a text, or write lines to standard input")
    return [line for line in lines if line]


def _print_notes(predictions: list[Any]) -> None:
    """Print each note once; a note on some of the inputs names them."""
    inputs: dict[str, list[str]] = {}
    for prediction in predictions:
        for note in prediction.notes:
            inputs.setdefault(note, []).append(prediction.input)
    for note, names in inputs.items():
        place = f"{', '.join(names)}: " if len(names) < len(predictions) else ""
        count = f" (all {len(names)} inputs)" if not place and len(names) > 1 else ""
        err().print(f"{place}{note}{count}", style="dim", markup=False)


def _print_prediction(prediction: Any, *, single: bool) -> None:
    source, result, more = escape(prediction.input), escape(prediction.result), prediction.more
    head = "" if single else f"[dim]{source}[/dim]  "
    if prediction.task == "classify":
        ranked = "  ".join(f"{escape(name)} {probability:.1%}" for name, probability in more["classes"].items())
        unsure = "   unsure" if prediction.confidence is not None and prediction.confidence < UNSURE else ""
        out().print(f"{head}[bold]{result}[/bold]   [dim]{ranked}[/dim]{unsure}".rstrip())
    elif prediction.task == "generate":
        out().print(f"[dim]{source}[/dim]{result}")
    elif prediction.task == "transcribe":
        out().print(f"{head}[bold]{result or '(nothing)'}[/bold]")
        for word in more["words"]:
            times = f"[dim]{word['at']:6.2f} s[/dim]  {escape(word['text'])}"
            out().print(f"  {times}  [dim]available at {word['available']:.2f} s[/dim]")
    elif prediction.task == "answer":
        confidence = f"{prediction.confidence:.0%} confident"
        note = f"{more['from']}, {confidence}"
        if more["from"] != "the model":
            answer = f"the model's answer was {more['model_answer']!r}, {confidence}"
            note = escape(f"{more['from']}; {answer}, but {more['why']}")
        out().print(f"{head}[bold]{result}[/bold]   [dim]{note}[/dim]")
    else:
        out().print(f"{head}{result or '(nothing)'}")
