"""Conformance checks for attention: what an implementation does, which properties hold, and the likely bug."""

from qkv.check.contract import CONTRACTS, ENCODER, NO_PROMISES, TEXTBOOK, Contract, make_contract
from qkv.check.report import Finding, Report
from qkv.check.run import assert_sound, run

__all__ = [
    "CONTRACTS",
    "ENCODER",
    "NO_PROMISES",
    "TEXTBOOK",
    "Contract",
    "Finding",
    "Report",
    "assert_sound",
    "make_contract",
    "run",
]
