"""One architecture after the other, in a process of its own: names come in by line, results go out as lines of JSON.

Run by `qkv.check.sweep`; whatever an architecture prints goes to nowhere, and what kills this process kills one result.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from typing import Any

MEMORY = 8 << 30  # bytes of address space


def judged(name: str, family: str) -> dict[str, Any]:
    """The result of one architecture, as data."""
    from qkv.check import hugging_face
    from qkv.check.run import run

    begin = time.perf_counter()
    row: dict[str, Any] = {"name": name, "family": family}
    try:
        hugging_face.build(name)
    except Exception as error:
        return row | {"outcome": "not built", "said": _said(error), "seconds": time.perf_counter() - begin}
    try:
        report = run(f"hf:{name}")
    except Exception as error:
        return row | {"outcome": "not called", "said": _said(error), "seconds": time.perf_counter() - begin}
    findings: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.verdict in ("fail", "warn", "inconclusive"):
            findings.setdefault(finding.verdict, []).append(f"{finding.check}: {finding.evidence}")
    return row | {
        "outcome": "sound" if report.ok else "alarm",
        "kind": report.kind,
        "how": report.how,
        "passed": sum(finding.verdict == "pass" for finding in report.findings),
        "findings": findings,
        "seconds": time.perf_counter() - begin,
    }


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def main() -> None:
    """Answer until the input ends."""
    import torch

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        name, family = json.loads(line)
        answers.write(json.dumps(judged(name, family)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
