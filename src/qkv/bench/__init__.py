"""Benchmarks: speed and memory compared with other libraries, measured in one run; and the table of all benchmarks."""

import difflib
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from qkv.bench.report import BenchmarkReport, BenchmarkResult

OnNote = Callable[[str], None]  # gets a line about what is being measured
Benchmark = Callable[[bool, OnNote], BenchmarkResult]

# name: function(quick, on_note) -> BenchmarkResult; imported only when it runs
BENCHMARKS = {
    "attention": "qkv.bench.attention:benchmark_attention",
    "models": "qkv.bench.models:benchmark_models",
    "generate": "qkv.bench.hugging_face:benchmark_generate",
    "load": "qkv.bench.hugging_face:benchmark_load",
    "train": "qkv.bench.training_loop:benchmark_training_loop",
    "look": "qkv.bench.look:benchmark_look",
    "studio": "qkv.bench.studio:benchmark_studio",
    "engines": "qkv.bench.engines:benchmark_engines",
    "start-up": "qkv.bench.start_up:benchmark_start_up",
}


def select_benchmarks(names: Sequence[str]) -> list[str]:
    """The benchmarks with these names, each once; all of them if no name is given."""
    for name in names:
        if name not in BENCHMARKS:
            near = difflib.get_close_matches(name, BENCHMARKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(BENCHMARKS)}"
            raise ValueError(f"unknown benchmark {name!r}; {hint}")
    return list(dict.fromkeys(names)) or list(BENCHMARKS)


def run_benchmarks(
    names: Sequence[str] = (), *, quick: bool = False, on_note: OnNote = lambda _: None
) -> BenchmarkReport:
    """Measure the machine, then run benchmarks one after another; Ctrl-C keeps those that are done.

    quick: fewer rounds and sizes.
    """
    from qkv.bench import machine

    names = select_benchmarks(names)
    on_note("measuring the machine")
    about, results = machine.describe_for_report(), []
    for name in names:
        start = time.perf_counter()
        try:
            result = load_benchmark(name)(quick, lambda what, name=name: on_note(f"{name}: {what}"))
        except KeyboardInterrupt:
            if not results:
                raise
            return BenchmarkReport(about, quick, tuple(results), tuple(names[len(results) :]))
        results.append(replace(result, seconds=round(time.perf_counter() - start, 1)))
    return BenchmarkReport(about, quick, tuple(results))


def load_benchmark(name: str) -> Benchmark:
    module, _, function = BENCHMARKS[name].partition(":")
    return getattr(importlib.import_module(module), function)
