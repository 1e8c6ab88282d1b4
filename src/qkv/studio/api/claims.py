"""The Claims room: what is claimed, what a run of it found, and what changes when its conditions do.

Claims run in processes of their own: they swap attention and seed torch, which other rooms must not feel.
"""

from __future__ import annotations

import threading
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from qkv.studio.answers import asking, reading
from qkv.studio.api.claims_words import BREAKS, WRONG
from qkv.studio.jobs import Job
from qkv.studio.state import Studio
from qkv.studio.work.post import Post

KEPT = 300  # results that are remembered
WORK = "qkv.studio.work.claim"


def routes(studio: Studio) -> list[BaseRoute]:
    """What the claims room answers."""
    room = Room(studio)
    return [
        reading("/api/claims", room.listed),
        asking("/api/claims/run", room.run),
        asking("/api/claims/all", room.run_all),
    ]


class Room:
    """One process answers at once, one takes its time, another runs many; results of this server are remembered."""

    def __init__(self, studio: Studio) -> None:
        self.jobs = studio.jobs
        self.one, self.long, self.many = Post(WORK), Post(WORK), Post(WORK)
        studio.ending += [self.one.close, self.long.close, self.many.close]
        self._kept: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._all: Job | None = None

    def listed(self, request: Request) -> dict[str, Any]:
        """All claims by family, with the verdicts that this server has found for a seed."""
        self.one.start()
        from qkv.claims import CLAIMS

        seed = _seed(request.query_params.get("seed", "0"))
        families: dict[str, list[dict[str, Any]]] = {}
        for claim in CLAIMS.values():
            families.setdefault(claim.family, []).append({**_about(claim), "found": self._found(_asked(claim, seed))})
        going = self._all.id if self._all is not None and self._all.state == "running" else ""
        return {"families": [{"name": name, "claims": claims} for name, claims in families.items()], "many": going}

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """One claim, under conditions: its result if it is known, else the job that finds it."""
        from qkv.claims import find

        claim = find(str(body["name"]))
        asked = _asked(claim, body.get("seed", 0), body.get("knobs", {}), body.get("wrong", ""))
        known = self._known(asked)
        if known is not None:
            return {"result": known}

        instant = claim.cost == "instant"  # such a one does not wait for those that train

        def work(job: Job) -> dict[str, Any]:
            return self._known(asked) or self._run(asked, job, self.one if instant else self.long)

        return {"job": self.jobs.start("claim", work, lane="claim" if instant else "claim-long").id}

    def run_all(self, body: dict[str, Any]) -> dict[str, Any]:
        """Many claims as they are, one after the other; the job says the verdicts as they come."""
        from qkv.claims import find

        names = body["names"]
        if not isinstance(names, list) or not names:
            raise ValueError("names is a list of claims, one at least")
        asked = [_asked(find(str(name)), body.get("seed", 0)) for name in dict.fromkeys(names)]

        def work(job: Job) -> dict[str, Any]:
            for place, one in enumerate(asked):
                job.say(claim=one["name"], at=place, of=len(asked))
                if self._known(one) is None:
                    self._run(one, job, self.many, quiet=True)
                job.say(claim=one["name"], at=place + 1, of=len(asked), seed=one["seed"], found=self._found(one))
            return {"count": len(asked)}

        self._all = self.jobs.start("claims", work, lane="claims")
        return {"job": self._all.id}

    def _run(self, asked: dict[str, Any], job: Job, post: Post, *, quiet: bool = False) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for message in post.ask(asked, job):
            if "said" in message:
                job.say(claim=asked["name"], said=str(message["said"]))
            if "result" in message:
                result = {**_reproduced(asked), **message["result"], "wrong": asked["wrong"]}
                if not quiet:
                    job.say(measured=result)
            if "pictures" in message:
                result = {**result, "pictures": message["pictures"]}
        with self._lock:
            self._kept[_key(asked)] = result
            for key in list(self._kept)[: max(len(self._kept) - KEPT, 0)]:
                del self._kept[key]
        return result

    def _known(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        with self._lock:
            return self._kept.get(_key(asked))

    def _found(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The verdict alone."""
        known = self._known(asked)
        return None if known is None else {part: known[part] for part in ("verdict", "word", "expected", "seconds")}


def _about(claim: Any) -> dict[str, Any]:
    return {
        "name": claim.name,
        "statement": claim.statement,
        "cost": claim.cost,
        "expected": claim.expected,
        "figure": claim.figure,
        "knobs": [
            {
                "name": knob.name,
                "default": knob.default,
                "between": knob.between,
                "step": knob.step,
                "long": knob.long,
                "help": knob.help,
                "whole": knob.whole,
            }
            for knob in claim.knobs
        ],
        "wrong": [{"name": name, "words": WRONG[name]} for name in claim.mutants],
        "overturn": dict(claim.overturn),
        "breaks": [{"knob": knob, "value": value, "words": words} for knob, value, words in BREAKS.get(claim.name, ())],
    }


def _asked(claim: Any, seed: Any, knobs: Any = None, wrong: Any = "") -> dict[str, Any]:
    """A run, in full: all knobs, checked."""
    from qkv.claims.registry import settings

    knobs = {} if knobs is None else knobs
    if not isinstance(knobs, dict):
        raise ValueError("knobs is an object of numbers by name")
    if wrong and wrong not in claim.mutants:
        raise ValueError(f"{claim.name} is tried with {', '.join(claim.mutants)}; got {wrong!r}")
    return {"name": claim.name, "seed": _seed(seed), "knobs": settings(claim, knobs), "wrong": wrong}


def _seed(said: Any) -> int:
    from qkv.claims.registry import SEEDS

    try:
        seed = int(said)
    except (TypeError, ValueError, OverflowError):
        seed = -1
    if isinstance(said, bool) or (seed != said and not isinstance(said, str)) or not 0 <= seed < SEEDS:
        raise ValueError(f"a seed is a whole number from 0 to {SEEDS - 1}; got {said!r}")
    return seed


def _key(asked: dict[str, Any]) -> tuple[Any, ...]:
    return asked["name"], asked["seed"], asked["wrong"], *asked["knobs"].items()


def _reproduced(asked: dict[str, Any]) -> dict[str, str]:
    """The command and the Python that give the same numbers."""
    from qkv.claims import find

    defaults = {knob.name: knob.default for knob in find(asked["name"]).knobs}
    changed = {name: value for name, value in asked["knobs"].items() if value != defaults[name]}
    command = f"qkv claims run {asked['name']} --seed {asked['seed']}"
    command += "".join(f" --set {name}={value!r}" for name, value in changed.items())
    given = "".join(f", {name}={value!r}" for name, value in changed.items())
    lines = ["from qkv import claims"]
    if asked["wrong"]:
        command += f" --wrong {asked['wrong']}"
        lines.append("from qkv.claims.mutants import replacing")
        given += f', **replacing("{asked["wrong"]}")'
    lines += ["", f'result = claims.run("{asked["name"]}", seed={asked["seed"]}{given})']
    lines.append("print(result.verdict, result.numbers)")
    return {"command": command, "python": "\n".join(lines)}
