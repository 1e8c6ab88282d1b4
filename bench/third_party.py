"""Check attention code of other packages and print a table: target, command, verdict.

    python bench/third_party.py [--json results.json] [--only timm]

The packages are not dependencies of qkv: install those that you want to check, `pip install --no-deps timm …`. A target
whose package is absent is listed as "absent". Each target runs in a process of its own, with a limit of four minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).with_suffix(".txt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--only", default="", help="targets that contain this text")
    options = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    warnings.simplefilter("ignore")
    import qkv.check  # noqa: F401

    lines = [line for line in TARGETS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    rows = [check(line) for line in lines if options.only in line]
    present = [row for row in rows if row["verdict"] != "absent"]
    refused = [row for row in present if row["verdict"] == "not invoked"]
    alarms = sum(row["verdict"] == "alarm" for row in present)
    print(f"\n{len(present)} targets, {len(refused)} not invoked, {alarms} alarms, {len(rows) - len(present)} absent")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    return 0


def check(line: str) -> dict[str, Any]:
    """One target: its command, the verdict and what it said."""
    command = ["check", *shlex.split(line)]
    start = time.perf_counter()
    verdict, said = run_apart([*command, "--json"])
    row = {"command": f"qkv check {line}", "verdict": verdict, "said": said}
    print(f"{verdict:<12} {time.perf_counter() - start:5.1f} s  {row['command']}", flush=True)
    for line in said:
        print(f"                       {line}", flush=True)
    return row


def run_apart(command: list[str], limit: float = 240.0) -> tuple[str, list[str]]:
    """Run one command of qkv in a process of its own, forked so that torch is imported once."""
    from qkv.cli.main import run

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = run(command)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        end = time.monotonic() + limit
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "not invoked", [f"no answer within {limit:g} s"]
            time.sleep(0.05)
        out.seek(0)
        err.seek(0)
        return read(out.read(), err.read())


def read(out: str, err: str) -> tuple[str, list[str]]:
    """The verdict, and what failed or why it could not be called."""
    try:
        report = json.loads(out)
    except json.JSONDecodeError:
        lines = err.strip().splitlines()
        last = lines[-1][:300] if lines else "no output"
        return ("absent" if "there is no module" in last else "not invoked"), [last]
    findings = [finding for finding in report["findings"] if finding["verdict"] == "fail"]
    failed = [f"{finding['check']}: {finding['evidence'][:140]}" for finding in findings]
    return ("alarm" if failed else "sound"), [report["how"][:200], *failed]


if __name__ == "__main__":
    sys.exit(main())
