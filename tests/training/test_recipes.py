"""Recipes: resolve overrides, round trips through TOML, presets; and each recipe runs and learns."""

import json
import math
from collections import Counter

import pytest

from qkv._config import read_toml, to_toml
from qkv.cli.main import run
from qkv.nn import Shaw
from qkv.positions import Alibi, Rope
from qkv.training import open_run, run_recipe
from qkv.training.recipes import RECIPES, get_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_config_round_trips_through_toml(name, tmp_path):
    known = get_recipe(name)
    for model in known.models:
        for preset in (None, *known.presets):
            recipe = known.resolve(model=model, preset=preset, seed=3)
            path = tmp_path / "recipe.toml"
            path.write_text(to_toml(recipe.to_table()), encoding="utf-8")
            assert known.from_table(read_toml(path)) == recipe


def test_resolve_accepts_dotted_and_nested_overrides():
    known = get_recipe("vit-digits")
    dotted = known.resolve({"model.dim": 32, "train.optimizer.lr": 0.5, "data.augment.crop": 2})
    nested = known.resolve(
        {"model": {"dim": 32}, "train": {"optimizer": {"lr": 0.5}}, "data": {"augment": {"crop": 2}}}
    )
    assert dotted == nested
    assert (dotted.model.dim, dotted.stages["train"].optimizer.lr, dotted.data.augment.crop) == (32, 0.5, 2)
    assert dotted.stages["train"].schedule == known.resolve().stages["train"].schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.dmi": 3}, "vit-digits has no field 'model.dmi', did you mean 'model.dim'"),
        ({"trian.steps": 3}, "has no field 'trian.steps', did you mean 'train'"),
        ({"train.steps": "many"}, "steps must be an integer, got 'many'"),
        ({"train.steps": 0}, "steps must be at least 1, got 0"),
        ({"model.dim": 30, "model.heads": 4}, "dim=30.*heads"),
        ({"model": 3}, "set one of them"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
        ({"model.kind": "vti"}, "has no model 'vti'"),
    ],
)
def test_resolve_names_a_wrong_override(change, message):
    def build():
        known = get_recipe("vit-digits")
        known.build(known.resolve(change))

    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({"model.position": "alibi"}, Alibi()),
        ({"model.position": "learned"}, "learned"),
        ({"model.position": "Shaw"}, Shaw()),
        ({"model.position.kind": "Alibi"}, Alibi()),
        ({"model.position.base": 500}, Rope(base=500.0)),
        ({"model.position": {"kind": "Rope", "rotary_dim": 8}}, Rope(rotary_dim=8)),
    ],
)
def test_resolve_selects_a_variant_by_name(change, chosen):
    known = get_recipe("gpt-text")
    assert known.resolve().model.position == Rope()
    assert known.resolve(change).model.position == chosen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.position": "spiral"}, "position must be 'learned' or .* or .*{ kind = \"Rope\" }.*, got 'spiral'"),
        ({"model.position.kind": "spiral"}, "position has the unknown kind 'spiral'; known kinds: .*Rope"),
        ({"model.score": "RandomSynthesizer"}, r"score \(RandomSynthesizer\) .*'max_length'"),
        ({"model": "rnn"}, "model is a table .*; set one of them"),
    ],
)
def test_resolve_lists_the_variants_that_fit(change, message):
    with pytest.raises(ValueError, match=message):
        get_recipe("gpt-text").resolve(change)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ([], {"pretrain": 60, "finetune": 40}),
        (["--preset", "cs224n-a5"], {"pretrain": 85, "finetune": 15}),
        (["--set", "data.pretrain=false"], {"pretrain": 2000, "finetune": 100}),
    ],
)
def test_train_show_prints_the_requested_steps(more, steps, capsys):
    assert run(["train", "birthplaces", "--show", "--json", "--steps", "100", *more]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {name: shown[name]["steps"] for name in steps} == steps
    assert shown["finetune"]["checkpoint"]["evaluate_every"] <= steps["finetune"] // 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--minutes", "3"], "--show takes --steps"), (["--steps", "0"], "steps must be at least 1 and at most")],
)
def test_train_show_refuses_wrong_lengths(arguments, message, capsys):
    assert run(["train", "birthplaces", "--show", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_course_presets_have_the_parameters_of_the_course_models():
    vit = get_recipe("vit-cifar100").resolve(preset="nyu-hw4")
    assert (vit.model.dim, vit.model.layers, vit.model.mlp_dim, vit.data.batch_size) == (256, 6, 512, 256)
    from qkv.models import build

    assert build(vit.model).num_parameters == 3_217_764
    sizes = {
        name: build(get_recipe("birthplaces").resolve(model=name).model).num_parameters
        for name in ("vanilla", "synthesizer", "rope")
    }
    assert sizes == {"vanilla": 3_323_392, "synthesizer": 3_076_988, "rope": 3_290_624}


SMALL = {
    "vit-digits": {
        "model.dim": 32,
        "model.layers": 2,
        "model.heads": 2,
        "data.augment.crop": 0,
        "data.augment.mix": "none",
        "train.optimizer.lr": 4e-3,
    },
    "gpt-text": {
        "data.batch_size": 16,
        "data.max_length": 48,
        "data.validation_tokens": 2000,
        "model.dim": 48,
        "model.layers": 1,
        "model.heads": 3,
        "model.dropout": 0.0,
        "train.optimizer.lr": 1e-2,
    },
    "birthplaces": {
        "data.people": 40,
        "data.batch_size": 16,
        "data.finetune_batch_size": 8,
        "model.kind": "small",
        "model.dim": 32,
        "model.layers": 1,
        "model.heads": 2,
        "pretrain.optimizer.lr": 1e-2,
    },
    "translate": {
        "model.dim": 32,
        "model.heads": 2,
        "model.mlp_dim": 64,
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "model.dropout": 0.0,
        "data.vocab_size": 300,
        "data.batch_tokens": 512,
        "data.num_beams": 1,
        "data.validation_sentences": 20,
        "train.optimizer.lr": 1e-2,
    },
    "speech": {
        **get_recipe("speech").presets["no-augment"],
        "model.dim": 64,
        "model.heads": 2,
        "model.layers": 2,
        "data.num_strings": 64,
        "data.eval_strings": 20,
        "data.test_strings": 20,
        "data.batch_size": 16,
        "data.max_digits": 1,
    },
}
STEPS = {"vit-digits": 120, "gpt-text": 60, "birthplaces": 240, "translate": 100, "speech": 150}


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def entropy(counts):
    total = sum(counts)
    return -sum(count / total * math.log(count / total) for count in counts)


def unigram_loss(name, run):
    """The loss of a model that has learned only the frequencies of targets, in closed form."""
    task = get_recipe(name).build(run.config)
    stage = task.stages[0]
    if name == "vit-digits":
        return math.log(10)
    batches = [stage.batches.batch(0, index) for index in range(min(stage.batches.num_batches(0), 40))]
    if name == "speech":  # blanks only, or uniform labels, cannot be below this per label
        return math.log(10)
    counts = Counter(token for batch in batches for token in batch["targets"][batch["loss_mask"]].tolist())
    return entropy(counts.values())


@pytest.mark.parametrize("name", SMALL)
def test_run_recipe_runs_end_to_end_and_learns(name, tmp_path, unchecked):
    folder = tmp_path / name
    run = run_recipe(
        name,
        SMALL[name],
        {"train.checkpoint.evaluate_every": 0} if name != "birthplaces" else {},
        steps=STEPS[name],
        folder=folder,
    )
    assert run.finished
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((folder / "samples.json").read_text())
    assert run.model.num_parameters == run.parameters
    first = folder / "pretrain" if name == "birthplaces" else folder
    last = losses(first)[-1]
    assert last < unigram_loss(name, run), f"{name} has not learned: {last:.3f}"
    assert open_run(folder).result == json.loads(json.dumps(run.result))
