"""BLEU of all validation sentences by beams and length penalty: python bench/searching.py RUN

The run is one of `qkv train translate`; the test is not touched.
"""

import sys

import sacrebleu

from qkv.checkpoints.tokens import tokenizer
from qkv.training.recipes import open_run
from qkv.training.recipes.translation import opened, translated
from qkv.training.recipes.use import open_tool

CHOICES = [(1, 0.6), *((beams, penalty) for beams in (4, 8) for penalty in (0.0, 0.3, 0.6, 1.0, 1.4, 1.7, 2.0))]


def main(place: str) -> None:
    recipe, model = open_run(place).recipe, open_tool(place).model
    pairs = opened(recipe.data, recipe.seed)["val"]
    targets = [pair.target for pair in pairs]
    for beams, penalty in CHOICES:
        said = translated(model, tokenizer(model), pairs, beams, penalty)
        found = sacrebleu.corpus_bleu(said, [targets])
        longer = found.sys_len / found.ref_len
        print(f"{beams} beams, penalty {penalty:.1f}: {found.score:5.2f}, {longer:.2f} as long", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
