"""Contracts and promises: `check.run(target, contract=None, **promises)`."""

import pytest
import torch

import qkv
from qkv.check import CONTRACTS, ENCODER, TEXTBOOK, Contract, assert_sound, make_contract, run


def test_make_contract_takes_a_contract_a_name_or_nothing_and_adds_promises():
    assert make_contract() == Contract()
    assert make_contract("textbook") == TEXTBOOK == Contract(kind="causal", scale="head", softmax="keys")
    assert make_contract("encoder") == ENCODER == Contract(kind="bidirectional", scale="head", softmax="keys")
    assert make_contract(TEXTBOOK, padding=True) == Contract("causal", scale="head", softmax="keys", padding=True)
    assert make_contract(causal=True, scale=None) == Contract(kind="causal")
    assert set(CONTRACTS) == {"none", "textbook", "encoder"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contract": "course"}, "contract must be one of none, textbook, encoder; got 'course'"),
        ({"casual": True}, "no property 'casual'; did you mean causal"),
        ({"nonsense": 1}, "properties are causal, kind, window"),
        ({"kind": "window"}, "needs a width: window=128"),
    ],
)
def test_make_contract_refuses_what_it_does_not_know(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_contract(**arguments)


def test_run_judges_promises_by_name_and_by_keyword():
    sdpa = torch.nn.functional.scaled_dot_product_attention
    assert run(sdpa, "textbook").contract == TEXTBOOK
    assert run(qkv.MultiHeadAttention(32, 4), causal=True).contract == Contract(kind="causal")
    report = run(sdpa, "textbook", alignment="bottom-right")  # PyTorch aligns at the top left
    assert [finding.check for finding in report.failed] == ["alignment"]


def test_assert_sound_says_what_is_wrong():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    with pytest.raises(AssertionError, match="kind: required: window of 3; measured: bidirectional"):
        assert_sound(layer, kind="window", window=3)
    assert_sound(torch.nn.functional.scaled_dot_product_attention, causal=True)
    with pytest.raises(AssertionError, match="scale"):
        assert_sound(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "encoder")


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_has_at_least_one_token(window):
    with pytest.raises(ValueError, match=f"window must be at least 1.*got {window}"):
        make_contract(None, kind="window", window=window)
