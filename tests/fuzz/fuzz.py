"""Fuzz every reader and the command line: python tests/fuzz/fuzz.py --invocations 500 --files 2000

Each case is a fork of this process. It prints the cases that broke a promise (a traceback, a hang, an exit code outside
0, 1, 2, 130 and 143, something half-written, 1.5 GB of memory) and a line of totals; exit code 1 if there were any.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from forked import Outcome, run_command, run_forked, run_reader
from hostile import HOSTILE_CALLS, HOSTILE_FILES
from invocations import make_folder, make_invocation
from seeds import EXAMPLES, Seed, make_seeds


def fuzz_files(num: int, seed: int, home: Path, only: str = "") -> Iterator[tuple[str, Outcome, bytes]]:
    """Mutate files of every kind in turn; yields the case, its outcome and the content."""
    seeds = [each for each in make_seeds(home / "seeds") if only in each.name]
    warm_up(seeds, home / "good")
    for number in range(num):
        kind = seeds[number % len(seeds)]
        content = kind.mutation(kind.files[kind.target], random.Random(f"{seed} {number}"))
        yield f"file {seed} {number} ({kind.name})", read_mutated(kind, content, home / f"file{number}"), content


def read_mutated(kind: Seed, content: bytes, folder: Path) -> Outcome:
    """Read a seed's files, with the target replaced, in a new folder that is removed afterwards."""
    write_files(kind, folder, content)
    action = partial(run_reader, kind.code, kind.target) if kind.code else partial(run_command, kind.command)
    try:
        return run_forked(action, folder)
    finally:
        clean(folder)


def fuzz_invocations(num: int, seed: int, home: Path) -> Iterator[tuple[str, Outcome, bytes]]:
    """Run random wrong command lines."""
    for number in range(num):
        words = make_invocation(random.Random(f"{seed} {number}"))
        folder = home / f"call{number}"
        make_folder(folder, EXAMPLES)
        try:
            yield f"invocation {seed} {number}", run_forked(partial(run_command, words), folder), repr(words).encode()
        finally:
            clean(folder)


def try_hostile(home: Path) -> Iterator[tuple[str, Outcome, bytes]]:
    """The cases of hostile.py: sizes that would fill the memory, and what earlier fuzzing found."""
    seeds = {each.name: each for each in make_seeds(home / "hostile-seeds")}
    for number, (name, (kind, change)) in enumerate(HOSTILE_FILES.items()):
        content = change(seeds[kind].files[seeds[kind].target])
        yield name, read_mutated(seeds[kind], content, home / f"hostile{number}"), content
    for number, words in enumerate(HOSTILE_CALLS):
        folder = home / f"hostile-call{number}"
        make_folder(folder, EXAMPLES)
        yield f"call {number}: {words[0]}", run_forked(partial(run_command, words), folder), repr(words).encode()
        clean(folder)


def clean(folder: Path) -> None:
    for path in (folder, folder.with_name(f"{folder.name}.tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for end in ("out", "err"):
        folder.with_name(f"{folder.name}.{end}").unlink(missing_ok=True)


def warm_up(seeds: Sequence[Seed] = (), folder: Path | None = None) -> None:
    """Import what commands import, and read every good file once, so that a fork starts at once."""
    import torch

    import qkv.check.grading
    import qkv.checkpoints
    import qkv.cli.main
    import qkv.interp
    import qkv.studio.run_files  # noqa: F401

    torch.set_num_threads(1)
    here = Path.cwd()
    for kind in seeds:
        assert folder is not None
        write_files(kind, folder / kind.name)
        os.chdir(folder / kind.name)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                code = run_reader(kind.code, kind.target) if kind.code else run_command(kind.command)
        finally:
            os.chdir(here)
        assert code == kind.good_code, f"{kind.name}: {said.getvalue()}"


def write_files(kind: Seed, folder: Path, content: bytes | None = None) -> None:
    """Write a seed's files; `content` replaces the one to mutate."""
    for name, good in kind.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(good if content is None or name != kind.target else content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--invocations", type=int, default=500)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of files whose name contains this")
    parser.add_argument("--hostile", action="store_true", help="also the cases of hostile.py")
    parser.add_argument("--json", type=Path, help="write how each case ended into this file")
    parser.add_argument("--keep", type=Path, help="write the files that broke a promise into this folder")
    options = parser.parse_args()
    warm_up()
    codes: collections.Counter[int] = collections.Counter()
    ended: dict[str, dict[str, object]] = {}
    broken, memory, slowest, number = 0, 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="qkv-fuzz-") as home:
        calls = fuzz_invocations(options.invocations, options.seed, Path(home))
        files = fuzz_files(options.files, options.seed, Path(home), options.only)
        for cases in (calls, files, try_hostile(Path(home)) if options.hostile else ()):
            for name, outcome, content in cases:
                number += 1
                codes[outcome.code] += 1
                ended[name] = {**vars(outcome), "problem": outcome.problem()}
                memory, slowest = max(memory, outcome.memory), max(slowest, outcome.seconds)
                if problem := outcome.problem():
                    broken += 1
                    print(f"{name}: {problem}", content[:300], outcome.err[-1500:], sep="\n", flush=True)
                    if options.keep:
                        options.keep.mkdir(exist_ok=True)
                        (options.keep / name.replace(" ", "-")).write_bytes(content)
                if number % 100 == 0:
                    print(f"{number} cases, {broken} broke a promise", flush=True)
    if options.json:
        options.json.write_text(json.dumps(ended), encoding="utf-8")
    print(
        f"{options.invocations} invocations and {options.files} mutated files: {broken} broke a promise; exit codes "
        f"{dict(sorted(codes.items()))}; peak memory {memory / 1e9:.2f} GB; slowest {slowest:.1f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
