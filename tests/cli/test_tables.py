"""Tables in a narrow terminal: a long name is broken, and nothing of it is lost."""

import io

from rich.console import Console

from qkv.bench.result import Column, Table
from qkv.cli.tables import grid


def test_a_long_name_is_broken_and_not_cut_off():
    columns = (Column("what"), *(Column(f"figure{i}") for i in range(6)))
    table = Table("figures", columns, (("no-pretraining", *range(6)),))
    console = Console(file=io.StringIO(), width=60)
    console.print(grid(table))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    first = "".join(line.split()[0] for line in lines[2:])
    assert first == "no-pretraining" and "…" not in console.file.getvalue()  # type: ignore[attr-defined]
