"""The conformance suite of attention: judges any implementation by what it does."""

from qkv.check.contract import CONTRACTS, COURSE, NOTHING, Contract, named_contract
from qkv.check.finding import Finding, Report
from qkv.check.run import assert_sound, run

__all__ = ["CONTRACTS", "COURSE", "NOTHING", "Contract", "Finding", "Report", "assert_sound", "named_contract", "run"]
