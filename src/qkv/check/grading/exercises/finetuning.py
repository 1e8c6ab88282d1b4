"""Grade CS224N's finetune, pretrain and train: what they load, their data, their settings, what they save.

Nothing is trained: a recording trainer stands in for the course's, so that only what the functions ask of it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.check.grading.client import Sandbox, SubmissionError
from qkv.check.grading.exercises.common import Exercise, GradedCheck
from qkv.check.grading.probes import read_probe
from qkv.check.grading.probes.stand_ins import STUBS
from qkv.check.grading.reading import Submission
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

TEXT = "Where was Ada Lovelace born?\tLondon\nWhere was Kurt Gödel born?\tBrno\n"
BLOCK_SIZE, NUM_DOCUMENTS = 128, 123
SHARED = {"lr_decay": True, "warmup_tokens": 512 * 20, "final_tokens": 200 * NUM_DOCUMENTS * BLOCK_SIZE}
FINETUNE = {"batch_size": 256, "learning_rate": 6e-4, **SHARED}
PRETRAIN = {"max_epochs": 650, "batch_size": 128, "learning_rate": 6e-3, **SHARED}


@dataclass(frozen=True)
class Finetuning:
    """What the functions did, by call: "without" and "with" pretrained parameters, "pretrain" and "train"."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]

    def of(self, name: str) -> dict[str, Any]:
        found = self.values.get(name)
        if not isinstance(found, dict):
            errors = self.values.get("errors")
            raise SubmissionError(str(errors.get(name) if isinstance(errors, dict) else "nothing was returned"))
        return found

    @property
    def finished(self) -> tuple[str, ...]:
        """The calls of finetune that did not fail; an error costs what it is about. Both, if both failed."""
        found = tuple(name for name in ("without", "with") if isinstance(self.values.get(name), dict))
        return found or ("without", "with")

    def hyperparameters(self, name: str) -> dict[str, Any]:
        found = self.of(name).get("hyperparameters")
        if not isinstance(found, dict):
            raise SubmissionError("it returned no TrainerConfig")
        return found


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> Finetuning:
    sandbox.describe_function()
    files: dict[str, str | None] = {}
    if isinstance(sandbox.source, Submission):
        for name in ("pretrain", "train"):
            found = sandbox.source.find_definition([name])
            files[name] = found[0].path if found else None
    arguments = {"text": TEXT, "block_size": BLOCK_SIZE, "finetune": sandbox.name, "files": files}
    tensors, values = sandbox.probe(read_probe("finetuning"), arguments)
    return Finetuning(values, tensors)


def require_response_of_finetuning(finetuning: Finetuning) -> None:
    """There is nothing here that a constant could pass."""


def check_returns(finetuning: Finetuning) -> list[Finding]:
    for name in finetuning.finished:
        about = finetuning.of(name)
        if about.get("nothing"):
            evidence = "finetune returns nothing"
            return [Finding("returns", "fail", None, evidence, "return tconf, trainer_obj", "nothing")]
        if not about.get("trainer") or not about.get("config"):
            evidence = f"finetune ({name} pretrained parameters) returned no pair of a TrainerConfig and a Trainer"
            return [Finding("returns", "fail", None, evidence, "return tconf, trainer_obj")]
        if not about.get("pair"):
            evidence = f"finetune ({name} pretrained parameters) does not return two values"
            return [Finding("returns", "fail", None, evidence, "return tconf, trainer_obj")]
        if not about.get("in order"):
            evidence = f"finetune ({name} pretrained parameters) returns the trainer first, then the config"
            return [Finding("returns", "fail", None, evidence, "return tconf, trainer_obj")]
        if not about.get("same config"):
            evidence = "the trainer was made with another config than the one that is returned"
            return [Finding("returns", "fail", None, evidence, "pass tconf to Trainer and return it")]
        if about.get("same model") is False:
            evidence = "the trainer trains another model than the one that finetune is given, which stays untrained"
            return [Finding("returns", "fail", None, evidence, "pass model itself to Trainer, no copy", "model")]
    return [Finding("returns", "pass", 0.0, "a TrainerConfig and the Trainer made with it")]


def check_loads(finetuning: Finetuning) -> list[Finding]:
    """With a path, the model has the parameters of that file; without, it keeps its own."""
    for name in ("without", "with"):
        finetuning.of(name)  # raises if the call failed
    kept, loaded = (finetuning.tensors.get(f"{name} weights") for name in ("without", "with"))
    if kept is None or loaded is None:
        raise SubmissionError("nothing was returned")
    trained = any(finetuning.of(name).get("num_trained") for name in ("without", "with"))
    steps = 1.0 if trained else 0.0
    hint = "model.load_state_dict(torch.load(reading_params_path, map_location='cpu')) if a path is given"
    if not torch.equal(loaded, torch.full_like(loaded, 0.25 + steps)):
        evidence = "with reading_params_path the model does not have the parameters of that file"
        return [Finding("loads", "fail", None, evidence, hint)]
    if not torch.equal(kept, torch.full_like(kept, 0.5 + steps)):
        return [Finding("loads", "fail", None, "without reading_params_path the model's parameters changed", hint)]
    return [Finding("loads", "pass", 0.0, "the model has the file's parameters, or its own without a file")]


def check_data(finetuning: Finetuning) -> list[Finding]:
    for name in finetuning.finished:
        about = finetuning.of(name)
        hint = "train on NameDataset with the text of finetune_corpus_path and pretrain_dataset"
        if about.get("is pretraining"):
            evidence = f"{name} pretrained parameters, it trains on the pretraining dataset"
            return [Finding("data", "fail", None, evidence, hint)]
        if about.get("data") != "NameDataset":
            return [Finding("data", "fail", None, f"it trains on {about.get('data')}, expected a NameDataset", hint)]
        if not about.get("has text"):
            evidence = "the NameDataset does not get the text of finetune_corpus_path"
            return [Finding("data", "fail", None, evidence, "read the file: open(path, encoding='utf-8').read()")]
        if not about.get("has vocabulary"):
            return [Finding("data", "fail", None, "the NameDataset does not get pretrain_dataset", hint)]
    return [Finding("data", "pass", 0.0, "NameDataset with the corpus and the pretraining vocabulary")]


def check_epochs(finetuning: Finetuning) -> list[Finding]:
    found = {name: finetuning.hyperparameters(name).get("max_epochs") for name in finetuning.finished}
    words = " and ".join(f"{number} {name}" for name, number in found.items())
    right = all(number == {"without": 75, "with": 10}[name] for name, number in found.items())
    hint = None if right else "expected 75 without and 10 with pretrained parameters"
    return [Finding("epochs", "pass" if right else "fail", None, f"max_epochs is {words} pretrained parameters", hint)]


def check_hyperparameters(finetuning: Finetuning) -> list[Finding]:
    for name in finetuning.finished:
        wrong = _first_difference(finetuning.hyperparameters(name), FINETUNE)
        if wrong:
            evidence = f"{name} pretrained parameters, {wrong}"
            return [Finding("hyperparameters", "fail", None, evidence, "set it in TrainerConfig")]
    return [Finding("hyperparameters", "pass", 0.0, "as in the assignment")]


def _first_difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    for name, value in expected.items():
        given = found.get(name)
        same = isinstance(given, int | float) and abs(given - value) <= 1e-6 * max(1, abs(value))
        if not same or (isinstance(value, bool) and given is not value):
            return f"{name} is {given}, expected {value}"
    return None


def check_pretrain(finetuning: Finetuning) -> list[Finding]:
    about = finetuning.of("pretrain")
    if not about.get("is pretraining"):
        evidence = f"pretrain trains on {about.get('data')}, expected pretrain_dataset"
        return [Finding("pretrain", "fail", None, evidence, "Trainer(model, pretrain_dataset, None, tconf)")]
    wrong = _first_difference(finetuning.hyperparameters("pretrain"), PRETRAIN)
    if wrong:
        return [Finding("pretrain", "fail", None, f"in pretrain, {wrong}", "set it in TrainerConfig")]
    return [Finding("pretrain", "pass", 0.0, "on the pretraining dataset, as in the assignment")]


def check_train(finetuning: Finetuning) -> list[Finding]:
    """train trains once, then saves the state dict."""
    if "num_trained" not in finetuning.values:
        finetuning.of("train")
    trained, saved = finetuning.values.get("num_trained"), finetuning.tensors.get("saved weights")
    hint = "trainer_obj.train(), then torch.save(model.state_dict(), writing_params_path)"
    if trained != 1:
        return [Finding("train", "fail", None, f"train calls trainer_obj.train() {trained} times", hint)]
    if saved is None:
        return [Finding("train", "fail", None, "train writes no state dict to writing_params_path", hint)]
    if not torch.equal(saved, torch.full_like(saved, 1.5)):
        evidence = "the saved parameters are not those after training: they are saved before, or of another model"
        return [Finding("train", "fail", None, evidence, hint)]
    return [Finding("train", "pass", 0.0, "it trains once and saves the trained parameters")]


def validate(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None or rubric.interface.settings:
        raise ValueError(f'{where}: this exercise is a function without further settings: function = "finetune"')


FINETUNING = Exercise(
    prepare,
    (
        GradedCheck(("returns",), check_returns),
        GradedCheck(("loads",), check_loads),
        GradedCheck(("data",), check_data),
        GradedCheck(("epochs",), check_epochs),
        GradedCheck(("hyperparameters",), check_hyperparameters),
        GradedCheck(("pretrain",), check_pretrain),
        GradedCheck(("train",), check_train),
    ),
    validate,
    require_response_of_finetuning,
    also=("pretrain", "train"),
    stubs=STUBS,
    lines={
        "returns": (r"return ",),
        "nothing": (r"Trainer\(",),
        "model": (r"copy\(|Trainer\(",),
        "loads": (r"load_state_dict|torch\.load", r"reading_params_path"),
        "data": (r"NameDataset\(", r"Trainer\("),
        "epochs": (r"max_epochs",),
        "hyperparameters": (r"TrainerConfig\(|tconf\.", r"batch_size"),
        "pretrain": (r"Trainer\(|TrainerConfig\(",),
        "train": (r"torch\.save|\.save\(", r"\.train\("),
    },
    owners={"pretrain": ("pretrain",), "train": ("train",)},
)
