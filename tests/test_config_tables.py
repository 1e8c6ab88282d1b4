"""Configs as plain dicts and TOML, dotted overrides, and errors that name every mistake."""

import tomllib
from dataclasses import dataclass, field

import pytest

from qkv._config import (
    find_differences,
    flatten,
    from_dict,
    from_toml,
    override,
    parse_override,
    read_toml,
    to_dict,
    to_toml,
)
from qkv.models import GPTConfig, RNNSeq2SeqConfig
from qkv.nn import Additive, Dot
from qkv.positions import Rope, T5Bias, YarnScaling

CONFIGS = [
    GPTConfig(9),
    GPTConfig(9, position=Rope(pairing="halves", scaling=YarnScaling(2.0, 64)), score=Dot(scale=0.5), sliding_window=4),
    GPTConfig(9, position=T5Bias(8, 20, bidirectional=False), attention_bias="qkv"),
    RNNSeq2SeqConfig(9, score=Additive(3)),
]


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    betas: tuple[float, float] = (0.9, 0.99)
    label: str | None = None


@dataclass(frozen=True)
class Outer:
    steps: int
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_from_dict_restores_what_to_dict_wrote(config):
    assert from_dict(type(config), to_dict(config), "test") == config


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_from_toml_restores_what_to_toml_wrote(config):
    table = tomllib.loads(to_toml({"model": to_dict(config)}, comment="two\nlines"))["model"]
    assert from_toml(type(config), table, "test") == config


def test_from_dict_takes_lists_for_tuples_and_integers_for_floats():
    outer = from_dict(Outer, {"steps": 2, "inner": {"rate": 1, "betas": [0, 1]}}, "test")
    assert outer == Outer(2, Inner(1.0, (0, 1)))
    assert isinstance(outer.inner.rate, float)


def test_from_toml_reads_none_in_optional_fields_but_keeps_the_word_in_strings():
    assert from_toml(GPTConfig, {"vocab_size": 9, "kv_heads": "none", "position": "none"}, "a").position == "none"
    assert from_toml(Inner, {"label": "none"}, "a").label == "none"
    with pytest.raises(ValueError, match="kv_heads must be an integer or none, got 'none'"):
        from_dict(GPTConfig, {"vocab_size": 9, "kv_heads": "none"}, "a")


def test_from_dict_names_every_mistake():
    wrong = {"steps": True, "iner": {}, "inner": {"rate": "high", "betas": [0.9], "labels": 3}}
    with pytest.raises(ValueError) as error:
        from_dict(Outer, wrong, "mine.toml")
    assert str(error.value).splitlines() == [
        "mine.toml: 5 mistakes:",
        "  steps must be an integer, got True",
        "  Outer has no field 'iner', did you mean 'inner'?",
        "  inner.rate must be a number, got 'high'",
        "  inner.betas must be a list of a number and a number, got (0.9,)",
        "  inner has no field 'labels', did you mean 'label'?",
    ]


def test_from_dict_names_a_missing_field():
    with pytest.raises(ValueError, match=r"mine\.toml: Outer missing 1 required positional argument: 'steps'"):
        from_dict(Outer, {}, "mine.toml")


def test_override_replaces_dotted_and_nested_names_and_leaves_the_original():
    table = {"seed": 0, "model": {"dim": 32, "layers": 2}}
    assert override(table, {"model.dim": 64, "seed": 3}) == {"seed": 3, "model": {"dim": 64, "layers": 2}}
    assert override(table, {"model": {"dim": 64}}) == {"seed": 0, "model": {"dim": 64, "layers": 2}}
    assert table == {"seed": 0, "model": {"dim": 32, "layers": 2}}


def test_override_of_a_kind_drops_the_fields_of_the_old_variant():
    table = {"position": {"kind": "Rope", "base": 500.0}}
    assert override(table, {"position.kind": "Rope"}) == table
    assert override(table, {"position": "Alibi"}) == {"position": {"kind": "Alibi"}}
    assert override(table, {"position": {"kind": "Shaw", "max_distance": 4}}) == {
        "position": {"kind": "Shaw", "max_distance": 4}
    }


def test_override_names_every_mistake():
    table = {"seed": 0, "model": {"dim": 32}}
    with pytest.raises(ValueError) as error:
        override(table, {"sed": 1, "model.dm": 2, "seed.x": 3, "model": 4}, "vit-digits")
    assert str(error.value).splitlines() == [
        "vit-digits has no field 'sed', did you mean 'seed'?",
        "vit-digits has no field 'model.dm', did you mean 'model.dim'?",
        "vit-digits has no field 'seed.x': seed is the single value 0",
        "model is a table of dim; set one of them with model.NAME=VALUE",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.dim=64", ("model.dim", 64)),
        (" a = [1, 2.5]", ("a", [1, 2.5])),
        ("path=a/b.txt", ("path", "a/b.txt")),
        ("flag=true", ("flag", True)),
        ("name=", ("name", "")),
    ],
)
def test_parse_override_reads_toml_values_and_strings(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["model.dim", "=3", " =3"])
def test_parse_override_rejects_what_is_not_an_assignment(text):
    with pytest.raises(ValueError, match=r"an override must be NAME=VALUE, such as model.dim=64, got"):
        parse_override(text)


def test_flatten_and_find_differences_use_dotted_names():
    one, other = {"seed": 0, "model": {"dim": 32, "norm": "rms"}}, {"seed": 0, "model": {"dim": 64}}
    assert flatten(one) == {"seed": 0, "model.dim": 32, "model.norm": "rms"}
    assert find_differences([one, other]) == {"model.dim": [32, 64], "model.norm": ["rms", "–"]}
    assert find_differences([one, one]) == {}


def test_to_toml_escapes_strings_and_rejects_other_objects(tmp_path):
    table = {"text": 'a "quoted" \\ line\nbreak', "list": [1, None], "nested": {"empty": {}, "on": False}}
    (tmp_path / "a.toml").write_text(to_toml(table), encoding="utf-8")
    assert read_toml(tmp_path / "a.toml") == {**table, "list": [1, "none"]}
    with pytest.raises(ValueError, match="number, string, list or table, got object"):
        to_toml({"x": object()})


def test_read_toml_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*none\.toml"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ValueError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")


def test_read_toml_refuses_a_key_of_fifty_thousand_parts(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(".".join(["a"] * 50_000) + " = 1\n")
    with pytest.raises(ValueError, match="nested too deeply"):
        read_toml(path)
