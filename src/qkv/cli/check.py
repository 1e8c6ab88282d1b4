"""`qkv check`: what kind of layer is it, which properties hold, which break, and what the mistake probably is."""

import json as json_library
from pathlib import Path
from typing import Literal

from qkv.cli.console import out, print_json
from qkv.cli.grade import grade_submissions, list_rubrics
from qkv.cli.mutants import check_mutant, check_zoo


def check(
    target: str | None = None,
    /,
    *more: str,
    contract: Literal["none", "course", "encoder"] = "none",
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
    zoo: bool = False,
    matrix: bool = False,
    family: str | None = None,
    results: Path | None = None,
    workers: int = 2,
    seconds: float = 60.0,
    fresh: bool = False,
    all_findings: bool = False,
    junit: Path | None = None,
    html: Path | None = None,
    rubric: str | None = None,
    rubrics: bool = False,
    csv: Path | None = None,
    seed: int | None = None,
    jobs: int = 2,
    unsafe: bool = False,
    json: bool = False,
) -> int:
    """Judge an implementation of attention by what it does.

    What is promised is judged, what is not is described. Always judged: NaN on finite input, dependence on the rest of
    the batch, randomness in eval, changed inputs, its cache against itself, parameters that nothing reaches. Exit code
    1 if anything fails. The file or module that you name is run, with your rights.

    Examples:

        qkv check model.py:CausalSelfAttention --contract course
        qkv check mypackage.layers:Attention --kind causal --cache --args '{"dim": 64, "heads": 4}'
        qkv check torch.nn:MultiheadAttention
        qkv check --rubric causal-self-attention submissions/*.py --csv grades.csv

    Parameters
    ----------
    target
        file.py:Name or package.module:Name: a function of q, k, v, a class, or an instance; a checkpoint's folder;
        hf:Architecture, built small with random weights; hf:all, every architecture of the installed transformers.
    contract
        What it promises, by name. course: causal, 1/√d, softmax over keys. encoder: the same, seeing everything. The
        options below add to it.
    kind
        Which tokens a token may see.
    window
        With --kind window: how many tokens a token sees, itself included.
    scale
        What q·k is multiplied by: "head" for d^-½, or a number.
    grouped
        How heads of queries share heads of keys: repeated (0 0 1 1) or tiled (0 1 0 1).
    mask
        What True means in a mask that is handed in.
    alignment
        Where a causal mask stands if there are more keys than queries.
    position
        relative: only distances between tokens may matter. rotary: the same, by turning all of a query's and a key's
        width. alibi: the same, by a bias with slopes 2^(−8/h), 2^(−16/h), …. none: the order must not matter.
    loss
        Of a loss: next, it shifts the tokens itself; same, its labels come shifted already.
    padding
        Padding, wherever it stands, must not matter.
    cache
        It has a cache; with it the outputs must be those of the whole text at once.
    like
        A reference: torch, package.module:Name or file.py:Name. What it does is promised, and with its weights the
        outputs and gradients must be its own.
    args
        Arguments for the class, as JSON; what is not given is guessed.
    call
        What cannot be guessed: what the target is (attention, loss, accumulate or split), or how it is called, such as
        "f(x, mask=blocked)[0]". Inputs are tokens, x, or q, k, v; masks are allowed, blocked or added; padding is
        present or absent.
    zoo
        Instead of a target: check every known mistake, and say which are caught and how they are named. With the name
        of one (`qkv check --zoo mask strict`), show its code and what catches it.
    matrix
        With --zoo: print the table of docs/zoo.md, which check catches which mutant.
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
        Show also the checks that do not apply.
    junit
        Write the findings as JUnit XML to this file.
    html
        Write the report as one offline page to this file.
    more
        With --rubric: further submissions.
    rubric
        Grade the files named, by the points of this rubric: a .toml file, or a name that --rubrics lists. Submissions
        run walled off (no network, no files, limits of time and memory); what they hand back is judged outside.
    rubrics
        List the rubrics that come with qkv, with what a student supplies.
    csv
        With --rubric: write the grades to this file.
    seed
        With --rubric: draw the inputs of an earlier grading again; by default they are fresh.
    jobs
        With --rubric: how many submissions are graded at once.
    unsafe
        With --rubric: run submissions with your own rights where this system allows no walls.
    json
        Print the report, or the grades, as JSON.
    """
    if rubrics:
        return list_rubrics(json)
    if rubric is not None:
        files = [] if target is None else [target, *more]
        return grade_submissions(rubric, files, csv=csv, json=json, seed=seed, jobs=jobs, unsafe=unsafe)
    if zoo and target is not None:
        if matrix:
            raise ValueError("--matrix prints the whole zoo: leave the name of the mutant out")
        return check_mutant(" ".join((target, *more)), json, all_findings)
    if more or csv is not None or unsafe or seed is not None:
        raise ValueError(
            "several files, --csv, --seed and --unsafe belong to grading: say by which --rubric (--rubrics lists them)"
        )
    if matrix and not zoo:
        raise ValueError("--matrix goes with --zoo: it prints the zoo as a table")
    if zoo:
        return check_zoo(json, matrix)
    if target is None:
        raise ValueError("name a target: qkv check file.py:Name, or qkv check --zoo")
    if target == "hf:all":
        from qkv.cli.check_all import check_all

        return check_all(family=family, results=results, workers=workers, seconds=seconds, fresh=fresh, json=json)
    if family is not None or results is not None or fresh:
        raise ValueError(f"--family, --results and --fresh belong to hf:all; got the target {target}")
    if (kind == "window") != (window is not None):
        raise ValueError("--kind window and --window go together: --kind window --window 128")
    from qkv._files import writable, write_whole
    from qkv.check import named_contract, run
    from qkv.check.junit import junit as as_junit
    from qkv.check.page import page
    from qkv.check.terminal import render

    for file in filter(None, (junit, html)):
        writable(file)
    promised = named_contract(
        contract,
        kind=kind,
        window=window,
        scale=_scale(scale),
        grouped=grouped,
        mask=mask,
        alignment=alignment,
        position=position,
        loss=loss,
        padding=padding or None,
        cache=cache or None,
    )
    if target.startswith("hf:"):
        from qkv.check.hugging_face import contract_of

        promised = contract_of(target, promised)
    report = run(target, promised, arguments=_arguments(args), call=call, like=like)
    if junit is not None:
        write_whole(junit, as_junit(report))
    if html is not None:
        write_whole(html, page(report))
    if json:
        print_json(report.as_dict())
    else:
        out().print(render(report, everything=all_findings))
    return 0 if report.ok else 1


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
