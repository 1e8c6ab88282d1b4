"""`qkv check`: what kind of layer is it, which properties hold, which break, and what the mistake probably is."""

import json as json_library
from pathlib import Path
from typing import Literal

from qkv.cli.console import err, out, print_json


def check(
    target: str | None = None,
    *,
    contract: Literal["none", "course", "encoder"] = "none",
    kind: Literal["causal", "bidirectional", "window", "prefix", "chunked"] | None = None,
    window: int | None = None,
    scale: str | None = None,
    grouped: Literal["repeated", "tiled"] | None = None,
    mask: Literal["true-attends", "true-masks", "added"] | None = None,
    alignment: Literal["bottom-right", "top-left"] | None = None,
    position: Literal["relative"] | None = None,
    padding: bool = False,
    cache: bool = False,
    args: str | None = None,
    call: str | None = None,
    zoo: bool = False,
    family: str | None = None,
    results: Path | None = None,
    workers: int = 2,
    seconds: float = 60.0,
    fresh: bool = False,
    all_findings: bool = False,
    junit: Path | None = None,
    json: bool = False,
) -> int:
    """Judge an implementation of attention by what it does.

    Examples: `qkv check model.py:CausalSelfAttention --contract course`, `qkv check mypackage.layers:Attention
    --kind causal --cache --args '{"dim": 64, "heads": 4}'`, `qkv check torch.nn:MultiheadAttention`.

    What is promised is judged, what is not is described. Always judged: NaN on finite input, dependence on the rest of
    the batch, randomness in eval, changed inputs, its cache against itself, parameters that nothing reaches. Exit code
    1 if anything fails. The file or module that you name is run.

    Parameters
    ----------
    target
        file.py:Name or package.module:Name: a function of q, k, v, a class, or an instance; a checkpoint's folder;
        hf:Architecture, built small with random weights; hf:all, every architecture of the installed transformers.
    contract
        Promises by name. course: causal, 1/√d, softmax over keys. encoder: the same, seeing everything.
    kind
        Who sees whom.
    window
        With --kind window: how many tokens a query sees, itself included.
    scale
        What q·k is multiplied by: "head" for d^-½, or a number.
    grouped
        How heads of queries share heads of keys.
    mask
        What True means in a mask that is handed in.
    alignment
        Where a causal mask stands if there are more keys than queries.
    position
        relative: only distances between tokens may matter.
    padding
        Padding, wherever it stands, must not matter.
    cache
        It has a cache, and it must agree with the whole.
    args
        Arguments for the class, as JSON; what is not given is guessed.
    call
        How it is called, where that cannot be guessed: "f(x, mask=blocked)[0]". Inputs are tokens, x, or q, k, v; masks
        are allowed, blocked or added; padding is present or absent.
    zoo
        Instead of a target: check every known mistake, and say which are caught.
    family
        With hf:all: only causal, masked, encoder-decoder, encoder, "image classifier" or "image encoder".
    results
        With hf:all: the folder that keeps results, so that an interrupted run goes on; by default in the user's cache.
    workers
        With hf:all: how many processes.
    seconds
        With hf:all: the most that one architecture may take.
    fresh
        With hf:all: forget earlier results.
    all_findings
        Show also what does not apply.
    junit
        Write the findings as JUnit XML to this file.
    json
        Print the report as JSON.
    """
    if zoo:
        return _zoo(json)
    if target is None:
        raise ValueError("name a target: qkv check file.py:Name, or qkv check --zoo")
    if target == "hf:all":
        from qkv.cli.check_all import check_all

        return check_all(family=family, results=results, workers=workers, seconds=seconds, fresh=fresh, json=json)
    from qkv.check import named_contract, run
    from qkv.check.junit import junit as as_junit
    from qkv.check.terminal import render

    promised = named_contract(
        contract,
        kind=kind,
        window=window,
        scale=_scale(scale),
        grouped=grouped,
        mask=mask,
        alignment=alignment,
        position=position,
        padding=padding or None,
        cache=cache or None,
    )
    if target.startswith("hf:"):
        from qkv.check.hugging_face import contract_of

        promised = contract_of(target, promised)
    report = run(target, promised, arguments=_arguments(args), call=call)
    if junit is not None:
        scratch = junit.with_name(f".{junit.name}.part")
        scratch.write_text(as_junit(report), encoding="utf-8")
        scratch.replace(junit)
    if json:
        print_json(report.as_dict())
    else:
        out().print(render(report, everything=all_findings))
    return 0 if report.ok else 1


def _zoo(json: bool) -> int:
    """Walk through the zoo and say which mutants are caught, and by what."""
    from qkv.check.zoo import MUTANTS, walk

    rows = []
    with err().status("walking through the zoo") as status:
        for mutant, report in walk():
            rows.append((mutant, report))
            status.update(f"{len(rows)} of {len(MUTANTS)}: {mutant.name}")
    if json:
        found = [
            {"name": m.name, "family": m.family, "caught": not r.ok, "by": [f.check for f in r.failed]} for m, r in rows
        ]
        print_json(found)
    else:
        for mutant, report in rows:
            sign = "[red]missed[/red]" if report.ok else "[green]caught[/green]"
            by = ", ".join(finding.check for finding in report.failed)
            out().print(f"{sign}  {mutant.name} ({mutant.family}): {by}")
        caught = sum(not report.ok for _, report in rows)
        out().print(f"\n{caught} of {len(rows)} mutants are caught")
    return 0 if all(not report.ok for _, report in rows) else 1


def _scale(said: str | None) -> str | float | None:
    if said is None or said == "head":
        return said
    try:
        return float(said)
    except ValueError:
        raise ValueError(f'a scale is "head" or a number; got {said!r}') from None


def _arguments(said: str | None) -> dict[str, object]:
    if said is None:
        return {}
    try:
        arguments = json_library.loads(said)
    except json_library.JSONDecodeError as error:
        raise ValueError(f"--args is a JSON object such as '{{\"dim\": 64}}'; {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"--args is a JSON object such as '{{\"dim\": 64}}'; got {said}")
    return arguments
