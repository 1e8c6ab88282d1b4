"""The presets nyu-hw4 and cs224n-a5 train as the published notebook and starter code do."""

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from qkv.cli.main import run
from qkv.models import build
from qkv.training import OptimizerConfig, TrainCallback, run_recipe
from qkv.training.metrics import read_metrics
from qkv.training.optimizers import make_optimizers
from qkv.training.recipes import get_recipe
from qkv.training.schedules import lr_factor
from qkv.training.time_budget import with_steps

NYU = {
    "model.dim": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.mlp_dim": 16,
    "data.batch_size": 16,
    "train.checkpoint.evaluate_every": 3,
    "train.checkpoint.checkpoint_every": 3,
    "train.checkpoint.log_every": 1,
}


@pytest.fixture
def images(tmp_path):
    """CIFAR-100 in small: 40 training images, so 3 batches of 16 with the last one of 8, and 20 test images."""
    random = np.random.default_rng(0)
    arrays = {
        f"{part}_x": random.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 40), ("test", 20))
    }
    arrays |= {"train_y": np.arange(40) * 3 % 100, "test_y": np.arange(20) * 3 % 100}
    arrays["train_y"][0] = 99
    np.savez(tmp_path / "small.npz", **arrays)
    return str(tmp_path / "small.npz")


def test_adam_makes_20_updates_of_torch_adam_with_coupled_decay_on_all_parameters():
    config = get_recipe("vit-cifar100").resolve(
        {"model.dim": 32, "model.layers": 2, "model.heads": 2}, preset="nyu-hw4"
    )
    torch.manual_seed(0)
    # float64: the gradient of a key bias is 0 in exact arithmetic, and Adam would scale up its rounding errors
    model = build(config.model).eval().double()
    other = build(config.model).eval().double()
    other.load_state_dict(model.state_dict())
    (ours,) = make_optimizers(model, config.stages["train"].optimizer)
    published = torch.optim.Adam(other.parameters(), lr=1e-3, weight_decay=1e-4)
    assert sum(len(group["params"]) for group in ours.param_groups) == len(list(model.parameters()))
    for _ in range(20):
        x, y = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.randint(0, 100, (4,))
        for net, optimizer in ((model, ours), (other, published)):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_adam_decays_norms_biases_and_embeddings_through_the_gradient():
    model = build(get_recipe("vit-cifar100").resolve(NYU, preset="nyu-hw4").model)
    (adam,) = make_optimizers(model, OptimizerConfig("adam", lr=1e-3, weight_decay=1e-4))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adam.step()
    for name, parameter in model.named_parameters():  # with a gradient of decay alone, Adam steps by lr·sign
        moved = 1e-3 * (1e-4 * before[name]) / ((1e-4 * before[name]).abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), before[name] - moved, rtol=0, atol=2e-7)


def test_nyu_hw4_is_the_published_recipe():
    config = get_recipe("vit-cifar100").resolve(preset="nyu-hw4")
    train = config.stages["train"]
    assert build(config.model).num_parameters == 3_217_764
    assert (train.optimizer.name, train.optimizer.lr, train.optimizer.weight_decay) == ("adam", 1e-3, 1e-4)
    assert (train.optimizer.betas, train.optimizer.eps) == ((0.9, 0.999), 1e-8) and train.grad_clip is None
    epoch_steps = math.ceil(50_000 / 256)
    assert train.steps == train.schedule.total_steps == 100 * epoch_steps
    assert train.checkpoint.evaluate_every == train.checkpoint.checkpoint_every == epoch_steps
    assert (config.data.validation_fraction, config.data.drop_last, config.data.batch_size) == (0.0, False, 256)
    assert (config.data.augment.crop, config.data.augment.flip, config.data.augment.mix) == (4, True, "either")
    short = with_steps(config, 294).stages["train"]  # --steps and --minutes squeeze the whole cosine
    assert short.schedule.total_steps == short.steps == 294


def test_total_steps_lays_the_cosine_out_over_more_steps_than_the_run(images, tmp_path, unchecked, capsys):
    command = ["train", "vit-cifar100", "--preset", "nyu-hw4", "--data", images, "--folder", str(tmp_path / "run")]
    command += [part for name, value in NYU.items() for part in ("--set", f"{name}={value}")]
    assert run([*command, "--set", "train.schedule.total_steps=300", "--epochs", "2"]) == 0
    printed = capsys.readouterr()
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert len(lines) == 6 and status["epochs"] == 2
    cosine = [1e-3 * (1 + math.cos(math.pi * step / 300)) / 2 for step in range(6)]
    assert [line["rate"] for line in lines] == pytest.approx(cosine, rel=1e-12)
    accuracies = [line["evaluation"]["accuracy"] for line in read_metrics(tmp_path / "run") if "evaluation" in line]
    assert len(accuracies) == 2, "each epoch"
    best = status["result"]["best"]
    assert best["accuracy"] == max(accuracies) == status["result"]["test"]["accuracy"]
    assert best["epoch"] == 1 + accuracies.index(max(accuracies))
    assert best["picked_on"] == "best epoch picked on the test set, as in the notebook"
    assert "validation" not in status["result"]
    label = f"{max(accuracies):.2%} at epoch {best['epoch']:g} (best epoch picked on the test set, as in the notebook)"
    assert label in " ".join(printed.out.split()) and label in (tmp_path / "run" / "report.html").read_text()
    assert "step 3, test:" in printed.err and "step 3, validation:" not in printed.err


def test_epochs_resume_bit_exactly_and_refuse_another_number(images, tmp_path, unchecked):
    changes = {**NYU, "data.path": images, "train.schedule.total_steps": 300}

    class Stops(TrainCallback):
        def on_log(self, progress):
            if progress.step == 4:
                signal.raise_signal(signal.SIGTERM)

    options = {"preset": "nyu-hw4", "epochs": 3}
    half = run_recipe("vit-cifar100", changes, folder=tmp_path / "run", callback=lambda *_: Stops(), **options)
    assert half.stopped == "SIGTERM" and half.config.stages["train"].steps == 9
    with pytest.raises(ValueError, match="contains a run of 3 epochs, not of 4"):
        run_recipe("vit-cifar100", changes, folder=tmp_path / "run", preset="nyu-hw4", epochs=4)
    again = run_recipe("vit-cifar100", changes, folder=tmp_path / "run", **options)
    whole = run_recipe("vit-cifar100", changes, folder=tmp_path / "whole", **options)
    assert again.result == whole.result and again.finished
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


def test_run_recipe_resumes_a_finished_run_with_more_epochs_bit_exactly(images, tmp_path, unchecked):
    changes = {**NYU, "data.path": images, "train.schedule.total_steps": 300}
    first = run_recipe("vit-cifar100", changes, folder=tmp_path / "run", preset="nyu-hw4", epochs=1)
    assert first.finished and first.config.stages["train"].steps == 3
    with pytest.raises(ValueError, match="contains a run of 1 epochs, not of 3"):  # other changes are still refused
        run_recipe("vit-cifar100", {**changes, "model.dim": 32}, folder=tmp_path / "run", preset="nyu-hw4", epochs=3)
    again = run_recipe("vit-cifar100", changes, folder=tmp_path / "run", preset="nyu-hw4", epochs=3)
    whole = run_recipe("vit-cifar100", changes, folder=tmp_path / "whole", preset="nyu-hw4", epochs=3)
    assert again.result == whole.result and again.config == whole.config
    rows = [[{**line, "timing": None} for line in read_metrics(tmp_path / name)] for name in ("run", "whole")]
    assert rows[0] == rows[1]
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


def test_epochs_are_refused_for_several_stages_and_beside_steps(capsys):
    assert run(["train", "birthplaces", "--epochs", "2", "--set", "data.people=20"]) == 2
    assert "epochs are for a recipe with one stage" in " ".join(capsys.readouterr().err.split())
    assert run(["train", "vit-digits", "--epochs", "2", "--steps", "3"]) == 2
    assert "give one of minutes, steps and epochs" in capsys.readouterr().err
    digits = get_recipe("vit-digits").resolve().stages["train"].schedule
    assert lr_factor(digits, 30, 1200) == pytest.approx(31 / 60)


PUBLISHED = {  # max_epochs, batch_size, learning_rate of CS224N A5's starter code
    "pretrain": (650, 128, 6e-3),
    "finetune": (10, 256, 6e-4),
}


def published_rates(items, batch_size, learning_rate, updates):
    """The learning rate of each update, read from the starter code: set after an update, by the tokens so far."""
    warmup_tokens, final_tokens = 512 * 20, 200 * 2937 * 128
    tokens, rate, rates = 0, learning_rate, []
    while len(rates) < updates:
        for start in range(0, items, batch_size):  # a DataLoader without shuffle and drop_last
            rates.append(rate)
            tokens += min(batch_size, items - start) * 127  # (y >= 0).sum(): padding has target 0
            if tokens < warmup_tokens:
                multiplier = tokens / warmup_tokens
            else:
                progress = (tokens - warmup_tokens) / (final_tokens - warmup_tokens)
                multiplier = max(0.1, 0.5 * (1.0 + math.cos(math.pi * progress)))
            rate = learning_rate * multiplier
    return rates[:updates]


@pytest.mark.parametrize(("stage", "items"), [("pretrain", 2937), ("finetune", 2000)])
def test_cs224n_a5_has_the_learning_rates_of_the_starter_code(stage, items):
    config = get_recipe("birthplaces").resolve(preset="cs224n-a5", model="vanilla").stages[stage]
    epochs, batch_size, rate = PUBLISHED[stage]
    assert config.steps == epochs * math.ceil(items / batch_size)
    assert (config.optimizer.name, config.optimizer.betas, config.optimizer.weight_decay) == ("adamw", (0.9, 0.95), 0.1)
    assert (config.grad_clip, config.checkpoint.best_metric, config.grad_accumulation) == (1.0, "", 1)
    count = min(config.steps, 200)
    ours = [config.optimizer.lr * lr_factor(config.schedule, step, config.steps) for step in range(count)]
    assert ours == pytest.approx(published_rates(items, batch_size, rate, count), rel=1e-12)
    if stage == "pretrain":  # not clamped: it falls, rises again and falls
        whole = published_rates(items, batch_size, rate, config.steps)
        ours = [config.optimizer.lr * lr_factor(config.schedule, step, config.steps) for step in range(config.steps)]
        assert ours == pytest.approx(whole, rel=1e-9)
        at = [ours[epoch * 23] / rate for epoch in (200, 400, 600)]
        assert at == pytest.approx([0.1, 1.0, 0.1], abs=1e-3)


@pytest.mark.parametrize("model", ["vanilla", "rope"])
def test_cs224n_a5_decays_all_but_biases_and_layer_norm_weights(model):
    config = get_recipe("birthplaces").resolve(preset="cs224n-a5", model=model)
    net = build(config.model)
    norms = {f"{name}.weight" for name, module in net.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert len(norms) == 9
    for stage in config.stages.values():
        (adamw,) = make_optimizers(net, stage.optimizer)
        decay = {id(p): group["weight_decay"] for group in adamw.param_groups for p in group["params"]}
        assert {name: decay[id(p)] for name, p in net.named_parameters()} == {
            name: 0.0 if "bias" in name or name in norms else 0.1 for name, _ in net.named_parameters()
        }


def test_cs224n_a5_batches_come_in_the_order_of_the_files_and_score_both_masks(unchecked):
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "birthplaces"
    if not folder.is_dir():
        pytest.skip("needs birthplaces in the shared data next to the checkout")
    recipe = get_recipe("birthplaces")
    task = recipe.build(recipe.resolve({"data.path": str(folder)}, preset="cs224n-a5", model="vanilla"))
    assert task.model.num_parameters == 3_323_392 and task.notes == ()
    pretrain, finetune = task.stages
    assert pretrain.validate is None and finetune.validate is None, "all pairs are trained on, the last checkpoint used"
    decode = Tokenizer.from_str(task.files["tokenizer.json"].decode()).id_to_token
    wiki = (folder / "wiki.txt").read_text(encoding="utf-8").split("\n")
    pairs = [
        line.split("\t") for line in (folder / "birth_places_train.tsv").read_text("utf-8").strip("\n").split("\n")
    ]
    for stage, items, size in ((pretrain, wiki, 128), (finetune, pairs, 256)):
        for epoch in (0, 1):
            plan = [row for batch in stage.batches.plan(epoch) for row in batch]
            assert plan == [[item] for item in range(len(items))]
            assert [len(batch) for batch in stage.batches.plan(epoch)][:-1] == [size] * (len(items) // size)
    first, last = pretrain.batches.batch(0, 0), pretrain.batches.batch(0, 22)
    assert (first["tokens"].shape, last["tokens"].shape) == ((128, 127), (2937 - 22 * 128, 127))
    for row in range(3):
        assert decode(int(first["tokens"][row, 0])) in (wiki[row][0], "⁇")
    batch = finetune.batches.batch(0, 0)
    for row, (question, answer) in enumerate(pairs[:5]):
        text = "".join(decode(int(token)) for token in batch["tokens"][row])
        assert text.startswith(f"{question}⁇{answer}□"), "the ⁇ behind it would predict padding, which is not scored"
        scored = "".join(decode(int(t)) for t in batch["targets"][row][batch["loss_mask"][row]])
        assert scored == f"⁇{answer}⁇"


def test_cs224n_a5_without_pretraining_fine_tunes_for_75_epochs():
    config = get_recipe("birthplaces").resolve(preset="cs224n-a5-no-pretraining", model="vanilla")
    assert not config.data.pretrain and config.stages["finetune"].steps == 75 * 8


def test_cs224n_a5_runs_to_the_last_checkpoint_and_notes_other_data(tmp_path, unchecked):
    small = {"model.dim": 16, "model.layers": 1, "model.heads": 2, "data.people": 30}
    notes = []
    done = run_recipe("birthplaces", small, preset="cs224n-a5", steps=4, folder=tmp_path, on_note=notes.append)
    assert done.finished and "exact" in done.result["test"] and done.result["validation"] == {}
    assert any("the schedule has 372,999 tokens in an epoch" in note for note in notes)
