"""Samples of a run while it trains: the rows are those of the library, and the page follows the checkpoints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkv._workers import Worker
from qkv.studio.api.runs import MAX_CHECKPOINTS, CheckpointSampler, _run_key
from qkv.studio.run_files import newest_checkpoint
from qkv.studio.server import Studio
from qkv.studio.tasks import sample_checkpoint
from qkv.training import load_checkpoint, open_run, run_recipe
from qkv.training.checkpointing import CheckpointStore
from qkv.training.lock import lock_folder
from qkv.training.recipes import get_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that has a checkpoint, as one that goes on has."""
    place = tmp_path_factory.mktemp("runs") / "vit-digits-1"
    run_recipe("vit-digits", {"model.hidden_sizes": [8]}, model="mlp", seed=1, steps=3, folder=place)
    status = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**status, "finished": False}))
    (place / "samples.json").unlink()
    return place


def test_sample_checkpoint_sends_the_rows_of_the_library(run):
    messages: list[dict[str, Any]] = []
    sample_checkpoint({"folder": str(run)}, lambda **message: messages.append(message))
    step = CheckpointStore(run).steps()[-1]
    recipe = open_run(run).config
    rows = get_recipe(recipe.recipe).build(recipe).samples(load_checkpoint(CheckpointStore(run).path(step)).eval())
    assert messages == [{"stage": "train", "step": step, "samples": rows}] and len(rows) > 5
    assert newest_checkpoint({"train": run}) == f"train {step}"


def test_sample_checkpoint_says_that_there_is_no_checkpoint(run, tmp_path):
    for name in ("recipe.toml", "run.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(ValueError, match="no checkpoint yet"):
        sample_checkpoint({"folder": str(tmp_path)}, lambda **message: None)
    assert newest_checkpoint({"train": tmp_path}) == ""


def test_checkpoint_sampler_remembers_the_last_checkpoints(tmp_path):
    sampler = CheckpointSampler(Studio())
    for step in range(MAX_CHECKPOINTS + 3):
        sampler._store(_run_key(tmp_path / "a"), "train", step, [{"said": str(step)}])
    assert [each["step"] for each in sampler.samples(tmp_path / "a")] == list(range(3, MAX_CHECKPOINTS + 3))


def test_a_run_with_the_name_of_a_deleted_one_has_no_samples_of_it(tmp_path):
    sampler, recipe = CheckpointSampler(Studio()), tmp_path / "a" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text("seed = 1")
    sampler._store(_run_key(tmp_path / "a"), "train", 3, [{"said": "old"}])
    assert sampler.samples(tmp_path / "a")
    recipe.write_text("seed = 2")
    os.utime(recipe, ns=(0, 0))
    assert sampler.samples(tmp_path / "a") == []


def test_runs_page_shows_samples_of_new_checkpoints(serving, visit, run, monkeypatch):
    step = CheckpointStore(run).steps()[-1]
    answers = iter([(step, "<b>early</b>"), (step + 7, "later")])

    def request(self: Worker, request: dict[str, Any], **_: Any) -> Any:
        assert Path(request["folder"]) == run.resolve()
        now, words = next(answers)
        yield {"stage": "train", "step": now, "samples": [{"begins": "to", "goes on": words}]}

    monkeypatch.setattr(Worker, "request", request)
    with lock_folder(run):  # as if this process trained it
        page = visit(serving(runs=run.parent)).go("runs?show=vit-digits-1")
        page.locator("dd", has_text="<b>early</b>").wait_for()  # text, never HTML
        (run / "checkpoints" / f"step-{step + 7:08d}").mkdir()
        page.locator("dd", has_text="later").wait_for()
        page.get_by_label("Checkpoint").select_option(f"train {step}")
        page.locator("dd", has_text="<b>early</b>").wait_for()
        assert f"after {step + 7} steps" in page.get_by_test_id("samples").inner_text()
