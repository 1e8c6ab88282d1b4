"""API of the Check page: check an attention implementation in a worker process.

Built-in examples can always be checked. The user's own code runs only if the studio was started with --allow-code.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from qkv._files import json_safe
from qkv._workers import CancelledError, Worker, WorkerError
from qkv.check import CONTRACTS, Contract, make_contract
from qkv.check.mutants import MUTANTS, find_mutant
from qkv.check.report import BUG_FAMILIES
from qkv.studio.jobs import Job
from qkv.studio.responses import get_route, post_route
from qkv.studio.server import Studio

# what can be checked without permission: code of this package and of torch
BUILT_IN = {
    "qkv:attention": "qkv's attention, a function of q, k, v",
    "qkv:MultiHeadAttention": "qkv's layer, with a KV cache",
    "torch.nn.functional:scaled_dot_product_attention": "torch's fused function",
    "torch.nn:MultiheadAttention": "torch's layer",
    "torch.nn:TransformerEncoderLayer": "torch's encoder layer",
    "qkv.models:GPT": "a whole decoder of qkv",
}
NOT_ALLOWED = (
    "this studio does not run your own code, because it was started without --allow-code. Stop it and start it again "
    "with qkv studio --allow-code; the built-in examples can be checked without it"
)
TASK = "qkv.studio.tasks:run_check"
MAX_TEXT = 500  # characters of a name
TIME_LIMITS = (1.0, 60.0, 600.0)  # seconds of a check: least, default, most
PROMISE_HELP = {
    "kind": "which tokens a query may see",
    "window": "with kind window: how many tokens a query sees",
    "scale": "what q·k is multiplied by: head for 1/√d, or a number",
    "softmax": "the axis over which weights sum to one",
    "grouped": "how query heads share key heads",
    "mask": "what True means in a mask argument",
    "alignment": "where a causal mask stands if there are more keys than queries",
    "padding": "padding must not change the output",
    "cache": "the KV cache agrees with the full forward pass",
    "position": "what positions may do",
    "loss": "which token a position predicts",
}
NO_OPTION = ("softmax",)  # has no command-line option: it comes with a named contract
MAX_FILES, MAX_FILE_BYTES, MAX_TARGETS = 100, 200_000, 200  # of the search for targets
TARGET_WORDS = ("attention", "attn", "transformer", "decoder", "encoder", "gpt", "vit")


def routes(studio: Studio) -> list[BaseRoute]:
    """The routes of the Check page."""
    api = CheckApi(studio)
    return [get_route("/api/check", api.about), post_route("/api/check/run", api.run)]


class CheckApi:
    """The handlers of the Check page.

    Examples share a process. The user's code gets a new process for each check; the next one is started ahead, because
    importing torch takes seconds.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.examples, self.user_code = Worker(TASK), Worker(TASK)
        studio.on_stop += [self.examples.close, self.user_code.close]

    def about(self, request: Request) -> dict[str, Any]:
        """What can be checked, and the promises of a contract."""
        self.examples.start()
        if self.studio.allow_code:
            self.user_code.start()
        families: dict[str, list[dict[str, str]]] = {}
        for mutant in MUTANTS.values():
            families.setdefault(mutant.family, []).append({"name": mutant.name, "contract": str(mutant.contract)})
        kinds = _promise_kinds()
        return {
            "allow_code": self.studio.allow_code,
            "folder": os.getcwd(),
            "targets": find_targets(Path.cwd()) if self.studio.allow_code else [],
            "built_in": [{"target": target, "description": text} for target, text in BUILT_IN.items()],
            "families": [{"name": name, "fix": BUG_FAMILIES[name], "mutants": each} for name, each in families.items()],
            "time_limits": TIME_LIMITS,
            "contracts": [{"name": name, "description": str(contract)} for name, contract in CONTRACTS.items()],
            "promises": [
                {"name": name, "help": PROMISE_HELP[name], "kind": kind, "choices": choices}
                for name, (kind, choices) in kinds.items()
                if name not in NO_OPTION
            ],
        }

    def run(self, body: dict[str, Any]) -> Any:
        """Start the job that checks a mutant or a target."""
        name = body.get("mutant")
        request = {"mutant": find_mutant(str(name)).name} if name else _parse_target(body)
        time_limit = _parse_time_limit(body.get("time_limit", TIME_LIMITS[1]))
        if _is_built_in(request):
            job = self.studio.jobs.start("check", lambda job: _run_worker(self.examples, request, job, time_limit))
        elif self.studio.allow_code:
            work = lambda job: self._run_user_code(request, job, time_limit)  # noqa: E731
            job = self.studio.jobs.start("check", work, lane="check-user-code")
        else:
            return JSONResponse({"error": NOT_ALLOWED}, 403)
        return {"job": job.id}

    def _run_user_code(self, request: dict[str, Any], job: Job, time_limit: float) -> dict[str, Any]:
        try:
            return _run_worker(self.user_code, request, job, time_limit)
        finally:
            self.user_code.stop()
            with contextlib.suppress(CancelledError):  # the studio is closing
                self.user_code.start()


def _run_worker(worker: Worker, request: dict[str, Any], job: Job, time_limit: float) -> dict[str, Any]:
    report: dict[str, Any] = {}
    try:
        for message in worker.request(request, cancelled=job.cancel.is_set, time_limit=time_limit):
            if message.get("started") is True:
                job.report(started=True)
            if isinstance(message.get("report"), dict):
                report = message["report"]
        if not report:
            raise WorkerError("the process ended without a report")
    except WorkerError:
        job.report(printed=worker.printed)
        raise
    printed = "" if _is_built_in(request) else worker.printed
    return json_safe({**report, **_reproduce(request), "printed": printed})


def _parse_target(body: dict[str, Any]) -> dict[str, Any]:
    """A target with its contract, validated without running anything."""
    request = {part: body.get(part) or "" for part in ("target", "call", "like")}
    for part, text in request.items():
        if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
            raise ValueError(f"{part} must be one line of at most {MAX_TEXT} characters")
    request = {part: text.strip() for part, text in request.items()}
    if ":" not in request["target"]:
        raise ValueError(f"a target is file.py:Name or package.module:Name, got {request['target']!r}")
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise ValueError('arguments must be a JSON object such as {"dim": 64}')
    return {**request, "arguments": arguments, "contract": parse_contract(body.get("contract") or {})}


def _is_built_in(request: dict[str, Any]) -> bool:
    """Whether the check runs only code of qkv and torch."""
    if request.get("mutant"):
        return True
    return request["target"] in BUILT_IN and (request["like"] in ("", "torch") or request["like"] in BUILT_IN)


def _parse_time_limit(value: Any) -> float:
    least, _, most = TIME_LIMITS
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"time_limit must be from {least:g} to {most:g} seconds, got {value!r}")
    return float(value)


def _reproduce(request: dict[str, Any]) -> dict[str, str]:
    """The command and the Python lines that give the same report."""
    if request.get("mutant"):
        lines = ["from qkv.check.mutants import check_mutant, find_mutant", ""]
        lines.append(f"report = check_mutant(find_mutant({request['mutant']!r}))")
        lines.append("print(report.ok, report.diagnosis)")
        return {"command": shlex.join(["qkv", "mutants", request["mutant"]]), "python": "\n".join(lines)}
    options, arguments = _contract_code(request["contract"])
    words = ["qkv", "check", request["target"], *options]
    if request["arguments"]:
        words += ["--args", json.dumps(request["arguments"])]
        arguments += f", arguments={request['arguments']!r}"
    for part in ("call", "like"):
        if request[part]:
            words += [f"--{part}", request[part]]
            arguments += f", {part}={request[part]!r}"
    lines = ["from qkv import check", "", f"report = check.run({request['target']!r}{arguments})", "print(report.ok)"]
    return {"command": shlex.join(words), "python": "\n".join(lines)}


# Contracts


def parse_contract(chosen: Any) -> dict[str, Any]:
    """The promises of a contract by name, from what the page sends: {"name": "textbook", "kind": "causal", ...}."""
    if not isinstance(chosen, dict):
        raise ValueError('a contract must be an object such as {"name": "textbook"}')
    name = chosen.get("name", "none")
    if name not in CONTRACTS:
        raise ValueError(f"expected one of the contracts {', '.join(CONTRACTS)}, got {name!r}")
    kinds, promises = _promise_kinds(), {}
    for part, value in chosen.items():
        if part == "name" or value in (None, "", False):
            continue
        if part not in kinds or part in NO_OPTION:
            raise ValueError(f"expected one of the promises {', '.join(PROMISE_HELP)}, got {part!r}")
        promises[part] = _parse_promise(part, value, *kinds[part])
    contract = make_contract(name, **promises)
    return {part.name: getattr(contract, part.name) for part in fields(Contract)}


def _promise_kinds() -> dict[str, tuple[str, list[str]]]:
    """The kind of each promise (choice, flag or number) and its choices, from the annotations of Contract."""
    kinds = {}
    hints = get_type_hints(Contract)
    for part in fields(Contract):
        options = get_args(hints[part.name])
        choices = [choice for option in options for choice in get_args(option)]
        choices = choices or [option for option in options if isinstance(option, str)]
        kind = "choice"
        if bool in options:
            kind = "flag"
        elif int in options or float in options:
            kind = "number"
        kinds[part.name] = (kind, choices)
    return kinds


def _parse_promise(part: str, value: Any, kind: str, choices: list[str]) -> Any:
    if kind == "flag" and value is True:
        return True
    if isinstance(value, str) and value in choices:
        return value
    if kind == "number" and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if part == "window" and number.is_integer() and 1 <= number <= 10**6:
            return int(number)
        if part != "window" and math.isfinite(number):
            return number
    expected = [*choices, *(["true"] if kind == "flag" else []), *(["a number"] if kind == "number" else [])]
    raise ValueError(
        f"{part}: expected {' or '.join(filter(None, [', '.join(expected[:-1]), expected[-1]]))}, got {value!r}"
    )


def _contract_code(contract: dict[str, Any]) -> tuple[list[str], str]:
    """The options of `qkv check` and the arguments of `check.run` that make the same contract, as short as possible."""
    name, rest = "none", {part: value for part, value in contract.items() if value is not None}
    for other, known in CONTRACTS.items():
        values = {part: getattr(known, part) for part in contract}
        if all(contract[part] is not None for part, value in values.items() if value is not None):
            changes = {part: value for part, value in contract.items() if value != values[part]}
            if len(changes) < len(rest):
                name, rest = other, changes
    options = [] if name == "none" else ["--contract", name]
    for part, value in rest.items():
        options += [f"--{part}"] if value is True else [f"--{part}", str(value)]
    if name == "none" and not rest:
        return options, ""
    promises = "".join(f", {part}={value!r}" for part, value in rest.items())
    return options, promises if name == "none" else f', "{name}"{promises}'


# Targets in the user's folder


def find_targets(folder: Path) -> list[str]:
    """file.py:Name of classes with a forward and functions of q, k, v; files are parsed, never imported.

    Names that contain "attention" or the like come first.
    """
    targets: list[tuple[int, str]] = []
    for path in sorted(folder.glob("*.py"))[:MAX_FILES]:
        try:
            if path.stat().st_size > MAX_FILE_BYTES or not path.is_file():
                continue
            tree = ast.parse(path.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and _could_be_attention(node):
                named = any(word in node.name.lower() for word in TARGET_WORDS)
                targets.append((0 if named else 1, f"{path.name}:{node.name}"))
    return [target for _, target in sorted(targets, key=lambda each: each[0])][:MAX_TARGETS]


def _could_be_attention(node: ast.ClassDef | ast.FunctionDef) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(isinstance(part, ast.FunctionDef) and part.name in ("forward", "__call__") for part in node.body)
    initials = {argument.arg.lower()[:1] for argument in node.args.posonlyargs + node.args.args}
    return {"q", "k", "v"} <= initials
