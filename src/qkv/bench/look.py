"""What looking costs: pages beside BertViz's, recording over a plain run, and a text of 32,768 tokens.

Each measurement runs in a process of its own, on one thread; seconds are processor time, so that other work on the
machine counts little. `python -m qkv.bench.look [--peers FOLDER] [--json]`; FOLDER is where BertViz was installed
(`pip install --no-deps --target FOLDER bertviz`), if it is not among the installed packages.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.bench.measure import Note
from qkv.bench.result import Column, Result, Table

LAYERS, HEADS, WIDTH = 12, 12, 64
TOKENS = (64, 256, 512)
LONG = 32768
PATIENCE = 900  # seconds of waiting for one measurement


def run(quick: bool, note: Note) -> Result:
    """The benchmark: our page beside BertViz's, what recording costs, and a long text."""
    note("pages, recording, a long text")
    found = measured(TOKENS[:2] if quick else TOKENS, 8192 if quick else LONG)
    pages = tuple(
        (
            each["tokens"],
            *(each["qkv"][name] for name in ("mb", "seconds", "full_mb", "full_seconds")),
            each["bertviz"].get("mb"),
            each["bertviz"].get("seconds"),
        )
        for each in found["pages"]
    )
    names = (
        ("qkv", "MB"),
        ("qkv", "s"),
        ("qkv --full", "MB"),
        ("qkv --full", "s"),
        ("BertViz", "MB"),
        ("BertViz", "s"),
    )
    columns = (Column("tokens"), *(Column(name, unit) for name, unit in names))
    recorded, long = found["recording"], found["long"]
    few = (
        ("recording, over the plain forward pass", recorded["tokens"], 100 * recorded["share"], "%"),
        ("a map of 512 × 512 of one head", long["tokens"], long["map_seconds"], "s"),
        ("a window of 256 × 256 exact weights", long["tokens"], long["window_seconds"], "s"),
        ("memory over the model's own", long["tokens"], long["more_mb"], "MB"),
    )
    described = (Column("what"), Column("tokens"), Column("figure"), Column("in"))
    absent = ("bertviz",) if any("absent" in each["bertviz"] for each in found["pages"]) else ()
    about = (
        "Pages of 12 × 12 heads from recorded attention, in processor time; one layer of 8 heads of 64 on a long text."
    )
    tables = (Table("Pages", columns, pages), Table("Recording and long texts", described, few))
    return Result("look", about, tables, absent)


def measured(tokens: tuple[int, ...] = TOKENS, long: int = LONG, peers: str | Path | None = None) -> dict[str, Any]:
    """All measurements, as plain data."""
    pages = []
    for count in tokens:
        ours, theirs = _apart("page", count), _apart("bertviz", count, peers=peers)
        pages.append({"tokens": count, "qkv": ours, "bertviz": theirs})
    return {
        "layers": LAYERS,
        "heads": HEADS,
        "pages": pages,
        "recording": _apart("recording", 1024),
        "long": _apart("long_text", long),
    }


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The median processor time of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


def peak() -> float:
    """The most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def page(count: int) -> dict[str, Any]:
    """Our page of 12 × 12 heads, from a trace to its text; and with queries and keys embedded."""
    from qkv.interp.viewer import html, scene_of

    trace, tokens = _trace(count), [f"word{i}" for i in range(count)]
    scene = scene_of(trace, tokens)
    html(scene_of(_trace(8), tokens[:8]))  # so that nothing is imported while the time runs
    sizes, times = {}, {}
    for name, full in (("page", False), ("full", True)):
        start = time.process_time()
        sizes[name] = len(html(scene, full=full).encode()) / 1e6
        times[name] = time.process_time() - start
    return {"mb": sizes["page"], "seconds": times["page"], "full_mb": sizes["full"], "full_seconds": times["full"]}


def bertviz(count: int) -> dict[str, Any]:
    """BertViz's model view of the same weights; they are computed before the time runs."""
    if "IPython" not in sys.modules:
        _stand_in_for_ipython()
    try:
        from bertviz import model_view  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        return {"absent": f"BertViz is not installed ({error})"}
    trace = _trace(count)
    attention = [trace.weights(layer)[None] for layer in range(LAYERS)]
    start = time.process_time()
    shown: Any = model_view(attention, [f"word{i}" for i in range(count)], html_action="return")
    took = time.process_time() - start
    return {"mb": len(shown.data.encode()) / 1e6, "seconds": took}


def recording(count: int) -> dict[str, Any]:
    """A GPT of 4 layers, plain and recorded, turn by turn; the median of each."""
    import torch

    import qkv

    model = qkv.models.GPT(qkv.models.GPTConfig(vocab_size=1000, max_length=count, dim=256, layers=4, heads=8)).eval()
    text = torch.randint(0, 1000, (1, count))

    def recorded() -> None:
        with qkv.interp.record(model):
            model(text)

    with torch.no_grad():
        recorded()
        model(text)
        pairs = [(seconds(lambda: model(text)), seconds(recorded)) for _ in range(15)]
    plain, watched = (sorted(times)[len(times) // 2] for times in zip(*pairs, strict=True))
    return {"tokens": count, "plain_ms": plain * 1e3, "recorded_ms": watched * 1e3, "share": watched / plain - 1}


def long_text(count: int) -> dict[str, Any]:
    """One layer of 8 heads of 64 on a long text: a pooled map, exact windows, and the memory they take."""
    import torch

    import qkv

    layer, x = qkv.MultiHeadAttention(512, 8).eval(), torch.randn(1, count, 512)
    with torch.no_grad():
        layer(x, causal=True)
        before = peak()
        with qkv.interp.record(layer) as trace:
            layer(x, causal=True)
    mapped = seconds(lambda: trace.map(0, 3, 512))
    starts = [0, count // 3, count // 2, count - 256]
    windows = []
    for row in starts:
        for column in starts:
            rows, columns = range(row, row + 256), range(column, column + 256)
            windows.append(seconds(lambda r=rows, c=columns: trace.weights(0, 3, 0, r, c), 3))
    return {"tokens": count, "map_seconds": mapped, "window_seconds": max(windows), "more_mb": peak() - before}


def _trace(count: int) -> Any:
    """A trace of 12 layers of 12 heads of 64, every token seeing every other; weights as varied as noise can be."""
    import torch

    import qkv

    draw = torch.Generator().manual_seed(0)
    with qkv.interp.record() as trace:
        for _ in range(LAYERS):
            q, k = torch.randn(2, 1, HEADS, count, WIDTH, generator=draw)
            qkv.attention(q, k, k, scale=0.4)
    return trace


def _stand_in_for_ipython() -> None:
    """BertViz hands its page to IPython's HTML, which only holds it; where IPython is missing, so does this."""
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


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "page": page,
    "bertviz": bertviz,
    "recording": recording,
    "long_text": long_text,
}


def _apart(part: str, count: int, peers: str | Path | None = None) -> dict[str, Any]:
    """One measurement in a process of its own; what went wrong, if it could not be done."""
    places = [os.path.abspath(os.fspath(peers))] if peers is not None else []
    known = [*places, *(place for place in sys.path if place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(known)}
    command = [sys.executable, "-m", "qkv.bench.look", "--part", part, "--count", str(count)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"absent": f"not done within {PATIENCE} s"}
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"absent": f"failed: {reason}"}
    return json.loads(done.stdout)


def lines(found: dict[str, Any]) -> list[str]:
    """The measurements for people."""
    said = [f"pages of {found['layers']} × {found['heads']} heads: size and processor time"]
    said.append(f"{'tokens':>8}  {'qkv':>18}  {'qkv --full':>18}  {'BertViz':>18}")
    for row in found["pages"]:
        ours, theirs = row["qkv"], row["bertviz"]
        cells = [_cell(ours, "mb", "seconds"), _cell(ours, "full_mb", "full_seconds"), _cell(theirs, "mb", "seconds")]
        said.append(f"{row['tokens']:>8}  " + "  ".join(f"{cell:>18}" for cell in cells))
    said += sorted({f"BertViz: {row['bertviz']['absent']}" for row in found["pages"] if "absent" in row["bertviz"]})
    watched, long = found["recording"], found["long"]
    said.append(
        f"recording a GPT of 4 layers at {watched['tokens']:,} tokens: {watched['plain_ms']:.0f} ms plain, "
        f"{watched['recorded_ms']:.0f} ms recorded, {watched['share']:+.1%}"
    )
    said.append(
        f"{long['tokens']:,} tokens, 1 layer, 8 heads of 64: map of 512 × 512 {long['map_seconds']:.1f} s, slowest "
        f"of 16 windows of 256 × 256 {long['window_seconds']:.3f} s, {long['more_mb']:.0f} MB over the plain run"
    )
    return said


def _cell(found: dict[str, Any], size: str, took: str) -> str:
    return "absent" if "absent" in found else f"{found[size]:.2f} MB {found[took]:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", help="a folder that BertViz was installed into")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=LONG, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        import torch

        torch.set_num_threads(1)
        sys.stdout.write(json.dumps(PARTS[asked.part](asked.count)) + "\n")
        return
    found = measured(peers=asked.peers)
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if asked.json else "\n".join(lines(found)) + "\n")


if __name__ == "__main__":
    main()
