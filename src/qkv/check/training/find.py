"""Which part of a training run a function is, by its name and its parameters."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args

from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis
from qkv.check.finding import Report
from qkv.check.training.accumulation import check_accumulation
from qkv.check.training.loss import check_loss
from qkv.check.training.split import check_split

Call = Literal["attention", "loss", "accumulate", "split"]
CALLS: tuple[Call, ...] = get_args(Call)
LOGITS = ("logits", "lm_logits", "predictions", "preds", "pred", "scores", "outputs", "output")
MODELS = ("model", "module", "net", "network")
BATCHES = ("batches", "micro_batches", "microbatches", "loader", "batch_list", "data")


def guess(found: Any) -> Call | None:
    """Which call fits a function; None if it is none of these."""
    if inspect.isclass(found) or not callable(found) or hasattr(found, "parameters"):
        return None
    try:
        names = [name.lower() for name in inspect.signature(found).parameters]
    except (TypeError, ValueError):
        return None
    called = getattr(found, "__name__", type(found).__name__).lower()
    if len(names) >= 2 and (names[0] in LOGITS or ("loss" in called and names[0] not in MODELS)):
        return "loss"
    if len(names) >= 2 and names[0] in MODELS and names[1] in BATCHES:
        return "accumulate"
    if "split" in called and names and not called.startswith("split_heads") and names[0] not in ("x", "q"):
        return "split"
    return None


def judge_training(found: Any, name: str, call: Call, contract: Contract) -> Report:
    """Check a part of a training run."""
    checks = {"loss": check_loss, "accumulate": check_accumulation, "split": check_split}
    how, findings = checks[call](found, contract)
    failed = [finding for finding in findings if finding.verdict == "fail" and finding.family is not None]
    cause = Diagnosis(str(failed[0].family), failed[0].hint or failed[0].evidence) if failed else None
    kinds = {"loss": "a loss of logits", "accumulate": "gradient accumulation", "split": "a split of data"}
    return Report(name, how, kinds[call], contract, tuple(findings), diagnosis=cause)
