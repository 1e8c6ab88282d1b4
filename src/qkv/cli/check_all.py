"""`qkv check hf:all`: every architecture of the installed transformers."""

import os
from collections import Counter
from pathlib import Path

from rich.table import Table
from rich.text import Text

from qkv.check.sweep import Outcome, Row, Sweep
from qkv.cli.console import err, out, print_json

SIGNS: dict[Outcome, tuple[str, str]] = {
    "sound": ("✓", "green"), "alarm": ("✗", "bold red"), "not built": ("–", "dim"), "not called": ("–", "dim"),
    "too slow": ("–", "yellow"), "died": ("–", "yellow"),
}  # fmt: skip


def check_all(
    *, family: str | None, results: Path | None, workers: int, seconds: float, fresh: bool, json: bool
) -> int:
    """Run the sweep with progress on stderr; the table and the sum on stdout. Exit code 1 if anything alarms."""
    from qkv.check import hugging_face, sweep

    names = hugging_face.architectures()
    if family is not None:
        names = {name: its for name, its in names.items() if its == family}
        if not names:
            raise ValueError(f"families are {', '.join(hugging_face.FAMILIES)}; got {family!r}")
    folder = results if results is not None else default_folder()
    if fresh:
        for old in folder.glob("transformers-*.jsonl"):
            old.unlink()
    err().print(f"{len(names)} architectures, {workers} processes; results are kept in {folder}")

    def told(row: Row, done: int, of: int) -> None:
        err().print(f"{done}/{of}  {row.outcome:<10}  {row.name}  {row.seconds:.1f} s", style="dim")

    try:
        found = sweep.sweep(names, folder, workers=workers, seconds=seconds, told=told)
    except KeyboardInterrupt:
        err().print("interrupted: the same command goes on from here")
        raise
    if json:
        print_json(found.as_dict())
    else:
        show(found)
    return 0 if found.ok else 1


def default_folder() -> Path:
    """Where results are kept unless said otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv" / "check"


def show(found: Sweep) -> None:
    """The table, then the alarms with their evidence, then the sums."""
    table = Table(box=None, padding=(0, 1))
    for title in ("", "architecture", "family", "it is", "passed", "seconds"):
        table.add_column(title, no_wrap=title != "it is", justify="right" if title in ("passed", "seconds") else "left")
    for row in found.rows:
        sign, style = SIGNS[row.outcome]
        words = row.kind or f"{row.outcome}: {row.said[:60]}"
        cells = (
            Text(sign, style=style),
            row.name,
            row.family,
            Text(words),
            f"{row.passed or ''}",
            f"{row.seconds:.1f}",
        )
        table.add_row(*cells)
    out().print(table)
    for row in found.rows:
        for said in row.findings.get("fail", []):
            out().print(Text(f"✗ {row.name}: {said}", style="red"))
    for family in dict.fromkeys(row.family for row in found.rows):
        counts = Counter(row.outcome for row in found.rows if row.family == family)
        out().print(f"{family}: {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}")
    said = ", ".join(f"{found.count(outcome)} {outcome}" for outcome in SIGNS if found.count(outcome))
    out().print(f"[bold]transformers {found.versions['transformers']}: {said}[/bold]")
