"""TrainConfig: round trips through JSON and TOML, and errors that name the wrong field."""

import json
import math
import tomllib
from dataclasses import replace

import pytest
from tiny_runs import CONFIG

from qkv._config import from_toml, to_toml
from qkv.training import ScheduleConfig, TrainConfig


def test_train_config_round_trips_through_toml_and_json():
    config = replace(CONFIG, schedule=ScheduleConfig("wsd", warmup_steps=3, decay_steps=4), grad_clip=None)
    plain = config.to_dict()
    assert TrainConfig.from_dict(json.loads(json.dumps(plain))) == config
    assert from_toml(TrainConfig, tomllib.loads(to_toml(plain)), "mine.toml") == config
    assert TrainConfig.from_dict({"steps": 5, "optimizer": {"lr": 1}}).optimizer.lr == 1.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "mine.toml: TrainConfig missing 1 required positional argument: 'steps'"),
        ({"steps": 5, "step": 3}, "mine.toml: TrainConfig has no field 'step', did you mean 'steps'"),
        ({"steps": 5, "optimizer": {"learning": 3}}, "optimizer has no field 'learning'.*name, lr"),
        ({"steps": 5, "optimizer": 3}, "optimizer must be a table of fields, got 3"),
        ({"steps": "5"}, "steps must be an integer, got '5'"),
        ({"steps": True}, "steps must be an integer, got True"),
        ({"steps": 5, "grad_clip": "a"}, "grad_clip must be a number or none, got 'a'"),
        ({"steps": 5, "grad_clip": 0.0}, "grad_clip must be above 0 and finite, got 0.0"),
        (
            {"steps": 5, "optimizer": {"betas": [0.9]}},
            r"optimizer.betas must be a list of a number and a number, got \(0.9,\)",
        ),
        ({"steps": 5, "optimizer": {"betas": [0.9, 1.0]}}, r"optimizer.betas must be in \[0, 1\), got 1.0"),
        ({"steps": 5, "optimizer": {"name": "sgd"}}, "optimizer.name must be 'adamw' or 'adam' or 'muon', got 'sgd'"),
        ({"steps": 5, "schedule": {"warmup_steps": 6}}, "6 warm-up steps and 0 decay steps do not fit into steps=5"),
        (
            {"steps": 5, "schedule": {"decay_steps": 2}},
            "schedule.decay_steps=2 needs kind='wsd' or 'wsd-sqrt', but kind='cosine'",
        ),
        ({"steps": 5, "ema_decay": 1.0}, r"ema_decay must be in \[0, 1\), got 1.0"),
        ({"steps": 5, "seed": -1}, r"seed must be in \[0, 2\^63\), got -1"),
        ({"steps": 5, "optimizer": {"lr": math.inf}}, "optimizer.lr must be at least 0, got inf"),
        ({"steps": 5, "checkpoint": {"log_every": 0}}, "checkpoint.log_every must be at least 1, got 0"),
    ],
)
def test_train_config_names_wrong_fields(plain, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig.from_dict(plain, "mine.toml")
