"""The `qkv` command line: the table of commands, exit codes, and one-sentence error messages.

Exit codes: 0 done · 1 a check or claim failed · 2 usage error · 130 interrupted · 143 terminated. `standard_streams`
says which one a closed or full stdout or stderr gives.
"""

import difflib
import importlib
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from qkv import __version__
from qkv._threads import limit_spinning
from qkv.cli.slow_start import note_slow_start
from qkv.cli.standard_streams import OutputError, SignalError, guard_streams, raise_on_signals

# group: {name: (its function, one line of help)}. A command is imported only when it is called: --help does not
# import torch.
GROUPS = {
    "Learn": {
        "tour": ("qkv.cli.tour:tour", "See what qkv does: solve an example, train a model, check a layer."),
        "examples": (
            "qkv.cli.examples:examples",
            "List the tutorials' example files, or copy them into a folder.",
        ),
        "byhand": ("qkv.cli.byhand:byhand", "Work through attention in exact numbers, or check your own calculation."),
        "claims": ("qkv.cli.claims:claims", "Test textbook claims about attention by experiment."),
        "questions": ("qkv.cli.questions:questions", "Print questions from courses about attention, with answers."),
    },
    "Check": {
        "check": (
            "qkv.cli.check:check",
            "Test any attention code and name the bug: leaks, padding, KV cache, gradients.",
        ),
        "grade": ("qkv.cli.grade:grade", "Grade student submissions with a rubric, in a sandbox."),
        "mutants": ("qkv.cli.mutants:mutants", "Test qkv check itself on implementations with one planted bug each."),
    },
    "Train and use": {
        "train": ("qkv.cli.train:train", "Train a model from a recipe. A killed run resumes bit-exactly."),
        "runs": ("qkv.cli.runs:runs", "List and compare training runs."),
        "eval": ("qkv.cli.use:evaluate", "Evaluate a finished training run again."),
        "use": ("qkv.cli.use:use", "Run a trained model: classify, generate, translate, transcribe, answer questions."),
        "convert": ("qkv.cli.convert:convert", "Convert a checkpoint between Hugging Face, llama2.c and qkv."),
    },
    "Inspect": {
        "look": ("qkv.cli.look:look", "Show and edit the attention of a model on your own input."),
        "studio": ("qkv.cli.studio:studio", "Open the local web app."),
    },
    "Measure and set up": {
        "bench": ("qkv.cli.bench:bench", "Compare speed and memory with other libraries."),
        "reproduce": ("qkv.cli.reproduce:reproduce", "Rerun an experiment from the results table."),
        "doctor": ("qkv.cli.doctor:doctor", "Show versions and hardware, and measure the speed of this machine."),
        "completion": ("qkv.cli.completion:completion", "Print a shell completion script."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

HELP = """Test attention code, check hand calculations, and train and inspect transformers.

Start with: qkv tour
"""
EPILOGUE = """
Every command accepts --help, --json and --debug (print the traceback of an error).
Results go to stdout; progress and notes go to stderr.
"""
MAX_ERROR = 4000  # characters of an error message
NUMBERS = {int: "a whole number", float: "a number", bool: "true or false"}


def make_app(called: str = "") -> App:
    """The command line; only the command `called` is imported, for its full help."""
    app = App(
        name="qkv",
        help=HELP,
        help_epilogue=EPILOGUE,
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` says that it was interrupted
        default_parameter=Parameter(negative=(), show_default=_format_default),
        group_commands=Group("Options", sort_key=len(GROUPS)),  # --debug, --help and --version
    )
    groups = {title: Group(title, sort_key=place) for place, title in enumerate(GROUPS)}
    places = {name: place for place, name in enumerate(COMMANDS)}
    for title, commands in GROUPS.items():
        for name, (function, summary) in commands.items():
            described = {"usage": _usage(name, function)} if name == called else {"help": summary}
            app.command(function, name=name, group=groups[title], sort_key=places[name], **described)
    app.command(_debug, name="--debug", sort_key=len(COMMANDS))
    return app


def _debug() -> None:
    """Print the traceback of an error."""  # an entry of the help: `run` removes --debug from the arguments


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
    if empty := _find_empty_name(command, arguments[1:]):
        return _fail(empty)
    if fraction := _find_fraction(command, arguments[1:]):
        return _fail(fraction)
    try:
        with raise_on_signals():
            if command == "train" and {"--help", "-h"}.intersection(arguments):
                _print_recipe_help(arguments[1:])
            result = make_app(command)(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        _print_error("interrupted")
        return 130
    except SignalError as stopped:
        _print_error("terminated")
        return 128 + stopped.signal
    except OutputError as error:
        return 0 if error.reader_gone else _fail(str(error.strerror))
    except Exception as error:
        if (stopped := _find_signal(error)) is not None:
            _print_error("terminated")
            return 128 + stopped.signal
        if debug:
            traceback.print_exc()
        return _fail(_explain(error, command))
    return result if isinstance(result, int) else 0


def _find_signal(error: BaseException | None) -> SignalError | None:
    """The signal behind an error: Python wraps what is raised while a class is defined."""
    while error is not None and not isinstance(error, SignalError):
        error = error.__cause__ or error.__context__
    return error


def _print_recipe_help(arguments: Sequence[str]) -> None:
    """Before the help of `qkv train RECIPE --help`: the models and presets of that recipe."""
    if arguments and not arguments[0].startswith("-"):
        from qkv.cli.train import print_recipe

        print_recipe(arguments[0])


def main() -> None:
    guard_streams()
    limit_spinning()
    with note_slow_start(sys.argv[1:]):
        code = run(sys.argv[1:])
    sys.exit(code)


def _fail(sentence: str) -> int:
    _print_error(sentence)
    return 2


def _print_error(sentence: str) -> None:
    """One sentence to stderr. What it quotes from a file may be long or hold control characters of a terminal."""
    sentence = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in sentence)
    if len(sentence) > MAX_ERROR:
        sentence = f"{sentence[: MAX_ERROR // 2]} … {sentence[-MAX_ERROR // 2 :]}"
    shown = sentence.encode(sys.stderr.encoding or "utf-8", "backslashreplace")  # names of files may be no text at all
    sys.stderr.write(f"qkv: {shown.decode(sys.stderr.encoding or 'utf-8')}\n")


def _explain(error: Exception, command: str) -> str:
    """An error in one sentence: what was expected, what came, what to do."""
    if isinstance(error, CycloptsError):
        place = f"{command} " if command in COMMANDS else ""
        return f"{_explain_usage(error, command)} Try: qkv {place}--help"
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
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text}. This is a bug in qkv; --debug shows where it happened"


def _explain_usage(error: CycloptsError, command: str) -> str:
    """An error of the command line's own syntax: an option, an argument or a value that does not fit."""
    match error:
        case UnknownCommandError(unused_tokens=[first, *_]):  # an unknown command is found before: this is an option
            return f"unknown option {first}."
        case UnknownOptionError():
            given = error.token.keyword or error.token.value
            known = [name for argument in error.argument_collection or () for name in argument.names]
            names = {name.lstrip("-"): name for name in known}  # the dashes alone are not similar
            near = difflib.get_close_matches(given.lstrip("-"), names, n=1)
            hint = f"; did you mean {names[near[0]]}?" if near else "."
            return f"unknown option {given}{hint}"
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"unexpected argument {first!r}; qkv {command} takes fewer arguments."
        case CoercionError() if error.token is not None and error.target_type in NUMBERS:
            name = error.token.keyword or (error.argument.name if error.argument is not None else "the argument")
            return f"{name} must be {NUMBERS[error.target_type]}, got {error.token.value!r}."
        case CoercionError(token=token, target_type=choices) if token is not None and get_origin(choices) is Literal:
            name = token.keyword or (error.argument.name.strip("_").upper() if error.argument else "the argument")
            known = [str(choice) for choice in get_args(choices)]
            near = difflib.get_close_matches(token.value, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            return f"{name} must be one of {', '.join(known)}; got {token.value!r}{hint}"
        case MissingArgumentError(keyword=str(option)):
            return f"{option} needs a value."
        case MissingArgumentError(argument=argument) if argument is not None:
            name = argument.name if argument.name.startswith("-") else argument.name.strip("_").upper()
            return f"{name} is missing."
    return " ".join(str(error).split())


def _find_empty_name(command: str, arguments: Sequence[str]) -> str | None:
    """What is wrong with an empty argument that should name a file; a text may be empty."""
    if "" not in arguments:
        return None
    if arguments[0] == "":
        return f"the first argument is empty; expected a name. Try: qkv {command} --help"
    module, _, attribute = COMMANDS[command][0].partition(":")
    function = getattr(importlib.import_module(module), attribute)
    for name, hint in get_type_hints(function).items():
        option = f"--{name.strip('_').replace('_', '-')}"
        is_path = hint is Path or (isinstance(hint, UnionType) and Path in get_args(hint))
        if is_path and (f"{option}=" in arguments or (option, "") in itertools.pairwise(arguments)):
            return f"{option} is empty; expected the name of a file or folder"
    return None


def _find_fraction(command: str, arguments: Sequence[str]) -> str | None:
    """What is wrong with a fraction where a whole number is expected: Cyclopts would round it silently."""
    pairs = [
        *(tuple(argument.split("=", 1)) for argument in arguments if argument.startswith("--") and "=" in argument),
        *itertools.pairwise(arguments),
    ]
    fractions = {option: value for option, value in pairs if re.fullmatch(r"[+-]?\d*\.\d*[1-9]\d*", value)}
    if command not in COMMANDS or not fractions:
        return None
    module, _, attribute = COMMANDS[command][0].partition(":")
    function = getattr(importlib.import_module(module), attribute)
    for name, hint in get_type_hints(function).items():
        option = f"--{name.strip('_').replace('_', '-')}"
        if option in fractions and (hint is int or hint == int | None):
            return f"{option} must be a whole number, got {fractions[option]!r}. Try: qkv {command} --help"
    return None


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
