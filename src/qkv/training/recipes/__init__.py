"""Recipes: the models that `qkv train` trains by name. A recipe's file is imported when it is used."""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.training.recipes.definition import RecipeDefinition

__all__ = ["RECIPES", "get_recipe"]

RECIPES = {
    "vit-digits": "qkv.training.recipes.images:DIGITS",
    "vit-cifar10": "qkv.training.recipes.images:CIFAR10",
    "vit-cifar100": "qkv.training.recipes.images:CIFAR100",
    "gpt-text": "qkv.training.recipes.text:TEXT",
    "birthplaces": "qkv.training.recipes.birthplaces:BIRTHPLACES",
    "translate": "qkv.training.recipes.translation:TRANSLATE",
    "speech": "qkv.training.recipes.speech:SPEECH",
}


def get_recipe(name: str) -> "RecipeDefinition":
    """Return the recipe of that name; a ValueError suggests the nearest one."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the recipes are {', '.join(RECIPES)}"
        raise ValueError(f"there is no recipe {name!r}; {hint}")
    module, _, attribute = RECIPES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
