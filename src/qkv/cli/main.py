"""The `qkv` command: finds the command asked for, runs it, and turns what goes wrong into one sentence.

Exit codes: 0 done · 1 a check or a claim failed · 2 wrong use · 130 interrupted.
"""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

from qkv import __version__

# name: (where its function lives, one line of help). Imported only when called, so that --help needs no torch.
COMMANDS = {
    "tour": ("qkv.cli.tour:tour", "Meet qkv: an example worked, a model trained and looked into, a layer checked."),
    "byhand": ("qkv.cli.byhand:byhand", "Attention worked by hand, in exact numbers; and your own working checked."),
    "claims": ("qkv.cli.claims:claims", "The textbook: statements tried by experiment, with measured verdicts."),
    "check": ("qkv.cli.check:check", "Judge any implementation of attention: what holds, what breaks, and why."),
    "train": ("qkv.cli.train:train", "Train a system by a recipe; killed at any instant, it goes on to the same bits."),
    "runs": ("qkv.cli.runs:runs", "What was trained here: list runs, compare them."),
    "eval": ("qkv.cli.use:evaluate", "Test a finished run again."),
    "use": ("qkv.cli.use:use", "Use a trained model: classify, write on, translate, transcribe, answer."),
    "look": ("qkv.cli.look:look", "See the attention inside a checkpoint on your own input, and change it."),
    "studio": ("qkv.cli.studio:studio", "The page where all of it comes together, on this machine alone."),
    "convert": ("qkv.cli.convert:convert", "A checkpoint from one format to another: Hugging Face, llama2.c, qkv."),
    "bench": ("qkv.cli.bench:bench", "Speed and memory beside the peers, measured in one run."),
    "reproduce": ("qkv.cli.reproduce:reproduce", "Rerun a row of the results table: trained, tested, timed."),
    "doctor": ("qkv.cli.doctor:doctor", "What this machine has, and what it is fast at (measured)."),
}

EPILOGUE = """
Results go to stdout, progress and notes to stderr. Every command has --help and --json. With --debug an error
shows where it happened.
"""


def make_app(called: str = "") -> App:
    """The command line, with every command unimported; the one called tells its own, longer help."""
    app = App(
        name="qkv",
        help="The workbench for transformers: build them, train them, look inside them, prove that they work.",
        help_epilogue=EPILOGUE,
        version=__version__,
        result_action="return_value",
        default_parameter=Parameter(negative=(), show_default=_shown),
    )
    for place, (name, (home, summary)) in enumerate(COMMANDS.items()):
        app.command(home, name=name, help=None if name == called else summary, sort_key=place)
    return app


def _shown(default: object) -> str | None:
    """A default as --help tells it; a flag that is off needs no telling."""
    return None if default is False else str(default)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        return _wrong_use(_unknown(arguments[0]))
    try:
        result = make_app(arguments[0] if arguments else "")(arguments, exit_on_error=False, print_error=False)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left (as `qkv … | head` does): nothing to say, nobody to hear
        return 0
    except CycloptsError as error:
        if debug:
            raise
        return _wrong_use(f"{_first_sentence(error)} Try: qkv {_command_of(arguments)}--help")
    except (ValueError, OSError) as error:
        if debug:
            raise
        return _wrong_use(_explain(error))
    except Exception as error:
        if debug:
            raise
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
            return _wrong_use("this machine has not the memory for that; ask for less: a smaller model, batch or input")
        return _wrong_use(f"{type(error).__name__}: {error}. This is a bug in qkv; --debug shows where it happened")
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def _wrong_use(sentence: str) -> int:
    _say(sentence)
    return 2


def _say(sentence: str) -> None:
    sys.stderr.write(f"qkv: {sentence}\n")


def _explain(error: Exception) -> str:
    match error:
        case FileNotFoundError(filename=str() | Path() as path):
            return f"there is no file or folder {path}"
        case IsADirectoryError(filename=str() | Path() as path):
            return f"{path} is a folder; expected a file"
        case FileExistsError(filename=str() | Path() as path) | NotADirectoryError(filename=str() | Path() as path):
            return f"{path} is a file; expected a folder, or a name that is free"
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def _unknown(command: str) -> str:
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(COMMANDS)}."
    return f"there is no command {command!r}{meant} Try: qkv --help"


def _first_sentence(error: CycloptsError) -> str:
    return " ".join(str(error).split())


def _command_of(arguments: Sequence[str]) -> str:
    return f"{arguments[0]} " if arguments and arguments[0] in COMMANDS else ""
