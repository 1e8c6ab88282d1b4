"""Textbook claims about attention and transformers, tested by experiments with measured verdicts.

>>> from qkv import claims
>>> result = claims.run("diffuse", seed=1)
>>> result.verdict
'holds'
"""

from qkv.claims.claim import Claim, ClaimResult, ExperimentResult, Knob
from qkv.claims.experiment import Lab
from qkv.claims.registry import CLAIMS, claim_names, find_claim, run

__all__ = ["CLAIMS", "Claim", "ClaimResult", "ExperimentResult", "Knob", "Lab", "claim_names", "find_claim", "run"]
