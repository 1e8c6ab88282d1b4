"""Run the tutorials with an installed qkv, each from an empty folder: run_tutorials.py BIN [--long] [NAME ...]

BIN is the bin folder of an environment with qkv. Commands and Python snippets must print what the pages show. Without
--long, commands marked as long are left out.
"""

import doctest
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
from page_blocks import commands  # noqa: E402

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NOTES = ("loading PyTorch …\n", "computing …\n")  # printed on stderr when the machine is slow
SNIPPETS = "import doctest, sys; sys.exit(doctest.testfile(sys.argv[1], False, optionflags={flags}).failed > 0)"


def run(line: list[str], folder: str, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, text=True, check=False
    )
    printed = done.stdout
    for note in NOTES:
        printed = printed.removeprefix(note)
    return done.returncode, printed


def run_tutorial(page: Path, binaries: Path, *, long: bool) -> list[str]:
    """Run a page in an empty folder; returns what went wrong."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QKV", "PYTEST"))}
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    environment = {**plain, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        for command in commands(page):
            if command.long and not long:
                continue
            code, printed = run(["bash", "-c", command.line], folder, environment)
            matches = doctest.OutputChecker().check_output(command.shown, printed, FLAGS)
            if not matches or "Traceback" in printed or (code and not command.shown):
                failures.append(f"$ {command.line}\n{printed}\nexpected:\n{command.shown}")
        python = str(binaries / "python")
        code, printed = run([python, "-c", SNIPPETS.format(flags=FLAGS), str(page)], folder, environment)
        if code:
            failures.append(printed)
    return failures


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments[1:] if not argument.startswith("-")]
    pages = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if not names or path.stem in names)
    failed = False
    for page in pages:
        start = time.monotonic()
        failures = run_tutorial(page, Path(arguments[0]).resolve(), long="--long" in arguments)
        failed |= bool(failures)
        print(f"{page.stem}: {'FAILED' if failures else 'ok'}, {time.monotonic() - start:.0f} s", flush=True)
        print(*failures, sep="\n\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
