"""A recipe of two stages in two processes, each of which holds a share of the model."""

import torch
from loop_processes import together

import qkv
from qkv.training.recipes import open_run, train

SMALL = {
    "data.people": 30,
    "data.batch": 16,
    "data.finetune_batch": 8,
    "model.kind": "small",
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
}
SHARED = {"pretrain.parallel": "fsdp", "finetune.parallel": "fsdp"}


def in_minutes(folder):
    train("birthplaces", SMALL, SHARED, folder=folder, minutes=1e-4)


def test_two_stages_and_their_minutes_are_the_same_in_all_processes(tmp_path):
    together(2, in_minutes, tmp_path / "two")
    two = open_run(tmp_path / "two")
    steps = {name: {"steps": stage.steps} for name, stage in two.recipe.stages.items()}
    assert two.finished and steps == {"pretrain": {"steps": 10}, "finetune": {"steps": 10}}
    train("birthplaces", SMALL, SHARED, folder=tmp_path / "one", minutes=1e-4)
    one, two = (qkv.load(tmp_path / side / "model").state_dict() for side in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)
