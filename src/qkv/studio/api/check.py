"""The Check room: an implementation of attention, judged in a process of its own.

Our own examples may always be checked. A person's own code is run only if the studio was started with --allow-code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from qkv.studio.answers import asking, reading
from qkv.studio.api.check_contract import choices, promised, python_of, words_of
from qkv.studio.api.check_found import found
from qkv.studio.jobs import CancelledError, Job
from qkv.studio.state import Studio
from qkv.studio.work.post import EndedError, Post

# what may be checked without permission: this package's and torch's own code
SOUND = {
    "qkv:attention": "qkv's attention, a function of q, k, v",
    "qkv:MultiHeadAttention": "qkv's layer, with a cache",
    "torch.nn.functional:scaled_dot_product_attention": "torch's fused function",
    "torch.nn:MultiheadAttention": "torch's layer",
    "torch.nn:TransformerEncoderLayer": "torch's encoder layer",
    "qkv.models:GPT": "a whole decoder of qkv's",
}
REFUSED = (
    "this studio does not run your own code: it was started without --allow-code. End it and start it again with "
    "qkv studio --allow-code; the built-in examples can be checked without"
)
LONGEST = 500  # letters of a name
WORK = "qkv.studio.work.check"
SECONDS = (1.0, 60.0, 600.0)  # that a check may take: at least, if not said, at most


def routes(studio: Studio) -> list[BaseRoute]:
    """What the check room answers."""
    room = Room(studio)
    return [reading("/api/check", room.about), asking("/api/check/run", room.run)]


class Room:
    """Examples share a process; a person's code gets a new one each time, which is ended afterwards.

    The next process for a person's code is begun ahead, because it takes seconds to import torch.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.ours, self.theirs = Post(WORK), Post(WORK)
        studio.ending.append(self.close)

    def close(self) -> None:
        """End both processes."""
        self.ours.close()
        self.theirs.close()

    def about(self, request: Request) -> dict[str, Any]:
        """What can be checked, and which promises there are."""
        self.ours.start()
        if self.studio.allow_code:
            self.theirs.start()
        from qkv.check.diagnosis import FAMILIES
        from qkv.check.mutants import MUTANTS

        families: dict[str, list[dict[str, str]]] = {}
        for mutant in MUTANTS.values():
            families.setdefault(mutant.family, []).append({"name": mutant.name, "contract": str(mutant.contract)})
        return {
            "allow_code": self.studio.allow_code,
            "folder": os.getcwd(),
            "found": found(Path.cwd()) if self.studio.allow_code else [],
            "sound": [{"target": target, "words": words} for target, words in SOUND.items()],
            "families": [{"name": name, "fix": FAMILIES[name], "mutants": found} for name, found in families.items()],
            "seconds": SECONDS,
            **choices(),
        }

    def run(self, body: dict[str, Any]) -> Any:
        """The job that checks a mutant of the zoo, or a target."""
        asked = _mutant(body["mutant"]) if body.get("mutant") else _target(body)
        own = not asked.get("mutant") and not _ours(asked)
        if own and not self.studio.allow_code:
            return JSONResponse({"error": REFUSED}, 403)
        seconds = _seconds(body.get("seconds", SECONDS[1]))

        def work(job: Job) -> dict[str, Any]:
            return self._own(asked, job, seconds) if own else _report(self.ours, asked, job, seconds)

        return {"job": self.studio.jobs.start("check", work, lane="check-own" if own else "check").id}

    def _own(self, asked: dict[str, Any], job: Job, seconds: float) -> dict[str, Any]:
        try:
            return _report(self.theirs, asked, job, seconds)
        finally:
            self.theirs.end()
            with contextlib.suppress(CancelledError):  # the studio is closing
                self.theirs.start()


def _report(post: Post, asked: dict[str, Any], job: Job, seconds: float) -> dict[str, Any]:
    report: dict[str, Any] = {}
    try:
        for message in post.ask(asked, job, seconds=seconds):
            if message.get("begun") is True:
                job.say(begun=True)
            if isinstance(message.get("report"), dict):
                report = message["report"]
        if not report:
            raise EndedError("its process came to an end without a report")
    except EndedError:
        job.say(printed=post.printed)
        raise
    printed = "" if _ours(asked) else post.printed
    return _finite({**report, **_reproduced(asked), "printed": printed})


def _mutant(name: Any) -> dict[str, Any]:
    from qkv.check.mutants import find

    return {"mutant": find(str(name)).name}


def _target(body: dict[str, Any]) -> dict[str, Any]:
    """A target with its contract, checked as far as it can be without running anything."""
    asked = {part: body.get(part) or "" for part in ("target", "call", "like")}
    for part, text in asked.items():
        if not isinstance(text, str) or len(text) > LONGEST or not text.isprintable():
            raise ValueError(f"{part} is one line of at most {LONGEST} letters")
    asked = {part: text.strip() for part, text in asked.items()}
    if ":" not in asked["target"]:
        raise ValueError(f"a target is file.py:Name or package.module:Name; got {asked['target']!r}")
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise ValueError('arguments is a JSON object such as {"dim": 64}')
    contract = promised(body.get("contract") or {})
    return {**asked, "arguments": arguments, "contract": contract}


def _ours(asked: dict[str, Any]) -> bool:
    """Whether nothing but our own code and torch's would be run."""
    if asked.get("mutant"):
        return True
    return asked["target"] in SOUND and (asked["like"] in ("", "torch") or asked["like"] in SOUND)


def _seconds(said: Any) -> float:
    low, _, high = SECONDS
    if isinstance(said, bool) or not isinstance(said, int | float) or not low <= said <= high:
        raise ValueError(f"a check may take {low:g} to {high:g} seconds; got {said!r}")
    return float(said)


def _reproduced(asked: dict[str, Any]) -> dict[str, str]:
    """The command and the Python that give the same report."""
    if asked.get("mutant"):
        lines = ["from qkv.check.mutants import checked, find", "", f"report = checked(find({asked['mutant']!r}))"]
        lines.append("print(report.ok, report.diagnosis)")
        return {"command": shlex.join(["qkv", "check", "--zoo", asked["mutant"]]), "python": "\n".join(lines)}
    words = ["qkv", "check", asked["target"], *words_of(asked["contract"])]
    given = python_of(asked["contract"])
    if asked["arguments"]:
        words += ["--args", json.dumps(asked["arguments"])]
        given += f", arguments={asked['arguments']!r}"
    for part in ("call", "like"):
        if asked[part]:
            words += [f"--{part}", asked[part]]
            given += f", {part}={asked[part]!r}"
    lines = ["from qkv import check", "", f"report = check.run({asked['target']!r}{given})", "print(report.ok)"]
    return {"command": shlex.join(words), "python": "\n".join(lines)}


def _finite(value: Any) -> Any:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
