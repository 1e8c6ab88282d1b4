"""The mutant suite: check catches every mutant, and passes every right implementation."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import qkv
from qkv.check import TEXTBOOK, Contract, run
from qkv.check.contract import NO_PROMISES
from qkv.check.mutants import MUTANTS, check_mutant, generate_mutants, sample_mutants
from qkv.check.mutants.attention import TextbookAttention
from qkv.check.mutants.generated import BUGS, SIZES, contract_for, load_source
from qkv.check.mutants.layers import TextbookLayer
from qkv.check.mutants.models import PlainModel
from qkv.check.mutants.positions import GroupedLayer, RotaryLayer, SinkLayer, SlopedLayer
from qkv.check.mutants.styles import STYLES
from qkv.check.mutants.suite import as_markdown, is_diagnosed, wrong_names
from qkv.check.mutants.training import accumulate, next_token_loss, split
from qkv.check.report import Finding
from qkv.cli.main import run as run_command
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig

PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
# one mutant of each family in every run; all of them in the long tests, which take minutes
SAMPLE = {mutant.family: name for name, mutant in reversed(MUTANTS.items())}
SAMPLE["rotary, in part"] = "rotary: half the features"  # RoPE over a part of the head dim is a design, too


def sampled(names, sample):
    """Parameters of a test: those outside of the sample are long."""
    return [name if name in sample else pytest.param(name, marks=pytest.mark.long) for name in names]


CAUSAL = Contract(kind="causal", cache=True, padding=True)


@cache
def check_once(name):
    return check_mutant(MUTANTS[name])


@pytest.mark.parametrize("name", sampled(MUTANTS, SAMPLE.values()))
def test_check_mutant_catches_the_mutant(name):
    report = check_once(name)
    assert not report.ok, [(finding.check, finding.evidence) for finding in report.findings]


# the mutant, and words that its hints must contain
DIAGNOSES = {
    "mask strict": "off by one",
    "mask one ahead": "off by one",
    "mask missing": "no causal mask",
    "mask transposed": "transposed",
    "mask in blocks of four": "blocks of 4",
    "mask soft, −4": "not −∞",
    "mask filled with −5": "not −∞",
    "mask multiplied by 0": "multiplied by 0",
    "mask after the softmax": "after the softmax",
    "softmax over the queries": "over the queries",
    "softmax over the heads": "over the heads",
    "sigmoid instead of softmax": "sigmoid",
    "softmax in half precision": "bfloat16",
    "scale missing": "scale is missing",
    "scale by the model dim": "model dim",
    "scale inverted": "inverted",
    "scale twice": "applied twice",
    "heads summed": "heads are summed",
    "values for keys": "values are used in place of keys",
    "keys for values": "keys are used in place of values",
    "queries and keys swapped": "swapped",
    "cosine instead of dot product": "normalized to length 1",
    "hard choice instead of soft": "hard attention",
    "uniform weights": "weights are all equal",
    "no maximum subtracted": "overflows",
    "NaN for a row with nothing": "softmax over −∞",
    "weights detached": "detached",
    "batch mean mixed in": "mixes rows",
    "dropout in eval": "dropout",
    "grouped heads tiled": "repeat_interleave",
    "causal aligned at the start": "key ≤ query + (keys − queries)",
    "layer: window one too wide": "window of 5, required: 4",
    "layer: a parameter that nothing reads": "nothing reads",
}


@pytest.mark.parametrize("name", sampled(DIAGNOSES, SAMPLE.values()))
def test_check_mutant_names_the_mistake(name):
    hints = " ".join(finding.hint or "" for finding in check_once(name).failed)
    assert DIAGNOSES[name] in hints


def test_check_mutant_names_one_mutant_of_each_family():
    unnamed = [name for name in SAMPLE.values() if not is_diagnosed(MUTANTS[name], check_once(name))]
    assert len(unnamed) <= 0.1 * len(SAMPLE), unnamed


@pytest.mark.long
def test_the_suite_has_at_least_eighty_mutants_and_nine_in_ten_get_the_right_diagnosis():
    diagnosed = sum(is_diagnosed(mutant, check_once(name)) for name, mutant in MUTANTS.items())
    assert len(MUTANTS) >= 80
    assert diagnosed >= 0.9 * len(MUTANTS)


def test_as_markdown_gives_a_finding_that_no_column_lists_a_column_of_its_own():
    mutant = MUTANTS["mask strict"]
    findings = (
        Finding("new property", "fail", 1.0, "", "", "leak"),
        Finding("truncation", "fail", 1.0, "", "", "leak"),
    )
    page = as_markdown([(mutant, replace(check_once("mask strict"), findings=findings))])
    assert "| mutant | contract | diagnosis | length | new property |" in page


def test_docs_mutants_md_has_a_row_for_every_mutant():
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == ["mutant", *MUTANTS], "run: make mutants"


@pytest.mark.long
def test_docs_mutants_md_is_what_the_command_prints():
    made = as_markdown([(mutant, check_once(name)) for name, mutant in MUTANTS.items()])
    assert PAGE.read_text(encoding="utf-8") == made, "run: make mutants"


SOUND = {
    "rotary layer": (RotaryLayer, replace(TEXTBOOK, position="rotary")),
    "sloped layer": (SlopedLayer, replace(TEXTBOOK, position="alibi")),
    "sink layer": (SinkLayer, replace(TEXTBOOK, softmax=None)),
    "grouped layer": (GroupedLayer, replace(TEXTBOOK, grouped="repeated", position="rotary")),
    "plain model": (PlainModel, Contract(kind="causal", cache=True, loss="next")),
    "loss": (next_token_loss, Contract(loss="next")),
    "accumulation": (accumulate, NO_PROMISES),
    "split": (split, NO_PROMISES),
    "torch's layer, causal": (lambda: torch.nn.MultiheadAttention(32, 4, batch_first=True), TEXTBOOK),
    "torch's encoder": (
        lambda: torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False
        ),
        Contract(kind="bidirectional", scale="head", softmax="keys"),
    ),
    "textbook function": (TextbookAttention(), TEXTBOOK),
    "textbook layer": (TextbookLayer, Contract(kind="causal", cache=True, position="relative")),
    "qkv.attention": (qkv.attention, Contract("causal", scale="head", softmax="keys", grouped="repeated")),
    "torch's kernel": (torch.nn.functional.scaled_dot_product_attention, TEXTBOOK),
    "qkv layer, rope": (
        lambda: qkv.MultiHeadAttention(32, 4, kv_heads=2, position=qkv.positions.Rope()),
        Contract(kind="causal", position="relative", padding=True),
    ),
    "torch encoder layer": (
        lambda: torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True),
        Contract(kind="bidirectional"),
    ),
    "GPT, learned": (lambda: GPT(GPTConfig(vocab_size=64, dim=32, heads=4, layers=2)), CAUSAL),
    "GPT, rope and groups": (
        lambda: GPT(GPTConfig(vocab_size=64, dim=32, heads=4, layers=2, kv_heads=2, position="rope")),
        CAUSAL,
    ),
    "GPT, alibi, post-norm": (
        lambda: GPT(GPTConfig(vocab_size=64, dim=32, heads=4, layers=2, position="alibi", norm_order="post")),
        CAUSAL,
    ),
    "Encoder": (
        lambda: Encoder(EncoderConfig(vocab_size=64, dim=32, heads=4, layers=2)),
        Contract(kind="bidirectional", padding=True),
    ),
}


@pytest.mark.parametrize("name", sampled(SOUND, ("textbook layer", "grouped layer", "torch's kernel", "plain model")))
def test_check_passes_a_right_implementation(name):
    target, contract = SOUND[name]
    if isinstance(target, type(lambda: 0)) and target.__name__ == "<lambda>":
        target = target()
    report = run(target, contract)
    wrong = [(finding.check, finding.verdict, finding.evidence) for finding in report.failed]
    if name.startswith("torch"):  # its NaN for a row that is all padding is a true finding
        wrong = [finding for finding in wrong if finding[0] != "fully padded row"]
    assert wrong == []
    assert not [f for f in report.findings if f.verdict == "inconclusive"]


# a few of the generated mutants in every run, all of them in the long tests
GENERATED = generate_mutants()
SOME = GENERATED[::60]


def catches_and_names(mutant):
    report = check_mutant(mutant)
    assert not report.ok, mutant.code
    assert mutant not in [wrong for wrong, _ in wrong_names([(mutant, report)])], report.diagnosis
    return is_diagnosed(mutant, report)


def test_generate_mutants_combines_bugs_styles_and_sizes():
    assert len(GENERATED) >= 500
    assert {mutant.style for mutant in GENERATED} == {style.name for style in STYLES}
    assert {mutant.size for mutant in GENERATED} == set(SIZES)
    assert len({mutant.code for mutant in GENERATED}) == len(GENERATED)
    assert {(m.bug.name, m.style) for m in sample_mutants()} == {(m.bug.name, m.style) for m in GENERATED}


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_check_passes_every_style_of_the_generated_mutants_without_a_bug(style):
    found = getattr(load_source(style.source()), style.target)
    report = run(found() if isinstance(found, type) else found, contract_for(BUGS[0], style))
    assert report.ok, [(finding.check, finding.evidence) for finding in report.failed]


def test_check_mutant_catches_generated_mutants_and_names_most():
    named = [catches_and_names(mutant) for mutant in SOME]
    assert sum(named) >= 0.85 * len(named)


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_check_mutant_names_three_quarters_of_all_generated_mutants_and_none_exactly_wrong(bug):
    reports = [(mutant, check_mutant(mutant)) for mutant in GENERATED if mutant.bug == bug]
    assert sum(not report.ok for _, report in reports) >= 0.9 * len(reports)
    assert sum(is_diagnosed(mutant, report) for mutant, report in reports) >= 0.75 * len(reports)
    assert wrong_names(reports) == []


def test_qkv_mutants_shows_one_mutant_with_its_code_and_findings(capsys):
    assert run_command(["mutants", "mask", "strict"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mask strict" in shown and "attention.py:" in shown
    assert "class Strict(TextbookAttention)" in shown and "tril(s - t - 1)" in shown
    assert "family “mask off by one”: a query sees keys up to and including itself" in shown
    assert "✗ mistake a query does not see itself" in shown and "NOT SOUND" in shown


def test_qkv_mutants_json_has_the_source_and_the_report(capsys):
    assert run_command(["mutants", "softmax over the queries", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["caught"] and found["diagnosis"] == found["family"] == "softmax axis"
    lines = Path(found["file"]).read_text(encoding="utf-8").splitlines()
    assert "\n".join(lines[found["line"] - 1 :]).startswith(found["code"].rstrip("\n"))
    assert not found["report"]["ok"] and found["report"]["findings"]


def test_every_mutant_shows_its_code():
    for mutant in MUTANTS.values():
        file, line, code = mutant.source
        assert Path(file).parent.name == "mutants" and line > 0
        assert mutant.name in code
