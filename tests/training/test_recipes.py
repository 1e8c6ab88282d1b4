"""Recipes are data: resolved, changed, written down and read back; and each of them runs and learns."""

import contextlib
import json
import math
import signal
from collections import Counter
from dataclasses import replace

import pytest
import torch

from qkv.cli.main import run
from qkv.data.spoken import Spoken
from qkv.data.tones import tone_digits
from qkv.nn import Shaw
from qkv.positions import Alibi, Rope
from qkv.training import Saving, Schedule, Settings
from qkv.training.recipes import SYSTEMS, open_run, speech, system, train
from qkv.training.recipes import time_budget as pace
from qkv.training.recipes.plain import read_toml, to_toml
from qkv.training.recipes.time_budget import of_steps


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_recipe_goes_to_toml_and_back(name, tmp_path):
    known = system(name)
    for model in known.models:
        for preset in (None, *known.presets):
            recipe = known.recipe(model=model, preset=preset, seed=3)
            path = tmp_path / "recipe.toml"
            path.write_text(to_toml(recipe.to_table()), encoding="utf-8")
            assert known.read(read_toml(path)) == recipe


def test_changes_by_name_from_a_file_and_from_the_command_line_agree():
    known = system("vit-digits")
    dotted = known.recipe({"model.dim": 32, "train.optimiser.lr": 0.5, "data.augment.crop": 2})
    nested = known.recipe(
        {"model": {"width": 32}, "train": {"optimiser": {"lr": 0.5}}, "data": {"augment": {"crop": 2}}}
    )
    assert dotted == nested
    assert (dotted.model.width, dotted.stages["train"].optimiser.lr, dotted.data.augment.crop) == (32, 0.5, 2)
    assert dotted.stages["train"].schedule == known.recipe().stages["train"].schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.widht": 3}, "did you mean model.dim"),
        ({"trian.steps": 3}, "did you mean train"),
        ({"train.steps": "many"}, "steps is a whole number"),
        ({"train.steps": 0}, "steps is at least 1"),
        ({"model.dim": 30, "model.heads": 4}, "does not split into heads"),
        ({"model": 3}, "set one of them"),
        ({"seed": -1}, "seed is a whole number"),
        ({"model.kind": "vti"}, "has no model 'vti'"),
    ],
)
def test_a_mistaken_change_is_named(change, message):
    def build():
        known = system("vit-digits")
        known.build(known.recipe(change))

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
        ({"model.position": {"kind": "Rope", "width": 8}}, Rope(rotary_dim=8)),
    ],
)
def test_a_part_of_another_kind_is_chosen_by_its_name(change, chosen):
    known = system("gpt-text")
    assert known.recipe().model.position == Rope()
    assert known.recipe(change).model.position == chosen


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.position": "spiral"}, "position is 'learned' or .* or { kind = \"Rope\" } or .*; got 'spiral'"),
        ({"model.position.kind": "spiral"}, "position is of kind 'spiral'; known are"),
        ({"model.score": "RandomSynthesizer"}, r"score \(RandomSynthesizer\) .*'length'"),
        ({"model": "rnn"}, "model is a table .*; set one of them"),
    ],
)
def test_a_part_that_does_not_fit_is_answered_with_those_that_do(change, message):
    with pytest.raises(ValueError, match=message):
        system("gpt-text").recipe(change)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ([], {"pretrain": 60, "finetune": 40}),
        (["--preset", "course"], {"pretrain": 85, "finetune": 15}),
        (["--set", "data.pretrain=false"], {"pretrain": 2000, "finetune": 100}),
    ],
)
def test_the_recipe_that_is_shown_has_the_steps_that_are_asked_for(more, steps, capsys):
    assert run(["train", "birthplaces", "--show", "--json", "--steps", "100", *more]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {name: shown[name]["steps"] for name in steps} == steps
    assert shown["finetune"]["saving"]["evaluate_every"] <= steps["finetune"] // 4


@pytest.mark.parametrize(
    ("said", "message"),
    [(["--minutes", "3"], "--show takes --steps"), (["--steps", "0"], "at least 1 step, and at most")],
)
def test_steps_that_cannot_be_shown_are_wrong_use(said, message, capsys):
    assert run(["train", "birthplaces", "--show", *said]) == 2
    assert message in capsys.readouterr().err


def test_the_course_presets_are_the_course_models_exactly():
    vit = system("vit-cifar100").recipe(preset="course")
    assert (vit.model.width, vit.model.layers, vit.model.hidden, vit.data.batch) == (256, 6, 512, 256)
    from qkv.models import build

    assert build(vit.model).num_parameters == 3_217_764
    sizes = {
        name: build(system("birthplaces").recipe(model=name).model).num_parameters
        for name in ("vanilla", "synthesizer", "rope")
    }
    assert sizes == {"vanilla": 3_323_392, "synthesizer": 3_076_988, "rope": 3_290_624}


def test_fewer_steps_keep_the_shape_of_the_schedule():
    settings = Settings(
        steps=3000, schedule=Schedule(warmup=300), saving=Saving(evaluate_every=500, checkpoint_every=500)
    )
    short = of_steps(settings, 30)
    assert short.steps == 30
    assert short.schedule.warmup == 3
    assert short.saving.evaluate_every == 5


SMALL = {
    "vit-digits": {
        "model.dim": 32,
        "model.layers": 2,
        "model.heads": 2,
        "data.augment.crop": 0,
        "data.augment.mix": "none",
        "train.optimiser.lr": 4e-3,
    },
    "gpt-text": {
        "data.batch": 16,
        "data.length": 48,
        "data.judged": 2000,
        "model.dim": 48,
        "model.layers": 1,
        "model.heads": 3,
        "model.dropout": 0.0,
        "train.optimiser.lr": 1e-2,
    },
    "birthplaces": {
        "data.people": 40,
        "data.batch": 16,
        "data.finetune_batch": 8,
        "model.kind": "small",
        "model.dim": 32,
        "model.layers": 1,
        "model.heads": 2,
        "pretrain.optimiser.lr": 1e-2,
    },
    "translate": {
        "model.dim": 32,
        "model.heads": 2,
        "model.mlp_dim": 64,
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "model.dropout": 0.0,
        "data.vocab": 300,
        "data.tokens": 512,
        "data.beams": 1,
        "data.judged": 20,
        "train.optimiser.lr": 1e-2,
    },
    "speech": {
        **system("speech").presets["undisguised"],
        "model.dim": 32,
        "model.heads": 2,
        "model.layers": 1,
        "data.strings": 64,
        "data.judged": 20,
        "data.batch": 8,
        "data.most": 3,
        "model.dropout": 0.0,
        "train.optimiser.lr": 1e-2,
        "train.optimiser.muon_lr": 0.05,
    },
}
STEPS = {"vit-digits": 120, "gpt-text": 60, "birthplaces": 240, "translate": 100, "speech": 150}


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def entropy(counts):
    total = sum(counts)
    return -sum(count / total * math.log(count / total) for count in counts)


def floor(name, run):
    """What a model that has learned only how often things occur would lose: closed form."""
    task = system(name).build(run.recipe)
    stage = task.stages[0]
    if name == "vit-digits":
        return math.log(10)
    batches = [stage.batches.batch(0, index) for index in range(min(stage.batches.count(0), 40))]
    if name == "speech":  # a transcriber that says blanks, or draws labels evenly, cannot be below this for each label
        return math.log(10)
    counts = Counter(token for batch in batches for token in batch["targets"][batch["scored"]].tolist())
    return entropy(counts.values())


@pytest.mark.parametrize("name", SMALL)
def test_each_recipe_runs_end_to_end_and_learns(name, tmp_path, unchecked):
    folder = tmp_path / name
    run = train(
        name,
        SMALL[name],
        {"train.saving.evaluate_every": 0} if name != "birthplaces" else {},
        steps=STEPS[name],
        folder=folder,
    )
    assert run.finished
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((folder / "samples.json").read_text())
    assert run.model.num_parameters == run.parameters
    first = folder / "pretrain" if name == "birthplaces" else folder
    last = losses(first)[-1]
    assert last < floor(name, run), f"{name} has not learned: {last:.3f}"
    assert open_run(folder).result == json.loads(json.dumps(run.result))


def test_a_trained_model_is_used_on_a_picture_and_names_a_file_that_is_none(tmp_path, unchecked):
    from PIL import Image

    from qkv.data.digit_images import digits
    from qkv.training.recipes.use import open_tool

    changes = {"model.dim": 16, "model.layers": 1, "model.heads": 2}
    run = train("vit-digits", changes, steps=4, folder=tmp_path / "run")
    tool, parts = open_tool(tmp_path / "run"), digits()
    Image.fromarray(parts.test.pixels[0, 0].numpy()).save(tmp_path / "digit.png")
    used = tool(str(tmp_path / "digit.png"), top=10)
    pixels = parts.test.pixels[:1].float() / 255
    normalised = (pixels - tool.purpose["mean"][0]) / tool.purpose["deviation"][0]
    chances = run.model(normalised).softmax(-1)[0].detach()
    assert used.result == str(int(chances.argmax()))
    assert used.sure == pytest.approx(float(chances.max()), abs=1e-4)
    (tmp_path / "none.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none\.png: the file is empty"):
        tool(str(tmp_path / "none.png"))


def test_a_signal_while_the_speed_is_measured_stops_before_anything_has_begun(tmp_path, monkeypatch):
    def asked(clock, progress):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(pace._Clock, "progress", asked)
    run = train("vit-digits", folder=tmp_path / "run", minutes=1)
    assert (run.finished, run.stopped) == (False, "SIGTERM")
    assert not (tmp_path / "run").exists()


def test_the_speed_is_that_of_many_steps_and_not_of_the_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])

    def tried(trying, lengths):
        clock = pace._Clock(trying)
        with contextlib.suppress(pace._EnoughError):
            for seconds in lengths:
                now[0] += seconds
                clock.progress(None)
        return len(clock.seconds), clock.step

    count, step = tried(8.0, [1.0] * 3 + [0.1, 0.3] * 100)  # three slow ones to begin with, then short and long ones
    assert 16 < count < 60 and step == pytest.approx(0.2, rel=0.05)
    assert tried(0.0, [0.01] * 100)[0] == 16  # a short run: no fewer than these
    assert tried(60.0, [9.0] * 100)[0] == 4  # slow ones: no more than it takes
    patient = pace._Clock(None)
    for _ in range(1000):
        patient.progress(None)
    assert len(patient.seconds) == 1000  # among several processes, nobody stops before the others


def test_machine_voices_are_heard_in_training_alone_and_not_beside_tones():
    recipe = system("speech").recipe({"data.judged": 10})
    (stage,) = system("speech").build(recipe).stages
    assert stage.batches.share == 0  # tones are no words
    parts = tone_digits(takes=12)
    heard = speech.others(replace(recipe.data, path="a folder"), parts)
    assert heard["share"] == 0.5 and {"espeak", "pico"} < {spoken.speaker for spoken in heard["others"]}
    assert speech.loudness(heard["others"]) == pytest.approx(speech.loudness(parts.train))
    assert speech.loudness([Spoken(torch.tensor([0.3, -0.5]), 1, "ada", 0)]) == pytest.approx(math.sqrt(0.17))
    assert speech.others(replace(recipe.data, path="a folder", machines=0.0), parts) == {}
    with pytest.raises(ValueError, match=r"data.machines is a share of the training strings, from 0 to 1; got 1.5"):
        system("speech").recipe({"data.machines": 1.5})
