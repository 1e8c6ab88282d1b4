"""`qkv bench`: measured side by side with the peers, in one run."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from qkv.cli.console import err, out, print_json
from qkv.cli.tables import grid

if TYPE_CHECKING:
    from qkv.bench.result import Report


def bench(*names: str, quick: bool = False, report: Path | None = None, keep: bool = False, json: bool = False) -> int:
    """Speed and memory beside the peers: one run, competitors in turns, medians with their spread.

    attention: ours, PyTorch's kernel and the written formula, over lengths. models: forward pass and training step of a
    ViT and a GPT beside transformers, torch.nn.TransformerEncoder and x-transformers. generate: tokens a second beside
    transformers on the same weights. load: time to load a checkpoint. train: what the training loop costs over the bare
    step. look: pages of attention beside BertViz, recording, long texts. studio: how soon the page and its pictures are
    there, and its size. Peers that are not installed are named.

    All take some eight minutes, with --quick about one. Nothing else should run on the machine meanwhile.

    Examples:

        qkv bench attention
        qkv bench --quick
        qkv bench --report docs/benchmarks.md

    Parameters
    ----------
    names
        The benchmarks to run; all if none is named.
    quick
        Fewer rounds and smaller sizes: figures that show the direction, not the last digit.
    report
        Write a page (markdown) to this file, and the same figures as JSON beside it.
    keep
        With --report: what the page has of other benchmarks stays as it is.
    json
        Print the figures as JSON.
    """
    from qkv.bench import registry, result

    registry.chosen(names)
    if keep and report is None:
        raise ValueError("--keep goes with --report: it says what else the page holds")
    if report is not None:
        if report.suffix != ".md":
            raise ValueError(f"the report is a markdown page, such as benchmarks.md; got {report}")
        if not report.resolve().parent.is_dir():
            raise ValueError(f"there is no folder {report.resolve().parent} for the report")
    with err().status("") as status:
        found = registry.run(names, quick=quick, note=status.update)
    if report is not None:
        data = result.write(result.kept(report, found) if keep else found, report)
        err().print(f"wrote {report} and {data}", style="dim")
    if json:
        print_json(found.as_dict())
    else:
        _show(found)
    return 0


def _show(report: "Report") -> None:
    from qkv.bench.result import machine_line

    out().print(Text(machine_line(report.machine), style="dim"))
    for part in report.results:
        out().print(Text(f"\n{part.name}", style="bold"), Text(f"({part.seconds} s)", style="dim"))
        out().print(Text(part.about))
        for table in part.tables:
            out().print()
            out().print(grid(table, out().width))
        for note in part.notes:
            out().print(Text(note))
        if part.absent:
            out().print(Text(f"Not installed, so not measured: {', '.join(part.absent)}."))
