"""The textbook run: statements of the theory, tried by experiment, with measured verdicts.

>>> from qkv import claims
>>> result = claims.run("diffuse", seed=1)
>>> result.verdict
'holds'
"""

from qkv.claims.claim import Claim, ClaimResult, Knob, Lab, Measured
from qkv.claims.registry import CLAIMS, find, names, run

__all__ = ["CLAIMS", "Claim", "ClaimResult", "Knob", "Lab", "Measured", "find", "names", "run"]
