"""Model overrides: a baseline comes with its own optimizer, and the user's overrides win."""

from tokenizers import Tokenizer

from qkv.models import Seq2Seq
from qkv.training.optimizers import make_optimizers
from qkv.training.recipes import get_recipe
from qkv.training.recipes.definition import build_model
from qkv.training.recipes.translation import bleu, load_pairs, translate_pairs


def test_every_translation_model_has_a_working_optimizer():
    known = get_recipe("translate")
    for kind in known.models:
        recipe = known.resolve({"model.vocab_size": 300}, model=kind)
        assert make_optimizers(build_model(recipe.model, 0), recipe.stages["train"].optimizer)


def test_overrides_beat_model_overrides_which_beat_defaults():
    known = get_recipe("translate")
    override = known.model_overrides["rnn-attention"]["train.optimizer"]
    assert known.resolve(model="rnn-attention").stages["train"].optimizer.name == override["name"]
    changed = known.resolve({"train.optimizer.lr": 5e-4}, model="rnn-attention").stages["train"].optimizer
    assert changed.lr == 5e-4 and changed.name == override["name"]
    assert known.resolve().stages["train"].optimizer.name != override["name"]


def test_the_length_penalty_of_the_config_reaches_beam_search(monkeypatch):
    known = get_recipe("translate")
    recipe = known.resolve({"model.dim": 16, "model.heads": 2, "data.vocab_size": 300, "data.length_penalty": 1.5})
    task = known.build(recipe)
    assert task.purpose(task.model)["length_penalty"] == 1.5
    penalties, original = [], Seq2Seq.generate

    def generate(self, *args, **options):
        penalties.append(options["length_penalty"])
        return original(self, *args, **options)

    monkeypatch.setattr(Seq2Seq, "generate", generate)
    tokenizer = Tokenizer.from_str(task.files["tokenizer.json"].decode())
    pairs = load_pairs(recipe.data, 0)["val"][:3]
    assert bleu(translate_pairs(task.model, tokenizer, pairs, 2, 1.5), pairs) >= 0
    assert penalties == [1.5]
