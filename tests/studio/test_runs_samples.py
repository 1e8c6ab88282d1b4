"""What a run's model does while it trains: the rows are the library's own, and the page follows its checkpoints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkv.studio.jobs import Job
from qkv.studio.samples import KEPT, Sampled, _known, newest
from qkv.studio.state import Studio
from qkv.studio.training import HOLDER
from qkv.studio.work.post import Post
from qkv.studio.work.samples import work
from qkv.training import recipes, restored
from qkv.training.checkpointing import Store
from qkv.training.lock import process
from qkv.training.recipes.registry import system


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that has a checkpoint, as one that goes on has."""
    place = tmp_path_factory.mktemp("runs") / "vit-digits-1"
    recipes.train("vit-digits", {"model.widths": [8]}, model="mlp", seed=1, steps=3, folder=place)
    status = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**status, "finished": False}))
    (place / "samples.json").unlink()
    return place


def test_the_newest_checkpoint_says_what_the_library_says_of_it(run):
    said: list[dict[str, Any]] = []
    work({"place": str(run)}, lambda **message: said.append(message))
    step = Store(run).steps()[-1]
    recipe = recipes.open_run(run).recipe
    rows = system(recipe.system).build(recipe).samples(restored(Store(run).place(step)).eval())
    assert said == [{"stage": "train", "step": step, "samples": rows}] and len(rows) > 5
    assert newest({"train": run}) == f"train {step}"


def test_a_run_without_a_checkpoint_says_so(run, tmp_path):
    for name in ("recipe.toml", "run.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(ValueError, match="no checkpoint yet"):
        work({"place": str(tmp_path)}, lambda **message: None)
    assert newest({"train": tmp_path}) == ""


def test_only_the_last_samples_are_remembered(tmp_path):
    sampled = Sampled(Studio())
    for step in range(KEPT + 3):
        sampled._keep(_known(tmp_path / "a"), "train", step, [{"said": str(step)}])
    assert [each["step"] for each in sampled.seen(tmp_path / "a")] == list(range(3, KEPT + 3))


def test_a_run_that_is_given_the_name_of_one_that_is_gone_has_no_samples_of_it(tmp_path):
    sampled, recipe = Sampled(Studio()), tmp_path / "a" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text("seed = 1")
    sampled._keep(_known(tmp_path / "a"), "train", 3, [{"said": "old"}])
    assert sampled.seen(tmp_path / "a")
    recipe.write_text("seed = 2")
    os.utime(recipe, ns=(0, 0))
    assert sampled.seen(tmp_path / "a") == []


def test_the_page_shows_samples_as_checkpoints_come(serving, visit, run, monkeypatch):
    step = Store(run).steps()[-1]
    told = iter([(step, "<b>early</b>"), (step + 7, "later")])

    def ask(self: Post, request: dict[str, Any], job: Job, **_: Any) -> Any:
        assert Path(request["place"]) == run.resolve()
        now, words = next(told)
        yield {"stage": "train", "step": now, "samples": [{"begins": "to", "goes on": words}]}

    monkeypatch.setattr(Post, "ask", ask)
    (run / HOLDER).write_text(json.dumps(process(os.getpid())))  # as if this process trained it
    page = visit(serving(runs=run.parent)).go("runs?show=vit-digits-1")
    page.locator("dd", has_text="<b>early</b>").wait_for()  # text, never HTML
    (run / "checkpoints" / f"step-{step + 7:08d}").mkdir()
    page.locator("dd", has_text="later").wait_for()
    page.get_by_label("When").select_option(f"train {step}")
    page.locator("dd", has_text="<b>early</b>").wait_for()
    assert f"after {step + 7} steps" in page.get_by_test_id("samples").inner_text()
