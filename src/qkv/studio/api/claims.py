"""API of the Claims page: run textbook claims as experiments, also with other conditions or a wrong attention.

Claims run in worker processes, because they replace attention and seed torch.
"""

from __future__ import annotations

import threading
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from qkv._workers import Worker
from qkv.claims import CLAIMS, Claim, find_claim
from qkv.claims.explanations import WRONG_IMPLEMENTATIONS
from qkv.claims.questions import TITLES
from qkv.claims.registry import MAX_SEED, knob_values
from qkv.studio.jobs import Job
from qkv.studio.responses import get_route, post_route
from qkv.studio.server import Studio

MAX_RESULTS = 300  # results that are remembered
TASK = "qkv.studio.tasks:run_claim"

# conditions that overturn a claim: (knob, value, why)
BREAKS: dict[str, tuple[tuple[str, float, str], ...]] = {
    "scale": (("mean", 1.0, "with means of 1 the variance is 3d"),),
    "copy": (("beta", 1.0, "too soft to single out one key"),),
    "average": (("beta", 1.0, "too soft: the other keys keep weight"),),
    "diffuse": (("beta", 0.1, "any β other than 0 prefers some keys"),),
    "hard-soft": (("beta", 100.0, "not yet the limit"),),
    "perturb-key": (("sigma", 1.0, "the noise is as large as the keys"),),
    "perturb-query": (("m", 1, "a single key has all the weight for every query"),),
    "scale-key": (("alpha", 0.5, "a factor below 1 shrinks the key"),),
    "calm-head": (("alpha", 1e-6, "a hundred times the variance"),),
    "one-head-variance": (("alpha", 1.0, "α is no longer small"), ("beta", 1.5, "below 2 the weight has one peak")),
    "two-heads": (("beta", 1.0, "too soft for a head to choose"),),
    "two-heads-wrong": (("beta", 1.0, "too soft for the counter-example"),),
    "values-only": (("beta", 0.1, "too soft to choose a value"),),
    "kqv": (("beta", 0.1, "too soft to choose a value"),),
    "identity": (("beta", 1.0, "each token attends to the others, too"),),
    "convolution": (("beta", 4.0, "too soft: a head attends to more than one position"),),
    "receptive-field": (("kernel", 9, "the kernel is as wide as the image"),),
    "similar-to-rnn": (("causal", 0, "without a causal mask a token needs later ones, too"),),
    "similar-to-mlp": (("tokens", 1, "a single token has weight 1: self-attention is a linear layer"),),
    "heads-are-channels": (("beta", 0.0, "uniform attention has fixed weights, as a kernel has"),),
    "worked-example": (("scale", 2.0, "the scores are not those of the example"),),
}


def routes(studio: Studio) -> list[BaseRoute]:
    """The routes of the Claims page."""
    api = ClaimsApi(studio)
    return [
        get_route("/api/claims", api.list),
        post_route("/api/claims/run", api.run),
        post_route("/api/claims/all", api.run_all),
    ]


class ClaimsApi:
    """The handlers of the Claims page: a process for instant claims, one for slow ones, one for running many."""

    def __init__(self, studio: Studio) -> None:
        self.jobs = studio.jobs
        self.instant, self.slow, self.batch = Worker(TASK), Worker(TASK), Worker(TASK)
        studio.on_stop += [self.instant.close, self.slow.close, self.batch.close]
        self._results: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._batch_job: Job | None = None

    def list(self, request: Request) -> dict[str, Any]:
        """All claims by family, with the verdicts that this server has computed for a seed."""
        self.instant.start()
        seed = _parse_seed(request.query_params.get("seed", "0"))
        families: dict[str, list[dict[str, Any]]] = {}
        for claim in CLAIMS.values():
            entry = {**_claim_json(claim), "result": self._verdict(_experiment(claim, seed))}
            families.setdefault(claim.family, []).append(entry)
        running = self._batch_job is not None and self._batch_job.state == "running"
        return {
            "families": [{"name": name, "claims": claims} for name, claims in families.items()],
            "batch": self._batch_job.id if self._batch_job is not None and running else "",
        }

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run one claim: its result if it is known, otherwise the job that computes it."""
        claim = find_claim(str(body["name"]))
        experiment = _experiment(claim, body.get("seed", 0), body.get("knobs", {}), body.get("mutant", ""))
        known = self._result(experiment)
        if known is not None:
            return {"result": known}
        is_instant = claim.cost == "instant"  # does not wait for claims that train
        worker = self.instant if is_instant else self.slow

        def work(job: Job) -> dict[str, Any]:
            return self._result(experiment) or self._run(experiment, job, worker)

        return {"job": self.jobs.start("claim", work, lane="claim" if is_instant else "claim-slow").id}

    def run_all(self, body: dict[str, Any]) -> dict[str, Any]:
        """Run many claims one after another; the job reports each verdict."""
        names = body["names"]
        if not isinstance(names, list) or not names:
            raise ValueError("names must be a list with at least one claim")
        experiments = [_experiment(find_claim(str(name)), body.get("seed", 0)) for name in dict.fromkeys(names)]

        def work(job: Job) -> dict[str, Any]:
            for index, experiment in enumerate(experiments):
                name, total = experiment["name"], len(experiments)
                job.report(claim=name, done=index, total=total)
                if self._result(experiment) is None:
                    self._run(experiment, job, self.batch, quiet=True)
                verdict = self._verdict(experiment)
                job.report(claim=name, done=index + 1, total=total, seed=experiment["seed"], result=verdict)
            return {"count": len(experiments)}

        self._batch_job = self.jobs.start("claims", work)
        return {"job": self._batch_job.id}

    def _run(self, experiment: dict[str, Any], job: Job, worker: Worker, *, quiet: bool = False) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for message in worker.request(experiment, cancelled=job.cancel.is_set):
            if "note" in message:
                job.report(claim=experiment["name"], note=str(message["note"]))
            if "result" in message:
                result = {**_reproduce(experiment), **message["result"], "mutant": experiment["mutant"]}
                if not quiet:
                    job.report(measured=result)
            if "figures" in message:
                result = {**result, "figures": message["figures"]}
        with self._lock:
            self._results[_key(experiment)] = result
            for key in list(self._results)[: max(len(self._results) - MAX_RESULTS, 0)]:
                del self._results[key]
        return result

    def _result(self, experiment: dict[str, Any]) -> dict[str, Any] | None:
        with self._lock:
            return self._results.get(_key(experiment))

    def _verdict(self, experiment: dict[str, Any]) -> dict[str, Any] | None:
        result = self._result(experiment)
        parts = ("verdict", "verdict_text", "expected", "seconds")
        return None if result is None else {part: result[part] for part in parts}


def _claim_json(claim: Claim) -> dict[str, Any]:
    knob_parts = ("name", "default", "between", "step", "long", "help", "is_integer")
    return {
        "name": claim.name,
        "question": TITLES[claim.name],
        "statement": claim.statement,
        "cost": claim.cost,
        "expected": claim.expected,
        "caption": claim.figure,
        "knobs": [{part: getattr(knob, part) for part in knob_parts} for knob in claim.knobs],
        "mutants": [{"name": name, "description": WRONG_IMPLEMENTATIONS[name]} for name in claim.mutants],
        "overturn": dict(claim.overturn),
        "breaks": [{"knob": knob, "value": value, "why": why} for knob, value, why in BREAKS.get(claim.name, ())],
    }


def _experiment(claim: Claim, seed: Any, knobs: Any = None, mutant: Any = "") -> dict[str, Any]:
    """The request of one run, with all knobs, validated."""
    knobs = {} if knobs is None else knobs
    if not isinstance(knobs, dict):
        raise ValueError("knobs must be an object with a number per name")
    if mutant and mutant not in claim.mutants:
        raise ValueError(f"{claim.name} can be run with the mutants {', '.join(claim.mutants)}, got {mutant!r}")
    return {"name": claim.name, "seed": _parse_seed(seed), "knobs": knob_values(claim, knobs), "mutant": mutant}


def _parse_seed(value: Any) -> int:
    try:
        seed = int(value)
    except (TypeError, ValueError, OverflowError):
        seed = -1
    if isinstance(value, bool) or (seed != value and not isinstance(value, str)) or not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {MAX_SEED}, got {value!r}")
    return seed


def _key(experiment: dict[str, Any]) -> tuple[Any, ...]:
    return experiment["name"], experiment["seed"], experiment["mutant"], *experiment["knobs"].items()


def _reproduce(experiment: dict[str, Any]) -> dict[str, str]:
    """The command and the Python lines that give the same numbers."""
    name, seed, mutant = experiment["name"], experiment["seed"], experiment["mutant"]
    defaults = {knob.name: knob.default for knob in find_claim(name).knobs}
    changed = {knob: value for knob, value in experiment["knobs"].items() if value != defaults[knob]}
    command = f"qkv claims run {name} --seed {seed}"
    command += "".join(f" --set {knob}={value!r}" for knob, value in changed.items())
    arguments = "".join(f", {knob}={value!r}" for knob, value in changed.items())
    lines = ["from qkv import claims"]
    if mutant:
        command += f" --wrong {mutant}"
        lines.append("from qkv.claims.mutants import wrong_implementation")
        arguments += f', **wrong_implementation("{mutant}")'
    lines += ["", f'result = claims.run("{name}", seed={seed}{arguments})', "print(result.verdict, result.numbers)"]
    return {"command": command, "python": "\n".join(lines)}
