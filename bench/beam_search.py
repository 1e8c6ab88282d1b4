"""BLEU on the validation sentences by beam size and length penalty: python bench/beam_search.py RUN

The run is one of `qkv train translate`; the test data is not used.
"""

import sys

import sacrebleu

from qkv.checkpoints import load_tokenizer
from qkv.training import open_run
from qkv.training.inference import load_predictor
from qkv.training.recipes.translation import load_pairs, translate_pairs

CHOICES = [(1, 0.6), *((beams, penalty) for beams in (4, 8) for penalty in (0.0, 0.3, 0.6, 1.0, 1.4, 1.7, 2.0))]


def main(run: str) -> None:
    config, model = open_run(run).config, load_predictor(run).model
    pairs = load_pairs(config.data, config.seed)["val"]
    targets = [pair.target for pair in pairs]
    for beams, penalty in CHOICES:
        translations = translate_pairs(model, load_tokenizer(model), pairs, beams, penalty)
        bleu = sacrebleu.corpus_bleu(translations, [targets])
        length = bleu.sys_len / bleu.ref_len
        print(f"{beams} beams, penalty {penalty:.1f}: BLEU {bleu.score:5.2f}, length ratio {length:.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
