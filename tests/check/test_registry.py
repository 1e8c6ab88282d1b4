"""The registry of checks: every finding belongs to a row, and every row says what its findings mean."""

import pytest
import torch
from held_out_bugs import HELD_OUT
from torch import nn

import qkv
from qkv.check import run
from qkv.check.registry import CHECKS, TRAINING_CHECKS
from qkv.models import GPT, GPTConfig

TARGETS = {
    "function": (torch.nn.functional.scaled_dot_product_attention, {"contract": "textbook"}),
    "layer": (qkv.MultiHeadAttention(32, 4), {"causal": True}),
    "encoder-decoder": (nn.Transformer(32, 4, 1, 1, 64, batch_first=True), {"causal": True}),
    "model": (lambda: GPT(GPTConfig(vocab_size=64, dim=32, heads=4, layers=1)), {"causal": True, "cache": True}),
}


def rows_of(name):
    rows = [check.name for check in CHECKS if any(_fits(name, known) for known in check.findings)]
    return rows + [part for part, check in TRAINING_CHECKS.items() if name in check.findings]


def _fits(name, known):
    return name == known or name.startswith(known if known.endswith(" ") else f"{known} (")


def test_registry_names_are_unique_and_each_finding_has_a_meaning():
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names)) >= 20
    for check in (*CHECKS, *TRAINING_CHECKS.values()):
        assert check.findings
        assert all(len(meaning.split()) >= 5 for meaning in check.findings.values())


@pytest.mark.filterwarnings("ignore:.*nested.*")
@pytest.mark.parametrize("name", TARGETS)
def test_registry_lists_every_finding_of_a_report(name):
    target, promises = TARGETS[name]
    target = target() if name == "model" else target
    found = {finding.check for finding in run(target, **promises).findings}
    assert len(found) > 10
    assert {check for check in found if not rows_of(check)} == set()


def test_registry_lists_the_findings_of_training_code():
    target, contract, _ = HELD_OUT["lm_loss"]
    assert {finding.check for finding in run(target, contract).findings} <= set(TRAINING_CHECKS["loss"].findings)


def test_registry_applies_checks_of_functions_to_functions_only():
    checks = {check.name: check for check in CHECKS}
    report = run(qkv.MultiHeadAttention(32, 4), causal=True)
    found = {finding.check for finding in report.findings}
    assert found.isdisjoint(checks["mask"].findings) and checks["mask"].needs == "function"
    assert "inside" in found and checks["inside"].needs == "module"
