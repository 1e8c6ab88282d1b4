"""Textbook claims about attention and transformers, tested by experiments with measured verdicts.

>>> from qkv import claims
>>> result = claims.run("diffuse", seed=1)
>>> result.verdict
'holds'
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.claims.claim import Claim, ClaimResult, ExperimentResult, Knob
    from qkv.claims.experiment import Lab
    from qkv.claims.registry import CLAIMS, claim_names, find_claim, run

__all__ = ["CLAIMS", "Claim", "ClaimResult", "ExperimentResult", "Knob", "Lab", "claim_names", "find_claim", "run"]

_HOMES = {
    **dict.fromkeys(("Claim", "ClaimResult", "ExperimentResult", "Knob"), "qkv.claims.claim"),
    **dict.fromkeys(("CLAIMS", "claim_names", "find_claim", "run"), "qkv.claims.registry"),
    "Lab": "qkv.claims.experiment",
}


def __getattr__(name: str) -> object:
    """Import on first use: lists of claims and questions do not need torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.claims' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"importlib", "TYPE_CHECKING"})
