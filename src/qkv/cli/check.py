"""`qkv check`: check an implementation of attention, or every architecture of transformers (hf:all)."""

from __future__ import annotations

import json as json_library
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qkv._files import cache_folder
from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.check.sweep import Outcome, SweepResult, SweepRow


def check(
    target: str | None = None,
    /,
    *,
    contract: Literal["none", "textbook", "encoder"] = "none",
    kind: Literal["causal", "bidirectional", "window", "prefix", "chunked"] | None = None,
    window: int | None = None,
    scale: str | None = None,
    grouped: Literal["repeated", "tiled"] | None = None,
    mask: Literal["true-attends", "true-masks", "added"] | None = None,
    alignment: Literal["bottom-right", "top-left"] | None = None,
    position: Literal["relative", "rotary", "alibi", "none"] | None = None,
    loss: Literal["next", "same"] | None = None,
    padding: bool = False,
    cache: bool = False,
    like: str | None = None,
    args: str | None = None,
    call: str | None = None,
    adapter: Path | None = None,
    thorough: bool = False,
    seed: int = 0,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    device: str = "cpu",
    family: str | None = None,
    results: Path | None = None,
    num_workers: int = 2,
    time_limit: float = 60.0,
    fresh: bool = False,
    all_findings: bool = False,
    junit: Path | None = None,
    sarif: Path | None = None,
    html: Path | None = None,
    allow: Path | None = None,
    repro: Path | None = None,
    json: bool = False,
) -> int:
    """Run attention code, test what it does, and name the likely bug.

    The contract and the options state which properties are required. Each required property passes or fails; other
    properties are only measured ("described"). Some are always required: for example, finite inputs give finite
    outputs, and a KV cache gives the outputs of the full sequence (docs/check.md lists them). The exit code is 1 if a
    required property fails or cannot be tested. The target is imported and run with your permissions.

    Examples:

        qkv check model.py:CausalSelfAttention --contract textbook
        qkv check mylayers:Attention --kind causal --args '{"dim": 64, "heads": 4}'
        qkv check torch.nn:MultiheadAttention
        qkv check kernel.py:attention --like torch       # compare with PyTorch
        qkv check --adapter jax_layer.py --kind causal   # you write the call
        qkv check model.py:Attention --allow known.toml  # known failures
        qkv check hf:LlamaForCausalLM                    # a small random model

    Parameters
    ----------
    target
        What to check: file.py:Name or package.module:Name (a function of q, k and v, a class or a module instance), a
        checkpoint folder, hf:Architecture (a small model with random weights), or hf:all (every architecture in the
        installed transformers).
    contract
        A named set of required properties. textbook: causal, scale 1/√d, softmax over keys. encoder: the same, but
        bidirectional. The options below add properties.
    kind
        Which tokens a token may attend to.
    window
        With --kind window: how many tokens a token may attend to, including itself.
    scale
        The factor on q·k: "head" for 1/√d (d is the head dim), or a number.
    grouped
        Grouped-query attention: how query heads share key heads, repeated (0 0 1 1) or tiled (0 1 0 1).
    mask
        What a mask argument contains: True = may attend, True = may not attend, or numbers added to the scores.
    alignment
        How a causal mask is aligned when there are more keys than queries.
    position
        relative: only distances between tokens matter. rotary: relative, by rotating the whole head dim of queries and
        keys (RoPE). alibi: relative, by a bias with slopes 2^(−8/h), 2^(−16/h), … none: the order does not matter.
    loss
        For a language-model loss. next: the loss shifts the labels by one itself. same: the labels are already shifted.
    padding
        Require that padding does not change the outputs of the real tokens.
    cache
        Require a KV cache that gives the outputs of the full sequence.
    like
        A reference: package.module:Name, file.py:Name, or torch (scaled_dot_product_attention for a function,
        nn.MultiheadAttention for a layer). The target must have the properties of the reference and, with the same
        weights, the same outputs and gradients.
    args
        Constructor arguments, as JSON; missing ones are guessed.
    call
        If qkv guesses wrong: either what the target is (attention, loss, accumulate for gradient accumulation, or split
        for a train/validation split), or how to call it, with the name f: "f(x, mask=blocked)[0]". Names of inputs:
        tokens, x, q, k, v. Names of masks: allowed (True = may attend), blocked (True = may not), added (0 and −∞).
        Names of padding masks: present (True = real token), absent (True = padding).
    adapter
        A Python file with functions that build and call the target (build, call, mask, start_cache, step), for code
        that qkv cannot call itself: NumPy, JAX, C++, paged caches, audio. You can then omit TARGET.
    family
        With hf:all: check only one kind of architecture, such as causal, masked (masked language models),
        encoder-decoder, encoder, speech, video or "image classifier".
    results
        With hf:all: the folder for the results, which lets an interrupted run resume. Default: a folder in your cache
        directory.
    num_workers
        With hf:all: the number of processes.
    thorough
        Also test lengths up to 4,096 and random shapes (drawn by Hypothesis); takes minutes.
    seed
        Random seed for inputs and shapes.
    dtype
        Test the precision in this dtype only: the error must be at most about three times that of a naive
        implementation.
    device
        The device to run on, such as cuda.
    time_limit
        Time limit in seconds for importing the target, for one call, or for one architecture of hf:all.
    fresh
        With hf:all: delete earlier results and start again.
    all_findings
        Show all findings, including checks that passed or do not apply.
    junit
        Write the findings to this file as JUnit XML.
    sarif
        Write failures and warnings to this file as SARIF 2.1.0, for code scanning.
    html
        Write the report to this file as a self-contained HTML page.
    allow
        A TOML file of known failures, each with a reason and an expiry date. They become warnings until they expire.
    repro
        Write a stand-alone script to this file that needs only torch and fails on the smallest counter-example found.
    json
        Print the report as JSON.
    """
    if target is None and adapter is None:
        raise ValueError("name a target: qkv check file.py:Name")
    if target == "hf:all":
        return _check_all(family, results, num_workers, time_limit, fresh, json)
    if family is not None or results is not None or fresh:
        raise ValueError(f"--family, --results and --fresh need the target hf:all; got {target}")
    if (kind == "window") != (window is not None):
        raise ValueError("--kind window and --window go together: --kind window --window 128")
    from qkv._files import check_writable, write_atomic
    from qkv.check import run
    from qkv.check.allow_list import apply_allow_list, read_allow_list
    from qkv.check.calling.guard import stdout_to_stderr
    from qkv.check.calling.guard import time_limit as limit_time
    from qkv.check.ci import junit_xml, sarif_json
    from qkv.check.render import html_page, terminal_report

    for file in filter(None, (junit, sarif, html, repro)):
        check_writable(file)
    allowed = () if allow is None else read_allow_list(allow)
    with limit_time(max(time_limit, 1800.0) if thorough else time_limit), stdout_to_stderr(with_c_code=True):
        report = run(
            target,
            contract,
            arguments=_parse_arguments(args),
            call=call,
            adapter=adapter,
            thorough=thorough,
            seed=seed,
            dtype=dtype,
            device=device,
            like=like,
            kind=kind,
            window=window,
            scale=_parse_scale(scale),
            grouped=grouped,
            mask=mask,
            alignment=alignment,
            position=position,
            loss=loss,
            padding=padding or None,
            cache=cache or None,
        )
    checked = target or str(adapter)
    report, unused = apply_allow_list(report, checked, allowed)
    for entry in unused:
        err().print(f"the allow-list entry for {entry.check} is not needed any more: {entry.reason}", style="yellow")
    for file, write in ((junit, junit_xml), (sarif, lambda found: sarif_json(found, checked)), (html, html_page)):
        if file is not None:
            write_atomic(file, write(report))
            err().print(f"wrote {file}", style="dim", markup=False, soft_wrap=True)
    if repro is not None and report.failed:
        from qkv.check.repro import make_repro

        try:
            write_atomic(repro, make_repro(checked, report, report.contract, _parse_arguments(args), call))
            err().print(f"{repro} fails on the counter-example: python {repro}")
        except ValueError as error:
            err().print(f"no script was written: {error}", style="yellow")
    if json:
        print_json(report.to_dict())
    else:
        out().print(terminal_report(report, all_findings=all_findings))
    return 0 if report.ok else 1


def _parse_scale(scale: str | None) -> str | float | None:
    if scale is None or scale == "head":
        return scale
    try:
        number = float(scale)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f'--scale must be "head" or a number; got {scale!r}')
    return number


def _parse_arguments(args: str | None) -> dict[str, object]:
    if args is None:
        return {}
    try:
        arguments = json_library.loads(args)
    except json_library.JSONDecodeError as error:
        raise ValueError(f"--args must be a JSON object such as '{{\"dim\": 64}}'; {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"--args must be a JSON object such as '{{\"dim\": 64}}'; got {args}")
    return arguments


# -- hf:all ------------------------------------------------------------------------------------------------------------

OUTCOME_STYLES: dict[Outcome, tuple[str, str]] = {
    "sound": ("✓", "green"),
    "alarm": ("✗", "bold red"),
    "not built": ("–", "dim"),
    "not called": ("–", "dim"),
    "too slow": ("–", "yellow"),
    "died": ("–", "yellow"),
}


def _check_all(
    family: str | None, results: Path | None, num_workers: int, time_limit: float, fresh: bool, json: bool
) -> int:
    """Check every architecture; exit code 1 if one fails a check."""
    from qkv.check.calling.hugging_face import FAMILIES, architectures
    from qkv.check.sweep import sweep

    names = architectures()
    if family is not None:
        names = {name: its_family for name, its_family in names.items() if its_family == family}
        if not names:
            raise ValueError(f"--family must be one of {', '.join(FAMILIES)}; got {family!r}")
    folder = default_results_folder() if results is None else results
    if fresh:
        for old in folder.glob("transformers-*.jsonl"):
            old.unlink()
    err().print(f"{len(names)} architectures, {num_workers} processes; results are kept in {folder}")

    def show_progress(row: SweepRow, done: int, count: int) -> None:
        err().print(f"{done}/{count}  {row.outcome:<10}  {row.name}  {row.seconds:.1f} s", style="dim")

    try:
        found = sweep(names, folder, num_workers=num_workers, time_limit=time_limit, on_result=show_progress)
    except KeyboardInterrupt:
        err().print("interrupted: the same command resumes from here")
        raise
    if json:
        print_json(found.to_dict())
    else:
        _show_sweep(found)
    return 0 if found.ok else 1


def default_results_folder() -> Path:
    """The folder that keeps the results of hf:all by default."""
    return cache_folder() / "check"


def _show_sweep(found: SweepResult) -> None:
    """The table, then the failed checks with their evidence, then the counts."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1))
    for title in ("", "architecture", "family", "kind", "passed", "seconds"):
        table.add_column(title, no_wrap=title != "kind", justify="right" if title in ("passed", "seconds") else "left")
    for row in found.rows:
        sign, style = OUTCOME_STYLES[row.outcome]
        kind = Text(row.kind or f"{row.outcome}: {row.reason[:60]}")
        passed = str(row.passed) if row.passed else ""
        table.add_row(Text(sign, style=style), row.name, row.family, kind, passed, f"{row.seconds:.1f}")
    out().print(table)
    for row in found.rows:
        for failure in row.findings.get("fail", []):
            out().print(Text(f"✗ {row.name}: {failure}", style="red"))
    for family in dict.fromkeys(row.family for row in found.rows):
        counts = Counter(row.outcome for row in found.rows if row.family == family)
        out().print(f"{family}: {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}")
    counts = ", ".join(f"{found.count(outcome)} {outcome}" for outcome in OUTCOME_STYLES if found.count(outcome))
    out().print(f"[bold]transformers {found.versions['transformers']}: {counts}[/bold]")
