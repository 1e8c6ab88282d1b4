"""A model that is not the system's own comes with settings of its own, and a person's changes go over them."""

from tokenizers import Tokenizer

from qkv.models import Seq2Seq
from qkv.training.optimizers import make_optimisers
from qkv.training.recipes import system
from qkv.training.recipes.building import drawn
from qkv.training.recipes.translation import bleu, opened, translated


def test_every_model_that_translates_has_an_optimiser_that_can_move_it():
    known = system("translate")
    for kind in known.models:
        recipe = known.recipe({"model.vocab_size": 300}, model=kind)
        assert make_optimisers(drawn(recipe.model, 0), recipe.stages["train"].optimiser)


def test_a_change_goes_over_a_habit_and_a_habit_over_the_defaults():
    known = system("translate")
    habit = known.habits["rnn-attention"]["train.optimiser"]
    assert known.recipe(model="rnn-attention").stages["train"].optimiser.name == habit["name"]
    changed = known.recipe({"train.optimiser.lr": 5e-4}, model="rnn-attention").stages["train"].optimiser
    assert changed.lr == 5e-4 and changed.name == habit["name"]
    assert known.recipe().stages["train"].optimiser.name != habit["name"]


def test_the_length_penalty_of_the_recipe_reaches_the_search(monkeypatch):
    known = system("translate")
    recipe = known.recipe({"model.dim": 16, "model.heads": 2, "data.vocab": 300, "data.length_penalty": 1.5})
    task = known.build(recipe)
    assert task.purpose(task.model)["length_penalty"] == 1.5
    asked, plain = [], Seq2Seq.generate

    def generate(self, *args, **choices):
        asked.append(choices["length_penalty"])
        return plain(self, *args, **choices)

    monkeypatch.setattr(Seq2Seq, "generate", generate)
    tokenizer = Tokenizer.from_str(task.files["tokenizer.json"].decode())
    pairs = opened(recipe.data, 0)["val"][:3]
    assert bleu(translated(task.model, tokenizer, pairs, 2, 1.5), pairs) >= 0
    assert asked == [1.5]
