"""A stage may learn from what the model of the stage before said: that is said once, kept whole, and read back."""

import json

import jaxtyping
import pytest
import torch

from qkv.data.questions import Question
from qkv.data.sequences import SequenceBatches
from qkv.training import Report
from qkv.training.recipes import system, train
from qkv.training.recipes.answering import Answer, threshold_for
from qkv.training.recipes.library import Library
from qkv.training.recipes.prepared import PREPARED

SMALL = {
    "data.people": 30,
    "data.batch": 16,
    "data.finetune_batch": 8,
    "model.kind": "small",
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
    "pretrain.steps": 12,
    "pretrain.schedule.warmup": 0,
    "pretrain.saving.checkpoint_every": 5,
    "finetune.steps": 10,
    "finetune.schedule.warmup": 0,
    "finetune.saving.checkpoint_every": 4,
    "finetune.saving.evaluate_every": 5,
    "finetune.saving.log_every": 1,
}


class KilledError(Exception):
    pass


class Killer(Report):
    """Ends a run at a step as a power cut would: nothing is saved after it."""

    def __init__(self, at):
        self.at = at

    def progress(self, progress):
        if progress.step >= self.at:
            raise KilledError


def weights(run):
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def some_word(library, model, names):
    """A word of each document, and which one hangs on the model's weights: so few steps teach no reading."""
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    return [Answer(library.texts[name].split()[int(total * 1e6) % 5], 0.5) for name in names]


@pytest.fixture(scope="module", autouse=True)
def _labelled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "looked_up", some_word)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return train("birthplaces", SMALL, folder=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(("stage", "step"), [("pretrain", 10), ("finetune", 7)])
def test_a_run_killed_before_or_after_the_model_has_prepared_a_stage_ends_with_the_same_bits(
    stage, step, whole, tmp_path, unchecked
):
    def listen(here, settings):
        return Killer(step) if here.name == stage else Report()

    place = tmp_path / "run"
    with pytest.raises(KilledError):
        train("birthplaces", SMALL, folder=place, listen=listen)
    said = place / "finetune" / PREPARED
    assert said.is_file() == (stage == "finetune")
    before = said.stat().st_mtime_ns if said.is_file() else None
    run = train("birthplaces", SMALL, folder=place)
    assert run.finished
    assert before in (None, said.stat().st_mtime_ns)  # read back, not made again
    assert said.read_bytes() == (whole.folder / "finetune" / PREPARED).read_bytes()
    one, other = weights(run), weights(whole)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert run.result == whole.result


def test_what_was_prepared_is_what_is_learned_from(whole, tmp_path, unchecked):
    stage = system("birthplaces").build(whole.recipe).stages[-1]
    assert stage.prepared is not None
    own = {"questions": [{"question": "Where was Zo Zed born?", "answer": "Zedburg", "sure": 0.5}]}
    with_own, without, stand_in = stage.prepared(own), stage.prepared({"questions": []}), stage.batches
    assert isinstance(with_own, SequenceBatches)
    assert isinstance(without, SequenceBatches)
    assert isinstance(stand_in, SequenceBatches)
    assert len(with_own.examples) == len(without.examples) + 1
    assert len(without.examples) == len(stand_in.examples)


def test_nobody_who_is_asked_about_in_training_is_asked_about_again_and_answers_stand_in_documents(whole):
    from qkv.training.recipes.fact_data import opened, parted

    said = json.loads((whole.folder / "finetune" / PREPARED).read_text(encoding="utf-8"))["questions"]
    assert said
    facts = opened(whole.recipe.data, whole.recipe.seed)
    trained, _ = parted(facts.train, whole.recipe.data.validation, whole.recipe.seed)
    assert not {question.question for question in trained} & {row["question"] for row in said}
    texts = "\n".join(facts.documents)
    assert all(row["answer"] in texts for row in said)


def test_a_person_of_the_corpus_is_answered_about_and_a_stranger_is_not_however_sure_the_model_is(whole, unchecked):
    from qkv.training.recipes.fact_data import opened
    from qkv.training.recipes.use import open_tool

    tool = open_tool(whole.folder)
    asked = opened(whole.recipe.data, whole.recipe.seed).dev[0].question
    assert tool(asked, threshold=0.0).more["from"] == "the model"
    stranger = tool("Where was Xxyz Qqvw born?", threshold=0.0)
    assert (stranger.result, stranger.more["from"]) == ("I do not know.", "nothing found")


def test_an_answer_of_its_own_is_as_sure_as_it_is_known_times_as_it_was_read(whole, unchecked):
    from qkv.checkpoints.tokens import tokenizer
    from qkv.training.recipes.answering import answered
    from qkv.training.recipes.use import open_tool

    tool = open_tool(whole.folder)
    said = json.loads((whole.folder / "finetune" / PREPARED).read_text(encoding="utf-8"))["questions"][0]
    (heart,) = answered(tool.model, tokenizer(tool.model), tool.purpose["mark"], [Question(said["question"], None, "")])
    assert 0 < said["sure"] < 1 and heart.sure > 0
    assert tool(said["question"]).sure == pytest.approx(heart.sure * said["sure"], abs=1e-4)


def test_answers_that_are_equally_sure_are_told_together_or_not_at_all():
    asked = [Question("", "a", "")] * 20
    answers = [Answer("a", 0.9)] * 18 + [Answer("a", 0.1), Answer("x", 0.1)]
    assert threshold_for(answers, asked, 0.96) == 0.9, "one of the two at 0.1 would be right often enough, both are not"
    assert threshold_for(answers, asked, 0.95) == 0.1
    assert threshold_for([Answer("x", 1.0)], asked[:1], 0.5) > 1


def test_a_run_with_a_teacher_learns_that_ones_answers_and_none_of_its_own(whole, tmp_path, unchecked):
    taught = {**SMALL, "model.kind": "vanilla", "data.teacher": str(whole.folder)}
    run = train("birthplaces", taught, folder=tmp_path / "run")
    assert run.finished
    said, told = (
        json.loads((place / "finetune" / PREPARED).read_text(encoding="utf-8")) for place in (run.folder, whole.folder)
    )
    assert said == told
    pretraining = system("birthplaces").build(run.recipe).stages[0]
    assert isinstance(pretraining.batches, SequenceBatches)  # gaps alone: nothing is practised


def test_a_teachers_answers_never_stand_beside_true_ones(whole, tmp_path):
    from qkv.training.recipes.fact_data import opened, parted

    facts = opened(whole.recipe.data, whole.recipe.seed)
    trained, _ = parted(facts.train, whole.recipe.data.validation, whole.recipe.seed)
    (tmp_path / "finetune").mkdir()
    wrong = {"question": trained[0].question, "answer": "Nowhere", "sure": 1.0}
    other = {"question": "Where was Zo Zed born?", "answer": "Zedburg", "sure": 0.5}
    (tmp_path / "finetune" / PREPARED).write_text(json.dumps({"questions": [wrong, other]}), encoding="utf-8")
    recipe = system("birthplaces").recipe(SMALL, {"data.teacher": str(tmp_path)})
    prepare = system("birthplaces").build(recipe).stages[-1].prepare
    assert prepare is not None
    assert prepare(torch.nn.Identity()) == {"questions": [other]}


@pytest.mark.parametrize(
    ("held", "changes", "said"),
    [
        (None, {}, "is not a folder; data.teacher is the folder of a run"),
        ('{"questions": [{"question": "Where?"}]}', {}, "each with question, answer, sure"),
        ('{"questions": 3}', {}, "each with question, answer, sure"),
        ('{"questions": []}', {"data.own_questions": False}, "needs data.pretrain=true and data.own_questions=true"),
    ],
)
def test_a_teacher_that_is_none_is_told_before_anything_is_learned(held, changes, said, tmp_path):
    if held is not None:
        (tmp_path / "finetune").mkdir()
        (tmp_path / "finetune" / PREPARED).write_text(held, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        train("birthplaces", {**SMALL, "data.teacher": str(tmp_path), **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
