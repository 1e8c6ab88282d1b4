"""All benchmarks, by name; and how they are run."""

import difflib
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from qkv.bench.measure import Note
from qkv.bench.result import Report, Result

# name: where its function lives; function(quick, note) → Result. Imported only when run.
BENCHMARKS = {
    "attention": "qkv.bench.attention:run",
    "models": "qkv.bench.models:run",
    "generate": "qkv.bench.generate:run",
    "load": "qkv.bench.load:run",
    "train": "qkv.bench.train:run",
    "look": "qkv.bench.look:run",
    "studio": "qkv.bench.studio:run",
}

Benchmark = Callable[[bool, Note], Result]


def chosen(names: Sequence[str]) -> list[str]:
    """The benchmarks of these names, each once; all of them if none is named."""
    for name in names:
        if name not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(BENCHMARKS)}"
            raise ValueError(f"there is no benchmark {name!r}{meant}")
    return list(dict.fromkeys(names)) or list(BENCHMARKS)


def run(names: Sequence[str] = (), *, quick: bool = False, note: Note = lambda _: None) -> Report:
    """Measure the machine, then run benchmarks one after another. quick: fewer rounds and sizes."""
    from qkv.bench import machine

    names = chosen(names)
    note("measuring the machine")
    about, results = machine.for_report(), []
    for name in names:
        began = time.perf_counter()
        result = _find(BENCHMARKS[name])(quick, lambda what, name=name: note(f"{name}: {what}"))
        results.append(replace(result, seconds=round(time.perf_counter() - began, 1)))
    return Report(about, quick, tuple(results))


def _find(home: str) -> Benchmark:
    module, _, function = home.partition(":")
    return getattr(importlib.import_module(module), function)
