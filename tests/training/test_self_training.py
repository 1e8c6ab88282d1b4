"""Self-training: pseudo-labels are made once, saved, and read back when a run resumes; confidence; teachers."""

import json

import jaxtyping
import pytest
import torch

from qkv.data.text.question_answering import QuestionAnswer
from qkv.data.text.sequence_batches import SequenceBatches
from qkv.training import TrainCallback, run_recipe
from qkv.training.recipes import get_recipe
from qkv.training.recipes.question_answering import Answer, DocumentIndex, calibrate_threshold
from qkv.training.runs import PREPARED_FILE

SMALL = {
    "data.people": 30,
    "data.batch_size": 16,
    "data.finetune_batch_size": 8,
    "model.kind": "small",
    "model.dim": 32,
    "model.layers": 1,
    "model.heads": 2,
    "pretrain.steps": 12,
    "pretrain.schedule.warmup_steps": 0,
    "pretrain.checkpoint.checkpoint_every": 5,
    "finetune.steps": 10,
    "finetune.schedule.warmup_steps": 0,
    "finetune.checkpoint.checkpoint_every": 4,
    "finetune.checkpoint.evaluate_every": 5,
    "finetune.checkpoint.log_every": 1,
}


class KilledError(Exception):
    pass


class Killer(TrainCallback):
    """Ends a run at a step as a power cut would: nothing is saved after it."""

    def __init__(self, at):
        self.at = at

    def on_log(self, progress):
        if progress.step >= self.at:
            raise KilledError


def weights(run):
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def some_word(index, model, names):
    """A word of each document that depends on the model's weights: so few steps teach no reading comprehension."""
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
    return [Answer(index.texts[name].split()[int(total * 1e6) % 5], 0.5) for name in names]


@pytest.fixture(scope="module", autouse=True)
def _labeled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DocumentIndex, "answer_from_documents", some_word)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return run_recipe("birthplaces", SMALL, folder=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(("stage", "step"), [("pretrain", 10), ("finetune", 7)])
def test_a_run_killed_before_or_after_the_pseudo_labels_resumes_bit_exactly(stage, step, whole, tmp_path, unchecked):
    def make_callback(here, config):
        return Killer(step) if here.name == stage else TrainCallback()

    place = tmp_path / "run"
    with pytest.raises(KilledError):
        run_recipe("birthplaces", SMALL, folder=place, callback=make_callback)
    labels = place / "finetune" / PREPARED_FILE
    assert labels.is_file() == (stage == "finetune")
    before = labels.stat().st_mtime_ns if labels.is_file() else None
    run = run_recipe("birthplaces", SMALL, folder=place)
    assert run.finished
    assert before in (None, labels.stat().st_mtime_ns)  # read back, not made again
    assert labels.read_bytes() == (whole.folder / "finetune" / PREPARED_FILE).read_bytes()
    one, other = weights(run), weights(whole)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert run.result == whole.result


def test_a_stage_learns_from_the_prepared_pseudo_labels(whole, tmp_path, unchecked):
    stage = get_recipe("birthplaces").build(whole.config).stages[-1]
    assert stage.prepared is not None
    own = {"questions": [{"question": "Where was Zo Zed born?", "answer": "Zedburg", "confidence": 0.5}]}
    with_own, without, stand_in = stage.prepared(own), stage.prepared({"questions": []}), stage.batches
    assert isinstance(with_own, SequenceBatches)
    assert isinstance(without, SequenceBatches)
    assert isinstance(stand_in, SequenceBatches)
    assert len(with_own.examples) == len(without.examples) + 1
    assert len(without.examples) == len(stand_in.examples)


def test_pseudo_labels_are_new_questions_with_answers_from_the_documents(whole):
    from qkv.training.recipes.birthplaces import load_facts, split_questions

    labels = json.loads((whole.folder / "finetune" / PREPARED_FILE).read_text(encoding="utf-8"))["questions"]
    assert labels
    facts = load_facts(whole.config.data, whole.config.seed)
    trained, _ = split_questions(facts.train, whole.config.data.validation_fraction, whole.config.seed)
    assert not {question.question for question in trained} & {row["question"] for row in labels}
    texts = "\n".join(facts.documents)
    assert all(row["answer"] in texts for row in labels)


def test_predictor_abstains_on_people_who_are_not_in_the_corpus(whole, unchecked):
    from qkv.training.inference import load_predictor
    from qkv.training.recipes.birthplaces import load_facts

    predictor = load_predictor(whole.folder)
    asked = load_facts(whole.config.data, whole.config.seed).dev[0].question
    assert predictor(asked, threshold=0.0).more["from"] == "the model"
    for name in ("Xxyz Qqvw", "李", "nobody in lower case"):
        unknown = predictor(f"Where was {name} born?", threshold=0.0)
        assert (unknown.result, unknown.more["from"]) == ("I do not know.", "nothing found")
        assert unknown.more["why"] == f"no document is about {name!r}"
    unsure = predictor(asked, threshold=1.0)
    if unsure.more["from"] != "the model":
        assert unsure.more["why"] == "the threshold is 100%"
    with pytest.raises(ValueError, match="the question is empty"):
        predictor(" ")


def test_confidence_is_scaled_by_the_confidence_of_the_pseudo_label(whole, unchecked):
    from qkv.checkpoints.loading import load_tokenizer
    from qkv.training.inference import load_predictor
    from qkv.training.recipes.question_answering import answer_questions

    predictor = load_predictor(whole.folder)
    label = json.loads((whole.folder / "finetune" / PREPARED_FILE).read_text(encoding="utf-8"))["questions"][0]
    (answer,) = answer_questions(
        predictor.model,
        load_tokenizer(predictor.model),
        predictor.purpose["mask_id"],
        [QuestionAnswer(label["question"], None, "")],
    )
    assert 0 < label["confidence"] < 1 and answer.confidence > 0
    assert predictor(label["question"]).confidence == pytest.approx(answer.confidence * label["confidence"], abs=1e-4)


def test_calibrate_threshold_accepts_equally_confident_answers_together_or_not_at_all():
    asked = [QuestionAnswer("", "a", "")] * 20
    answers = [Answer("a", 0.9)] * 18 + [Answer("a", 0.1), Answer("x", 0.1)]
    assert calibrate_threshold(answers, asked, 0.96) == 0.9, (
        "one of the two at 0.1 would be right often enough, both are not"
    )
    assert calibrate_threshold(answers, asked, 0.95) == 0.1
    assert calibrate_threshold([Answer("x", 1.0)], asked[:1], 0.5) > 1


def test_a_run_with_a_teacher_uses_its_pseudo_labels_only(whole, tmp_path, unchecked):
    taught = {**SMALL, "model.kind": "vanilla", "data.teacher": str(whole.folder)}
    run = run_recipe("birthplaces", taught, folder=tmp_path / "run")
    assert run.finished
    own, teachers = (
        json.loads((place / "finetune" / PREPARED_FILE).read_text(encoding="utf-8"))
        for place in (run.folder, whole.folder)
    )
    assert own == teachers
    pretraining = get_recipe("birthplaces").build(run.config).stages[0]
    assert isinstance(pretraining.batches, SequenceBatches)  # span corruption only, no reading examples


def test_pseudo_labels_of_a_teacher_never_replace_true_answers(whole, tmp_path):
    from qkv.training.recipes.birthplaces import load_facts, split_questions

    facts = load_facts(whole.config.data, whole.config.seed)
    trained, _ = split_questions(facts.train, whole.config.data.validation_fraction, whole.config.seed)
    (tmp_path / "finetune").mkdir()
    wrong = {"question": trained[0].question, "answer": "Nowhere", "confidence": 1.0}
    other = {"question": "Where was Zo Zed born?", "answer": "Zedburg", "confidence": 0.5}
    (tmp_path / "finetune" / PREPARED_FILE).write_text(json.dumps({"questions": [wrong, other]}), encoding="utf-8")
    recipe = get_recipe("birthplaces").resolve(SMALL, {"data.teacher": str(tmp_path)})
    prepare = get_recipe("birthplaces").build(recipe).stages[-1].prepare
    assert prepare is not None
    assert prepare(torch.nn.Identity()) == {"questions": [other]}


@pytest.mark.parametrize(
    ("prepared", "changes", "message"),
    [
        (None, {}, "is not a folder; data.teacher must be a run"),
        ('{"questions": [{"question": "Where?"}]}', {}, "each with question, answer, confidence"),
        ('{"questions": 3}', {}, "each with question, answer, confidence"),
        ('{"questions": []}', {"data.self_training": False}, "needs data.pretrain=true and data.self_training=true"),
    ],
)
def test_a_wrong_teacher_is_refused_before_training(prepared, changes, message, tmp_path):
    if prepared is not None:
        (tmp_path / "finetune").mkdir()
        (tmp_path / "finetune" / PREPARED_FILE).write_text(prepared, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        run_recipe("birthplaces", {**SMALL, "data.teacher": str(tmp_path), **changes}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
