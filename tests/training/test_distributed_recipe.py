"""A recipe of two stages in two processes that shard the model (FSDP2)."""

import torch
from gloo_processes import run_processes

import qkv
from qkv.training import open_run, run_recipe

SMALL = {
    "data.people": 30,
    "data.batch_size": 16,
    "data.finetune_batch_size": 8,
    "model.kind": "small",
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
}
SHARDED = {"pretrain.parallel": "fsdp", "finetune.parallel": "fsdp"}


def in_minutes(folder):
    run_recipe("birthplaces", SMALL, SHARDED, folder=folder, minutes=1e-4)


def test_run_recipe_has_the_same_steps_in_all_processes(tmp_path):
    run_processes(2, in_minutes, tmp_path / "two")
    two = open_run(tmp_path / "two")
    steps = {name: {"steps": stage.steps} for name, stage in two.config.stages.items()}
    assert two.finished and steps == {"pretrain": {"steps": 10}, "finetune": {"steps": 10}}
    run_recipe("birthplaces", SMALL, SHARDED, folder=tmp_path / "one", minutes=1e-4)
    one, two = (qkv.load(tmp_path / side / "model").state_dict() for side in ("one", "two"))
    assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)
