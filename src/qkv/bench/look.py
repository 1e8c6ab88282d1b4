"""Benchmark of `qkv look`: pages compared with BertViz's, recording overhead, and a text of 32,768 tokens.

Each measurement runs in a fresh process on one thread. Seconds are processor time, so that other load on the machine
counts little. BertViz is found among the installed packages or in PYTHONPATH (`pip install --no-deps --target FOLDER
bertviz`, then `PYTHONPATH=FOLDER qkv bench look`).
"""

import sys
import time
import types
from collections.abc import Callable
from typing import Any

from qkv.bench import OnNote
from qkv.bench.measure import peak_memory, run_in_fresh_process
from qkv.bench.report import BenchmarkResult, Column, Table

LAYERS, HEADS, HEAD_DIM = 12, 12, 64
PAGE_TOKENS = (64, 256, 512)
LONG_TEXT_TOKENS = 32768
TIME_LIMIT = 900  # seconds for one measurement
PAGE_COLUMNS = (
    Column("tokens"),
    Column("qkv", "MB"),
    Column("qkv", "s"),
    Column("qkv --full", "MB"),
    Column("qkv --full", "s"),
    Column("BertViz", "MB"),
    Column("BertViz", "s"),
)


def benchmark_look(quick: bool, on_note: OnNote) -> BenchmarkResult:
    rows, not_installed, notes = [], (), []
    for tokens in PAGE_TOKENS[:2] if quick else PAGE_TOKENS:
        on_note(f"pages of {tokens} tokens")
        ours = _measure("measure_page", tokens)
        theirs: dict[str, float] = {}
        try:
            theirs = _measure("measure_bertviz", tokens) or {}
            not_installed = () if theirs else ("bertviz",)
        except RuntimeError as error:
            notes.append(f"BertViz, {tokens} tokens: {error}.")
        figures = [ours[name] for name in ("mb", "seconds", "full_mb", "full_seconds")]
        rows.append((tokens, *figures, theirs.get("mb"), theirs.get("seconds")))
    on_note("recording")
    recording = _measure("measure_recording", 1024)
    on_note("a long text")
    long_text = _measure("measure_long_text", 8192 if quick else LONG_TEXT_TOKENS)
    tokens = long_text["tokens"]
    other_rows = (
        ("recording overhead over the plain forward pass", recording["tokens"], 100 * recording["overhead"], "%"),
        ("a map of 512 × 512 of one head", tokens, long_text["map_seconds"], "s"),
        ("a window of 256 × 256 exact weights", tokens, long_text["window_seconds"], "s"),
        ("memory in addition to the plain run", tokens, long_text["extra_mb"], "MB"),
    )
    other_columns = (Column("what"), Column("tokens"), Column("figure"), Column("unit"))
    return BenchmarkResult(
        "look",
        f"Pages of {LAYERS} × {HEADS} heads from recorded attention, in processor time; one layer of 8 heads of "
        "dimension 64 on a long text.",
        (Table("Pages", PAGE_COLUMNS, tuple(rows)), Table("Recording and long texts", other_columns, other_rows)),
        not_installed,
        tuple(notes),
    )


def _measure(function: str, tokens: int) -> Any:
    env = {"OMP_NUM_THREADS": "1"}
    return run_in_fresh_process(f"qkv.bench.look:{function}", tokens, env=env, timeout=TIME_LIMIT)


def processor_time(call: Callable[[], object], repeats: int = 1) -> float:
    """The median processor time of a call, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


def measure_page(tokens: int) -> dict[str, float]:
    """Our page of 12 × 12 heads from a trace, without and with queries and keys embedded (--full)."""
    from qkv.interp.viewer import make_scene, render_html

    words = [f"word{i}" for i in range(tokens)]
    scene = make_scene(_record_random_attention(tokens), words)
    render_html(make_scene(_record_random_attention(8), words[:8]))  # import everything before the time is taken
    sizes, times = {}, {}
    for name, full in (("page", False), ("full", True)):
        start = time.process_time()
        sizes[name] = len(render_html(scene, full=full).encode()) / 1e6
        times[name] = time.process_time() - start
    return {"mb": sizes["page"], "seconds": times["page"], "full_mb": sizes["full"], "full_seconds": times["full"]}


def measure_bertviz(tokens: int) -> dict[str, float] | None:
    """BertViz's model view of the same weights, which are computed before the time is taken; None if not installed."""
    _provide_ipython()
    try:
        from bertviz import model_view  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    trace = _record_random_attention(tokens)
    attention = [trace.weights(layer)[None] for layer in range(LAYERS)]
    start = time.process_time()
    page: Any = model_view(attention, [f"word{i}" for i in range(tokens)], html_action="return")
    seconds = time.process_time() - start
    return {"mb": len(page.data.encode()) / 1e6, "seconds": seconds}


def measure_recording(tokens: int) -> dict[str, float]:
    """A GPT of 4 layers, plain and recorded in turns; the median of each."""
    import torch

    import qkv

    config = qkv.models.GPTConfig(vocab_size=1000, max_length=tokens, dim=256, layers=4, heads=8)
    model = qkv.models.GPT(config).eval()
    text = torch.randint(0, 1000, (1, tokens))

    def run_recorded() -> None:
        with qkv.interp.record(model):
            model(text)

    with torch.no_grad():
        run_recorded()
        model(text)
        pairs = [(processor_time(lambda: model(text)), processor_time(run_recorded)) for _ in range(15)]
    plain, recorded = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
    return {
        "tokens": tokens,
        "plain_ms": plain * 1e3,
        "recorded_ms": recorded * 1e3,
        "overhead": recorded / plain - 1,
    }


def measure_long_text(tokens: int) -> dict[str, float]:
    """One layer of 8 heads of dimension 64 on a long text: a pooled map, exact windows, and their memory."""
    import torch

    import qkv

    layer, x = qkv.MultiHeadAttention(512, 8).eval(), torch.randn(1, tokens, 512)
    with torch.no_grad():
        layer(x, causal=True)
        before = peak_memory()
        with qkv.interp.record(layer) as trace:
            layer(x, causal=True)
    map_seconds = processor_time(lambda: trace.map(0, 3, 512))
    starts = [0, tokens // 3, tokens // 2, tokens - 256]
    windows = []
    for row in starts:
        for column in starts:
            rows, columns = range(row, row + 256), range(column, column + 256)
            windows.append(processor_time(lambda r=rows, c=columns: trace.weights(0, 3, 0, r, c), 3))
    return {
        "tokens": tokens,
        "map_seconds": map_seconds,
        "window_seconds": max(windows),
        "extra_mb": (peak_memory() - before) / 1e6,
    }


def _record_random_attention(tokens: int) -> Any:
    """A trace of 12 layers of 12 heads of dimension 64; every token attends to every other, with random weights."""
    import torch

    import qkv

    generator = torch.Generator().manual_seed(0)
    with qkv.interp.record() as trace:
        for _ in range(LAYERS):
            q, k = torch.randn(2, 1, HEADS, tokens, HEAD_DIM, generator=generator)
            qkv.attention(q, k, k, scale=0.4)
    return trace


def _provide_ipython() -> None:
    """BertViz returns its page as IPython's HTML, which only holds it; where IPython is missing, a stand-in does."""
    try:
        import IPython.display  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError:
        display: Any = types.ModuleType("IPython.display")

        class HTML:
            def __init__(self, data: str) -> None:
                self.data = data

        display.HTML = display.Javascript = HTML
        display.display = lambda *shown: None
        sys.modules["IPython"] = types.ModuleType("IPython")
        sys.modules["IPython.display"] = display
