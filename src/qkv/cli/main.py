"""The `qkv` command line: the table of commands, exit codes, and one-sentence error messages.

Exit codes: 0 done · 1 a check or claim failed · 2 wrong use · 130 interrupted · 143 terminated.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from cyclopts import App, CycloptsError, Parameter

from qkv import __version__

# name: (its function, one line of help). A command is imported only when it is called: --help does not import torch.
COMMANDS = {
    "tour": ("qkv.cli.tour:tour", "Meet qkv: solve an example, train a model, look inside it, check a layer."),
    "byhand": ("qkv.cli.byhand:byhand", "Solve attention by hand in exact numbers; verify your own calculation."),
    "claims": ("qkv.cli.claims:claims", "Test textbook claims about attention by experiment."),
    "questions": ("qkv.cli.questions:questions", "List questions that courses ask, and the claim that answers each."),
    "check": ("qkv.cli.check:check", "Check any attention implementation: leaks, padding, KV cache, gradients."),
    "grade": ("qkv.cli.grade:grade", "Grade submissions by a rubric, in a sandbox: points by property."),
    "mutants": ("qkv.cli.mutants:mutants", "Check the mutants: implementations with one known mistake each."),
    "train": ("qkv.cli.train:train", "Train a model from a recipe. A killed run resumes bit-exactly."),
    "runs": ("qkv.cli.runs:runs", "List and compare training runs."),
    "eval": ("qkv.cli.use:evaluate", "Test a finished run again."),
    "use": ("qkv.cli.use:use", "Use a trained model: classify, generate, translate, transcribe, answer."),
    "look": ("qkv.cli.look:look", "Show the attention inside a checkpoint on your own input, and intervene."),
    "studio": ("qkv.cli.studio:studio", "The local web app."),
    "convert": ("qkv.cli.convert:convert", "Convert a checkpoint between Hugging Face, llama2.c and qkv."),
    "bench": ("qkv.cli.bench:bench", "Measure speed and memory compared with other libraries."),
    "reproduce": ("qkv.cli.reproduce:reproduce", "Rerun a row of the results table: train, test and time it."),
    "doctor": ("qkv.cli.doctor:doctor", "Show this machine's hardware and measure its speed."),
}

EPILOGUE = """
Results go to stdout, progress and notes to stderr. Every command has --help and --json. --debug shows the traceback
of an error.
"""


def make_app(called: str = "") -> App:
    """The command line; only the command `called` is imported, for its full help."""
    app = App(
        name="qkv",
        help="Check, explain and train transformers.",
        help_epilogue=EPILOGUE,
        version=__version__,
        result_action="return_value",
        default_parameter=Parameter(negative=(), show_default=_format_default),
    )
    for place, (name, (function, summary)) in enumerate(COMMANDS.items()):
        if name == called:
            app.command(function, name=name, usage=_usage(name, function), sort_key=place)
        else:
            app.command(function, name=name, help=summary, sort_key=place)
    return app


def _format_default(default: object) -> str | None:
    """A default as --help shows it; an option that is off by default shows none."""
    return None if default is None or default is False else str(default)


def _usage(name: str, function: str) -> str:
    """The usage line of a command, with its arguments by name: Usage: qkv train [OPTIONS] [RECIPE]."""
    module, _, attribute = function.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), attribute)).parameters.values()
    words = [f"Usage: qkv {name}"]
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            words.append(f"--{parameter.name} {'|'.join(get_args(parameter.annotation)) or parameter.name.upper()}")
    words.append("[OPTIONS]")
    for parameter in parameters:
        label = parameter.name.strip("_").upper()
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"[{label}...]")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            words.append(label if parameter.default is parameter.empty else f"[{label}]")
    return " ".join(words)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments[:1] == ["help"]:  # qkv help, qkv help train
        arguments = [*arguments[1:2], "--help"]
    command = arguments[0] if arguments else ""
    if command and not command.startswith("-") and command not in COMMANDS:
        return _fail(_unknown_command(command))
    try:
        result = make_app(command)(arguments, exit_on_error=False, print_error=False)
    except KeyboardInterrupt:
        _print_error("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has closed it, as `qkv … | head` does
        return 0
    except Exception as error:
        if debug:
            raise
        return _fail(_explain(error, command))
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def _fail(sentence: str) -> int:
    _print_error(sentence)
    return 2


def _print_error(sentence: str) -> None:
    shown = sentence.encode(sys.stderr.encoding or "utf-8", "backslashreplace")  # names of files may be no text at all
    sys.stderr.write(f"qkv: {shown.decode(sys.stderr.encoding or 'utf-8')}\n")


def _explain(error: Exception, command: str) -> str:
    """An error in one sentence: what was expected, what came, what to do."""
    if isinstance(error, CycloptsError):
        place = f"{command} " if command in COMMANDS else ""
        return f"{' '.join(str(error).split())} Try: qkv {place}--help"
    if isinstance(error, OSError):
        return _explain_os_error(error)
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return "out of memory: try a smaller batch, model or input"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    if isinstance(error, OverflowError) or "Overflow when unpacking long" in str(error):
        return f"a number is too large or too small: {error}"
    return f"{type(error).__name__}: {error}. This is a bug in qkv; --debug shows where it happened"


def _explain_os_error(error: OSError) -> str:
    match error:
        case FileNotFoundError(filename=str() | Path() as path):
            return f"no such file or folder: {path}"
        case IsADirectoryError(filename=str() | Path() as path):
            return f"{path} is a folder; expected a file"
        case FileExistsError(filename=str() | Path() as path) | NotADirectoryError(filename=str() | Path() as path):
            return f"{path} is a file; expected a folder, or a name that does not exist yet"
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def _unknown_command(command: str) -> str:
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(COMMANDS)}."
    return f"unknown command {command!r}{hint} Try: qkv --help"
